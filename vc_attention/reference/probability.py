"""Probability formats: scores below their reference maximum -> what the PV product multiplies, and row sums.

All take `u = (s - m) log2(e) <= 0`, fp32, -inf for masked keys, and return

    p  the decoded low-bit probabilities, in units of a constant gain that cancels in Eq. 1
    r  their row sums over the last dimension in the same units, from decoded codes or from exact exponentials
"""

from __future__ import annotations

import math

import torch

from ..config import Numerics
from .formats import NVFP4_MAX, decode, encode_nvfp4, from_e4m3, to_e4m3

# Centres the error of reading an E4M3 byte as a logarithm. The paper's -0.35 is minimax (appendix C: -0.3443) and
# decodes 0.9% high on average, which cancels in the row sum. A maximum is exact, however, and when every tile has one
# the average of the others must be right, too: -0.46 makes it 0.9997.
BETA = {"running": -0.35, "tile": -0.46}
LOG2_GAIN = {"running": 8.0, "tile": math.log2(448.0)}  # where the row maximum lands: 2^8 (Eq. 7) or 448
TOP_CODE = {"running": 120.0, "tile": 126.0}


def expcast(u: torch.Tensor, p_scale: str = "running") -> torch.Tensor:
    """ExpCast-FP8 (Eq. 7): E4M3 bytes, uint8, from one multiply-add.

    running: `clip(round(8 (u + 8) + 56 + beta), 0, 120)`, the paper's. tile: the same line with the row maximum at
    448 instead of 256, clipped at 126, for a `u` relative to the maximum of its own key tile: a tile then loses at
    most 127 * 2^-14 of its mass to underflow, whatever the data.
    """
    offset = 8.0 * LOG2_GAIN[p_scale] + 56.0 + BETA[p_scale]
    return (u * 8.0 + offset).round().clamp(0.0, TOP_CODE[p_scale]).to(torch.uint8)


def probabilities(u: torch.Tensor, numerics: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
    """(p, r) of one row block; see the module text."""
    format, p_scale = numerics.probability, numerics.p_scale
    if format == "expcast":  # no exponential exists, so the row sum can only come from the codes
        p = from_e4m3(expcast(u, p_scale))
        return p, p.sum(-1)
    if format == "none":
        p = torch.exp2(u)
        return p, p.sum(-1)
    gain = {"exact": 2.0 ** LOG2_GAIN[p_scale], "u8": 255.0, "nvfp4": NVFP4_MAX}[format]
    exact = torch.exp2(u) * gain
    if format == "exact":
        p = from_e4m3(to_e4m3(exact))
    elif format == "u8":  # small entries vanish in 255 levels: their mass must stay in the row sum
        p = exact.round()
    else:
        p = decode(*encode_nvfp4(exact), "nvfp4")
    return p, (exact if numerics.row_sum == "exact" else p).sum(-1)  # Eq. 6
