"""q, k, v -> the low-bit operands of the attention loop (appendix B)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..config import Numerics
from .arithmetic import clean
from .score_means import quantize_without_means
from .scores import balance, channel_mean, q_block_mean, quantize_k, quantize_q, rotate, sorted_keys
from .values import quantize_v


@dataclass(frozen=True)
class Operands:
    """Operands in natural order: row i of q is query i, row i of k and v is key perm[i], or
    the i-th of its tile when keys are sorted. nK = ceil(Nk/128).

    Codes are int8 for INT8, bytes for E4M3, nibbles 0..15 one a byte for NVFP4, fp32 for "none". `micro` tensors are
    the E4M3 scales of NVFP4 groups of 16, else None. All scales and means are fp32. `layout.images` gives the
    kernels' form.
    """

    q_codes: torch.Tensor  # [B, H, Nq, D]
    q_micro: torch.Tensor | None  # [B, H, Nq, D/16]
    q_scale: torch.Tensor  # [B, H, Nq]
    k_codes: torch.Tensor  # [B, H, Nk, D]
    k_micro: torch.Tensor | None  # [B, H, Nk, D/16]
    k_scale: torch.Tensor  # [B, H, nK, groups]
    v_codes: torch.Tensor  # [B, H, Nk, D]
    v_micro: torch.Tensor | None  # [B, H, D, ceil(Nk/16)]
    v_scale: torch.Tensor  # [B, H, D] for E4M3 and NVFP4, else [B, H, nK, D]
    v_mean: torch.Tensor  # [B, H, nK, D], zeros when means are off
    score_bias: torch.Tensor | None = None  # smooth_q "block": [B, H, nQ, Nk] what it took out of q k^T
    # smooth_q "head", see `score_means`
    q_rest_codes: torch.Tensor | None = None  # [B, H, Nq, D] what the first rounding lost of q, in units of q_scale
    q_rest_micro: torch.Tensor | None = None  # [B, H, Nq, D/16]
    k_mean_codes: torch.Tensor | None = None  # [B, H, nK, 2, D] mean of a tile and what rounding lost of it
    k_mean_micro: torch.Tensor | None = None  # [B, H, nK, 2, D/16]
    k_bias: torch.Tensor | None = None  # [B, H, Nk] product with the mean query, in units of q_scale * k_scale


def permute(x: torch.Tensor, perm: torch.Tensor | None) -> torch.Tensor:
    """Rows of x `[B, H, N, D]` in the order of perm `[B, H, N]` (Eq. 3)."""
    return x if perm is None else x.gather(-2, perm.long()[..., None].expand(x.shape))


def prepare(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    numerics: Numerics,
    perm: torch.Tensor | None,
    means: bool,
    scale_n: int = 128,
    packed: bool = False,
) -> Operands:
    """Operands of one call; q `[B, H, Nq, D]`, k and v `[B, H, Nk, D]`, perm int32 `[B, H, Nk]` or None.

    `means` False leaves the block means out whatever the numerics say (Action.PLAIN). `scale_n`: keys
    that share an INT8 value scale, a multiple of 128, as the kernel sums them before it scales. `packed`: they share a
    key scale, too, and keep their order, as INT8 scores of 16 bits need it (`probability.expcast_packed`).
    """
    q, k, v = clean(q), clean(k), clean(v)
    mean = channel_mean(k, numerics.k_mean_blocks) if numerics.smooth_k else torch.zeros_like(k[:, :, :1])
    if numerics.balance_qk:
        factor = balance(q, k, mean, numerics.k_mean_blocks)
        q, k = q * factor, (k - mean) * (1.0 / factor)
    else:
        k = k - mean
    q_mean = smoothing_mean(q, numerics)
    k, v = rotate(permute(k, perm), numerics), permute(v, perm)
    if numerics.sort_keys and not packed:
        order = sorted_keys(k, numerics)
        k, v = permute(k, order), permute(v, order)
    values = dict(
        zip(("v_codes", "v_micro", "v_scale", "v_mean"), quantize_v(v, numerics, means, scale_n), strict=True)
    )
    if q_mean is None:
        prepared_k = quantize_k(k, numerics, scale_n if packed else None)
        return Operands(*quantize_q(rotate(q, numerics), numerics), *prepared_k, **values)
    q, q_mean = rotate(q - q_mean, numerics), rotate(q_mean, numerics)
    if numerics.smooth_q == "head":
        return Operands(**quantize_without_means(q, k, q_mean, numerics), **values)
    bias = q_mean[..., ::128, :] @ k.mT
    return Operands(*quantize_q(q, numerics), *quantize_k(k, numerics), **values, score_bias=bias)


def smoothing_mean(q: torch.Tensor, numerics: Numerics) -> torch.Tensor | None:
    """What `Numerics.smooth_q` subtracts from q `[B, H, N, D]`: fp32, one row or N rows, or None."""
    if numerics.smooth_q == "block":
        return q_block_mean(q).repeat_interleave(128, -2)[..., : q.shape[-2], :]
    return channel_mean(q, numerics.k_mean_blocks) if numerics.smooth_q == "head" else None
