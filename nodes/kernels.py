"""What runs the accelerated calls: kernels on a GPU, or the reference. Decided before a call, never during one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from ..vc_attention.config import Numerics, profile
from ..vc_attention.errors import KernelUnavailable
from ..vc_attention.guard import ABOVE, BUDGETS
from .bits import widths
from .settings import PROFILE_OF, Settings

REMEDY = "run `python install.py` in the VC-Attention folder and restart ComfyUI, or set backend to auto"
REFERENCE = "reference (torch operations)"


@dataclass(frozen=True)
class Choice:
    """backend and numerics for attend(), its name for the report; or the reason why stock attention takes the call.

    profile: the named setting that the numerics come from. width: the bit width where it is not simply the one asked
    for, and why.
    """

    backend: str = ""
    name: str = ""
    profile: str = ""
    numerics: Numerics | None = None
    width: str = ""
    reason: str | None = None


def choose(asked: Settings, head_dim: int, device: torch.device, seqlen_k: int | None = None) -> Choice:
    """The choice for calls of this head size and number of keys on this device.

    With backend "reference" always the reference; with "auto" kernels where they are the faster way, 8 bits where 4
    have none, or a reason; with "cuda" kernels at any length. Raises KernelUnavailable with every reason when backend
    is "cuda" and no kernel has the first choice of bits.
    """
    order, why = widths(asked.bits, asked.numerics, device)
    if asked.backend == "reference":
        return Choice("reference", REFERENCE, PROFILE_OF[asked.smoothing, order[0]], asked.numerics[order[0]], why)
    from ..vc_attention import dispatch  # registers torch operators, which a workflow without this node need not have

    refusals: dict[str, list[str]] = {}
    for bits in order:
        numerics = asked.numerics[bits]
        found = dispatch.select(device, numerics, head_dim, seqlen_k if asked.backend == "auto" else None)
        if not isinstance(found, list):
            if refusals:
                why = f"{bits} bits instead of {order[0]}: {'; '.join(refusals[order[0]])}"
            return Choice("cuda", found.unit, PROFILE_OF[asked.smoothing, bits], numerics, why)
        refusals[bits] = _in_widgets_words(found, numerics)
        if asked.backend == "cuda":
            raise KernelUnavailable(refusals[bits], REMEDY)
    return Choice(reason=_told_once(refusals))


def ladder(asked: Settings, head_dim: int, device: torch.device, seqlen_k: int | None = None) -> tuple[Choice, ...]:
    """The choice of `choose` and, above it, the more exact profiles that run here: the rungs that a guard may take."""
    first = choose(asked, head_dim, device, seqlen_k)
    rungs = [first]
    guarded = first.reason is None and BUDGETS[asked.error_budget] is not None
    for name in ABOVE[first.profile] if guarded else ():
        numerics = replace(profile(name), clusters=first.numerics.clusters)
        if first.backend == "reference":
            rungs.append(replace(first, profile=name, numerics=numerics, width=""))
            continue
        from ..vc_attention import dispatch

        found = dispatch.select(device, numerics, head_dim, seqlen_k if asked.backend == "auto" else None)
        if not isinstance(found, list):
            rungs.append(Choice("cuda", found.unit, name, numerics))
    return tuple(rungs)


def _told_once(refusals: dict[str, list[str]]) -> str:
    """All reasons in one line; what holds at every bit width without its name."""
    texts = {bits: "; ".join(reasons) for bits, reasons in refusals.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{bits} bits: {text}" for bits, text in texts.items())


def _in_widgets_words(reasons: list[str], numerics: Numerics) -> list[str]:
    """`reasons`, or the settings to choose instead where no kernel was written for these numerics on any GPU."""
    from ..vc_attention.prepare import unsupported

    if not set(unsupported(numerics)) & set(reasons):
        return reasons
    able = [key for key, name in PROFILE_OF.items() if not unsupported(profile(name))]
    choices = " or ".join(f"{smoothing} at {bits} bits" for smoothing, bits in able)
    return [f"no GPU kernel yet for this bit width and smoothing profile, only for {choices}"]
