"""V-Smooth, second half: block means and the quantized residual (Eq. 4)."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

from ..config import Numerics
from .arithmetic import block_sizes, blocks, tree_sum
from .formats import decode, encode, encode_nvfp4, reciprocal_scale, value_max

BLOCK = 128


def shared(amax: torch.Tensor, size: int) -> torch.Tensor:
    """The largest of every `size` neighbouring blocks for all of them, `[..., nK, D]`."""
    count = amax.shape[-2]
    runs = pad(amax, (0, 0, 0, -count % size)).unflatten(-2, (-1, size)).amax(-2)
    return runs.repeat_interleave(size, -2)[..., :count, :]


def quantize_v(v: torch.Tensor, numerics: Numerics, means: bool, scale_n: int):
    """Permuted v `[B, H, Nk, D]`, fp32 -> (codes, micro, scale, mean).

    codes  as the format, `[B, H, Nk, D]`
    micro  NVFP4: E4M3 bytes `[B, H, D, ceil(Nk/16)]`, groups of 16 run along keys as the PV product needs; else None
    scale  fp32 `[B, H, D]` (one per channel) for E4M3 and NVFP4, whose micro scales have the range for all blocks;
           `[B, H, nK, D]` otherwise (one per block and channel; of INT8 the blocks of `scale_n` keys share one)
    mean   fp32 `[B, H, nK, D]` in natural units, zeros when means are off
    """
    length = v.shape[-2]
    tiles, sizes = blocks(v, BLOCK), block_sizes(length, BLOCK, v.device)[:, None]
    valid = torch.arange(BLOCK, device=v.device)[:, None] < sizes[..., None]
    means = means and numerics.mean != "none"
    mean = tree_sum(tiles, -2) / sizes if means else torch.zeros_like(tiles[..., 0, :])
    residual = torch.where(valid, tiles - mean[..., None, :], 0.0)
    if numerics.mean == "plain":  # the paper keeps one 16-bit vector a block
        mean = mean.bfloat16().float()

    micro = None
    if numerics.pv == "none":
        codes, scale, decoded = residual, torch.ones_like(mean), residual
    else:
        amax = residual.abs().amax(-2)
        by_channel = numerics.pv in ("e4m3", "nvfp4")
        if by_channel:
            amax = amax.amax(-2)
        elif numerics.pv == "int8":
            amax = shared(amax, scale_n // BLOCK)
        inverse, scale = reciprocal_scale(amax, value_max(numerics.pv, numerics.half_sums, numerics.four_over_six))
        per_element = (inverse[..., None, :], scale[..., None, :]) if by_channel else (inverse, scale)
        scaled = residual * per_element[0][..., None, :]
        if numerics.pv == "nvfp4":
            codes, micro = encode_nvfp4(scaled.mT.contiguous(), numerics.four_over_six)
            decoded, codes = decode(codes, micro, "nvfp4").mT, codes.mT
            micro = micro.transpose(-3, -2).flatten(-2)[..., : -(-length // 16)]
        else:
            codes = encode(scaled, numerics.pv)
            decoded = decode(codes, None, numerics.pv)
        decoded = decoded * per_element[1][..., None, :]
    if means and numerics.mean == "corrected":
        mean = mean + tree_sum(residual - decoded, -2) / sizes
    return codes.flatten(-3, -2)[..., :length, :], micro, scale, mean
