"""The attention loop on low-bit operands (Eq. 1 with Eq. 6), all key tiles of a row block at once.

The online recurrence rescales by alpha whenever the maximum moves. Unrolled, the alphas telescope: tile j, encoded
against its reference maximum m_j, enters with weight `w_j = 2^(m_j - m_last)`. That is what is computed here.
"""

from __future__ import annotations

import math

import torch
from torch.nn.functional import pad

from ..config import Numerics
from .formats import decode, from_e4m3
from .operands import Operands
from .probability import expcast_packed, probabilities
from .scores import k_group_of_key

BLOCK = 128
CHUNK = 1 << 20  # scores held at a time


def score_factors(operands: Operands, numerics: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
    """(row factor `[B, H, Nq]`, key factor `[B, H, Nk]`): dot * row * key is the score times log2(e)."""
    head_dim = operands.q_codes.shape[-1]
    constant = math.log2(math.e) / math.sqrt(head_dim) / (head_dim if numerics.hadamard else 1)
    group = k_group_of_key(numerics, operands.k_scale.device)
    key = operands.k_scale[..., group].flatten(-2)[..., : operands.k_codes.shape[-2]]
    return operands.q_scale * constant, key


def values(operands: Operands, numerics: Numerics) -> torch.Tensor:
    """Dequantized residual, fp32 `[B, H, Nk, D]`."""
    length, codes = operands.v_codes.shape[-2], operands.v_codes
    if numerics.pv == "nvfp4":
        decoded = decode(pad(codes.mT, (0, -length % 16)), operands.v_micro, "nvfp4")[..., :length].mT
    else:
        decoded = decode(codes, None, numerics.pv)
    scale = operands.v_scale
    by_channel = scale.dim() == 3
    return decoded * (scale[..., None, :] if by_channel else scale.repeat_interleave(BLOCK, -2)[..., :length, :])


def attention(
    operands: Operands,
    numerics: Numerics,
    block_n: int = BLOCK,
    dtype: torch.dtype = torch.float32,
    rows: torch.Tensor | None = None,
    packed: bool = False,
) -> torch.Tensor:
    """O `[B, H, Nq, D]` in `dtype`.

    block_n  keys that share a row maximum, a divisor or a multiple of 128. The result depends on it: a kernel is
             compared at its own width.
    dtype    fp32 as the kernels accumulate, or fp64 to tell format error from accumulation error.
    rows     indices of the query rows to compute, int64 `[R]`, for a result `[B, H, R, D]`; all when None.
    packed   ExpCast from scores of 16 bits (`probability.expcast_packed`), of operands that are made for it

    Sums of `block_n` products in fp16, which kernels use where `Numerics.half_sums` allows it, are not modelled.
    """
    shape, length = operands.q_codes.shape, operands.k_codes.shape[-2]
    width = min(block_n, BLOCK)
    tiles = -(-length // BLOCK) * (BLOCK // width)
    padding = tiles * width - length
    row, key = (f.flatten(0, 1).to(dtype) for f in score_factors(operands, numerics))
    q = decode(operands.q_codes, operands.q_micro, numerics.qk).flatten(0, 1).to(dtype)
    k = decode(operands.k_codes, operands.k_micro, numerics.qk).flatten(0, 1).to(dtype)
    k, key = pad(k, (0, 0, 0, padding)), pad(key, (0, padding))
    v = pad(values(operands, numerics).flatten(0, 1).to(dtype), (0, 0, 0, padding))
    mean = operands.v_mean.flatten(0, 1).to(dtype)
    bias = operands.score_bias
    if bias is not None:
        gain = math.log2(math.e) / math.sqrt(shape[-1]) / (shape[-1] if numerics.hadamard else 1)
        bias = pad(bias.flatten(0, 1).to(dtype) * gain, (0, padding))

    if rows is None:
        rows = torch.arange(shape[-2], device=q.device)
    out = []
    for part in rows.split(max(16, CHUNK // (k.shape[0] * k.shape[1]))):
        s = q[:, part] @ k.mT
        if packed:
            if padding:
                s[..., length:] = -torch.inf
            slope = row[:, part, None] * key[:, None, ::block_n]
            out.append(packed_row_block(s.unflatten(-1, (tiles, width)), slope, v, mean, block_n // width))
            continue
        if operands.k_bias is not None:
            s += mean_products(operands, part, padding, dtype)
        s *= row[:, part, None]
        s *= key[:, None]
        if bias is not None:
            s += bias[:, part // BLOCK]
        if padding:
            s[..., length:] = -torch.inf
        out.append(row_block(s.unflatten(-1, (tiles, width)), v, mean, numerics, block_n // width))
    return torch.cat(out, 1).unflatten(0, shape[:2])


def mean_products(operands: Operands, part: torch.Tensor, padding: int, dtype: torch.dtype) -> torch.Tensor:
    """What the means of Q and K add to the product of query rows `part`, in its units; see `score_means`."""
    o = operands
    q = decode(o.q_codes[:, :, part], o.q_micro[:, :, part], "nvfp4")
    q += decode(o.q_rest_codes[:, :, part], o.q_rest_micro[:, :, part], "nvfp4")
    k_mean = decode(o.k_mean_codes, o.k_mean_micro, "nvfp4").to(dtype).sum(-2)
    length = o.k_bias.shape[-1] + padding
    tiles = (q.to(dtype) @ k_mean.mT).repeat_interleave(BLOCK, -1)[..., :length]
    return (tiles + pad(o.k_bias.to(dtype), (0, padding))[:, :, None]).flatten(0, 1)


def row_maxima(s: torch.Tensor, group: int) -> torch.Tensor:
    """Maximum of every `group` neighbouring tiles of scores `[Z, rows, tiles, width]`, as `[Z, rows, tiles, 1]`."""
    row_max = s.amax(-1)
    tiles = row_max.shape[-1]
    groups = pad(row_max, (0, -tiles % group), value=-torch.inf).unflatten(-1, (-1, group)).amax(-1)
    return groups.repeat_interleave(group, -1)[..., :tiles, None]


def row_block(s: torch.Tensor, v: torch.Tensor, mean: torch.Tensor, numerics: Numerics, group: int = 1) -> torch.Tensor:
    """Scores `[Z, rows, tiles, width]` in log2 units -> normalised output `[Z, rows, D]` (Eq. 6)."""
    row_max = row_maxima(s, group)
    if numerics.p_scale == "running":
        row_max = row_max.cummax(-2).values
    p, r = probabilities(s - row_max, numerics)
    return normalised(p, r, row_max, v, mean)


def packed_row_block(
    dot: torch.Tensor, slope: torch.Tensor, v: torch.Tensor, mean: torch.Tensor, group: int
) -> torch.Tensor:
    """Dot products `[Z, rows, tiles, width]` and their slope `[Z, rows, steps]` -> output `[Z, rows, D]` (Eq. 6)."""
    tiles = dot.shape[-2]
    steps = pad(dot, (0, 0, 0, -tiles % group), value=-torch.inf).unflatten(-2, (-1, group)).flatten(-2)
    codes, reference = expcast_packed(steps, slope)
    p = from_e4m3(codes).unflatten(-1, (group, -1)).flatten(-3, -2)[..., :tiles, :]
    return normalised(p, p.sum(-1), reference.repeat_interleave(group, -1)[..., :tiles, None], v, mean)


def normalised(
    p: torch.Tensor, r: torch.Tensor, reference: torch.Tensor, v: torch.Tensor, mean: torch.Tensor
) -> torch.Tensor:
    """Output `[Z, rows, D]` of probabilities `[Z, rows, tiles, width]`, their sums, and what they count in, in log2."""
    weight = torch.exp2(reference - reference.amax(-2, keepdim=True)).to(v.dtype)
    p, r = p.to(v.dtype) * weight, r.to(v.dtype) * weight[..., 0]
    per_block = r.unflatten(-1, (mean.shape[-2], -1)).sum(-1)
    return (p.flatten(-2) @ v + per_block @ mean) / r.sum(-1, keepdim=True)
