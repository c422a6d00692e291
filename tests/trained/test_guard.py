"""The quality guard's number on q, k, v of the trained model, every layer of a short run."""

import math

import pytest

from tests.reference.fidelity import exact_attention
from vc_attention import guard
from vc_attention.attention import attend
from vc_attention.config import PROFILES, Action

from .clips import Model, rounded

FRAMES, SIZE, STEPS, DRAWS = 5, 192, 2, 5


@pytest.fixture(scope="module")
def calls():
    """q, k, v `[1, 2, 720, 128]`, bf16, and exact attention of every attention call."""
    seen = []

    def watching(layer: int):
        attention = rounded(layer)

        def watched(q, k, v):
            qkv = tuple(x.bfloat16() for x in (q, k, v))
            seen.append((*qkv, exact_attention(*qkv)))
            return attention(q, k, v)

        return watched

    Model("cpu").latents(1, FRAMES, watching, size=SIZE, steps=STEPS)
    return seen


@pytest.mark.parametrize("profile", ["balanced", "quality", "4bit"])
def test_the_estimate_is_within_15_percent_of_the_truth(calls, profile):
    for q, k, v, exact in calls:
        out, _ = attend(q, k, v, numerics=PROFILES[profile], action=Action.GROUP, backend="reference")
        true = float((out.double() - exact).norm() / exact.norm())
        for draw in range(DRAWS):
            squares, norm = guard.squared_error(q, k, v, out, 7919 * draw)
            assert math.sqrt(squares / norm) == pytest.approx(true, rel=0.15)
