"""From widget values to what the attention library takes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from ..vc_attention.attention import BACKENDS
from ..vc_attention.config import Numerics, profile
from ..vc_attention.errors import ParameterError
from ..vc_attention.guard import BUDGETS
from ..vc_attention.schedule import AfterWindow, Schedule
from .bits import BITS

SMOOTHING = ("balanced", "quality", "paper")
PROBABILITY = ("auto", "expcast", "exact")
MAX_BLOCK = 999  # no model has that many; keeps a mistyped range from filling the memory

# (smoothing, bits) -> name in vc_attention.config.PROFILES
PROFILE_OF = {
    ("balanced", "8"): "balanced",
    ("quality", "8"): "quality",
    ("paper", "8"): "paper-8bit",
    ("balanced", "4"): "4bit",
    ("quality", "4"): "int8-nvfp4",
    ("paper", "4"): "paper-4bit",
}


@dataclass(frozen=True)
class Settings:
    """What one patch node asks for; `numerics` of every bit width that a call may get (see bits.widths)."""

    bits: str
    smoothing: str
    numerics: dict[str, Numerics]
    schedule: Schedule
    min_tokens: int
    blocks_left_alone: frozenset[int]
    backend: str
    error_budget: str

    def __str__(self) -> str:
        return f"{self.smoothing}, {self.bits} bits"


def settings(
    bits: str,
    grouping_window: float,
    clusters: int,
    refresh_interval: int,
    probability: str,
    smoothing: str,
    min_tokens: int,
    blocks_left_alone: str,
    backend: str,
    error_budget: str = "balanced",
) -> Settings:
    """Settings from the node's widgets.

    Raises ParameterError, which names the widget and the remedy: ComfyUI checks neither what another node feeds into a
    widget nor, in a script's prompt, choices and NaN.
    """
    _check_choice("bits", bits, BITS)
    _check_choice("smoothing", smoothing, SMOOTHING)
    _check_choice("probability", probability, PROBABILITY)
    _check_choice("backend", backend, BACKENDS)
    if type(min_tokens) is not int or min_tokens < 0:
        raise ParameterError("min_tokens", "a whole number, 0 or more", min_tokens, "try 4096")
    _check_choice("error_budget", error_budget, tuple(BUDGETS))
    numerics = _numerics(bits, smoothing, clusters, probability)
    after = AfterWindow.PLAIN if smoothing == "paper" else AfterWindow.ASSIGN
    schedule = Schedule(grouping_window, refresh_interval, after)
    blocks = parse_blocks(blocks_left_alone)
    return Settings(bits, smoothing, numerics, schedule, min_tokens, blocks, backend, error_budget)


def _numerics(bits: str, smoothing: str, clusters: int, probability: str) -> dict[str, Numerics]:
    """By bit width. Probability formats are those of 8 bits: with one of them auto does without 4, and 4 is refused."""
    changes = {"clusters": clusters} if probability == "auto" else {"clusters": clusters, "probability": probability}
    possible = ("8",) if bits == "8" or (bits == "auto" and probability != "auto") else ("4", "8")
    return {width: replace(profile(PROFILE_OF[smoothing, width]), **changes) for width in possible}


def _check_choice(widget: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ParameterError(widget, f"one of {', '.join(map(repr, choices))}", value, "choose one of these")


def parse_blocks(text: str) -> frozenset[int]:
    """ "0, 1, 38-39" -> {0, 1, 38, 39}; empty text is no block. Raises ParameterError for anything else."""
    if not isinstance(text, str):
        raise ParameterError("blocks_left_alone", "text", text, 'write it like "0,1,38-39"')
    blocks: set[int] = set()
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        match = re.fullmatch(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if not first <= last <= MAX_BLOCK:
            rule = f"numbers and ranges up to {MAX_BLOCK}"
            raise ParameterError("blocks_left_alone", rule, part, 'write them like "0,1,38-39"')
        blocks.update(range(first, last + 1))
    return frozenset(blocks)
