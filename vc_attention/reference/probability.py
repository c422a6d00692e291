"""Probability formats: scores below their reference maximum -> what the PV product multiplies, and row sums.

All take `u = (s - m) log2(e) <= 0`, fp32, -inf for masked keys, and return

    p  the decoded low-bit probabilities, in units of a constant gain that cancels in Eq. 1
    r  their row sums over the last dimension in the same units, from decoded codes or from exact exponentials
"""

from __future__ import annotations

import math

import torch

from ..config import Numerics
from .formats import E4M3_MAX, NVFP4_MAX, decode, encode_nvfp4, from_e4m3, to_e4m3

# Centres the error of reading an E4M3 byte as a logarithm. The paper's -0.35 is minimax (appendix C: -0.3443) and
# decodes 0.9% high on average, which cancels in the row sum. A maximum is exact, however, and when every tile has one
# the average of the others must be right, too: -0.46 makes it 0.9997.
BETA = {"running": -0.35, "tile": -0.46}
# Where ExpCast puts the row maximum: 2^8 (Eq. 7), or 112, the most of which 256 products with values of
# `formats.HALF_SUMS_VALUE_MAX` fit fp16; and its code.
LOG2_GAIN = {"running": 8.0, "tile": math.log2(112.0)}
TOP_CODE = {"running": 120.0, "tile": 110.0}
EXACT_GAIN = {"running": 256.0, "tile": E4M3_MAX}  # where an exponential that is rounded to E4M3 has it
PACK = 256.0  # of an integer dot product is one unit of a packed score
STEEP_TOP = 96.0  # code of the row maximum where slopes are steep: 32
MAX_PACKED_SLOPE = 32.0  # codes a unit, 160 nats a standard deviation


def expcast(u: torch.Tensor, p_scale: str = "running") -> torch.Tensor:
    """ExpCast-FP8 (Eq. 7): E4M3 bytes, uint8, from one multiply-add.

    running: `clip(round(8 (u + 8) + 56 + beta), 0, 120)`, the paper's. tile: the same line with the row maximum at
    112 instead of 256, clipped at 110, for a `u` relative to the maximum of its own key tile: a tile then loses at
    most 127 * 2^-13 of its mass to underflow, whatever the data.
    """
    offset = 8.0 * LOG2_GAIN[p_scale] + 56.0 + BETA[p_scale]
    return (u * 8.0 + offset).round().clamp(0.0, TOP_CODE[p_scale]).to(torch.uint8)


def expcast_packed(dot: torch.Tensor, slope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """ExpCast (Eq. 7) in 16 bits, two scores a register: (bytes `[..., N]`, what they count in `[...]`, in log2 units).

    dot    exact INT8 dot products of keys that share a reference, `[..., N]`, -inf for masked keys
    slope  log2 units that one unit of `dot` is worth, `[...]`

    A score is `floor(dot / 256)`, which loses less than INT8 operands do, half a unit on average. Its code is
    `top - h (max - score)`, h the eighths of an octave that a unit is worth: an fp16 number and a multiple of 2^-11, so
    that all of it is exact in a fixed point that reaches 2,048 units. Where h is so small that codes there would not be
    0 yet, a score is `floor(dot / 2048)`. top is 110, as of `expcast`, or 96 where h is 2 or more and fp16 has no
    numbers in between. A step loses at most 255 * 2^-13 of its mass to underflow, with 96 twice that.
    """
    exact = (slope * (8.0 * PACK)).clamp(max=MAX_PACKED_SLOPE)
    coarse = torch.where(fixed_point(exact)[1] > 0.0, 8.0, 1.0).to(exact.dtype)
    exact = exact * coarse
    half, _, top = fixed_point(exact)
    score = (dot / (PACK * coarse[..., None])).floor()
    maximum = score.amax(-1)
    codes = (top[..., None] - half[..., None] * (maximum[..., None] - score)).round().clamp(min=0.0)
    codes = torch.where(dot == -torch.inf, 0.0, codes)
    return codes.to(torch.uint8), (exact * (maximum + 0.5) - top) / 8.0


def fixed_point(slope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(slope as the fixed point has it, code 2,048 units below the maximum, code of the maximum), fp32."""
    half = slope.float().half().float()
    top = torch.where(half < 2.0, TOP_CODE["tile"], STEEP_TOP)
    zero = (top - 2048.0 * half).round()
    return (top - zero) / 2048.0, zero, top


def probabilities(u: torch.Tensor, numerics: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
    """(p, r) of one row block; see the module text."""
    format, p_scale = numerics.probability, numerics.p_scale
    if format == "expcast":  # no exponential exists, so the row sum can only come from the codes
        p = from_e4m3(expcast(u, p_scale))
        return p, p.sum(-1)
    if format == "none":
        p = torch.exp2(u)
        return p, p.sum(-1)
    gain = {"exact": EXACT_GAIN[p_scale], "u8": 255.0, "nvfp4": NVFP4_MAX}[format]
    exact = torch.exp2(u) * gain
    if format == "exact":
        p = from_e4m3(to_e4m3(exact))
    elif format == "u8":  # small entries vanish in 255 levels: their mass must stay in the row sum
        p = exact.round()
    else:
        p = decode(*encode_nvfp4(exact), "nvfp4")
    return p, (exact if numerics.row_sum == "exact" else p).sum(-1)  # Eq. 6
