"""Errors of every rung on kinds of layers, by which the levels of the error budget were chosen.

`python -m tests.guard.levels` prints the table of docs/guard.md: relative L2 error in percent, against fp64 attention,
of the output of two heads and 2,048 tokens.
"""

from __future__ import annotations

import torch

from tests.generator import qkv
from tests.reference.fidelity import exact_attention
from vc_attention import attention
from vc_attention.config import PROFILES, Action

GRID, SEEDS = (4, 16, 32), (10, 11)
PROFILE_NAMES = ("balanced", "quality", "int8-nvfp4", "4bit", "fp8-naive")


def gained(x: torch.Tensor, gain: float) -> torch.Tensor:
    """x with four channels so many times larger."""
    x = x.clone()
    x[..., [3, 40, 77, 101]] *= gain
    return x


def kinds() -> dict[str, tuple[torch.Tensor, ...]]:
    """q, k, v of every kind of layer."""
    q, k, v = qkv(GRID, SEEDS)
    random = torch.Generator().manual_seed(0)
    noise = tuple(torch.randn(q.shape, generator=random).bfloat16() for _ in range(3))
    return {
        "video-like (the generator)": (q, k, v),
        "noise, nothing to group": noise,
        "video-like, 4 channels of K x 50": (q, gained(k, 50), v),
        "noise, 4 channels of K x 50": (noise[0], gained(noise[1], 50), noise[2]),
        "video-like, 4 channels of Q and K x 200": (gained(q, 200), gained(k, 200), v),
    }


def errors(q, k, v) -> list[float]:
    exact = exact_attention(q, k, v)
    found = []
    for name in PROFILE_NAMES:
        out, _ = attention.attend(q, k, v, numerics=PROFILES[name], action=Action.GROUP, backend="reference")
        found.append(float(100 * (out.double() - exact).norm() / exact.norm()))
    return found


def main() -> None:
    print("| layer | " + " | ".join(PROFILE_NAMES) + " |\n|---|" + "---|" * len(PROFILE_NAMES))
    for name, tensors in kinds().items():
        print(f"| {name} | " + " | ".join(f"{error:.2g}" for error in errors(*tensors)) + " |", flush=True)


if __name__ == "__main__":
    main()
