"""Q and K: smoothing, rotation, quantization. Scores are `q_scale * k_scale * (q . k) * sm_scale / gain`."""

from __future__ import annotations

import torch

from ..config import Numerics
from .arithmetic import block_sizes, blocks, hadamard, tree_sum
from .formats import encode, encode_nvfp4, qmax, reciprocal_scale

BLOCK = 128
Q_ROWS = {"token": 1, "warp": 32, "block": 128}
K_GROUPS = {"thread": 4, "warp": 2, "block": 1}  # per tile of 128 keys


def k_mean(k: torch.Tensor, max_blocks: int) -> torch.Tensor:
    """Channel mean of k `[B, H, N, D]`, fp32 `[B, H, 1, D]`, over every s-th block of 128 tokens in sequence order.

    `s = max(1, blocks // max_blocks)`, or 1 when max_blocks is 0. A vector common to all keys moves every score of a
    row alike and cancels in the softmax, so any estimate of the mean is legitimate.
    """
    tiles, sizes = blocks(k, BLOCK), block_sizes(k.shape[-2], BLOCK, k.device)
    stride = max(1, len(sizes) // max_blocks) if max_blocks else 1
    total = tree_sum(tree_sum(tiles[:, :, ::stride], -2), -2)
    return (total / sizes[::stride].sum())[:, :, None]


def q_block_mean(q: torch.Tensor) -> torch.Tensor:
    """Mean of every block of 128 queries, fp32 `[B, H, nQ, D]` (Q smoothing of SageAttention2 and 3)."""
    return tree_sum(blocks(q, BLOCK), -2) / block_sizes(q.shape[-2], BLOCK, q.device)[:, None]


def k_group_of_key(granularity: str, device) -> torch.Tensor:
    """Scale group of each of the 128 keys of a tile, in natural order, int64 `[128]`.

    "thread" is the set of keys that one lane of a quad owns in the score fragment: image row p belongs to group
    `(p >> 1) & 3`, and the key slots of csrc/README.md turn that into `(key >> 2) & 3`.
    """
    key = torch.arange(BLOCK, device=device)
    return (key >> 2) & 3 if granularity == "thread" else key * K_GROUPS[granularity] // BLOCK


def quantize(x: torch.Tensor, amax: torch.Tensor, numerics: Numerics):
    """(codes, micro scales or None, fp32 scale) of x given the amax of every element's group, broadcastable to x."""
    if numerics.qk == "none":
        return x, None, torch.ones_like(amax)
    inverse, scale = reciprocal_scale(amax, qmax(numerics.qk, numerics.four_over_six))
    if numerics.qk == "nvfp4":
        return *encode_nvfp4(x * inverse, numerics.four_over_six), scale
    return encode(x * inverse, numerics.qk), None, scale


def quantize_q(q: torch.Tensor, numerics: Numerics):
    """Rotated q `[B, H, Nq, D]` -> (codes, micro, scale `[B, H, Nq]`)."""
    rows = Q_ROWS[numerics.q_granularity]
    amax = blocks(q.abs(), rows).amax((-1, -2)).repeat_interleave(rows, -1)[..., : q.shape[-2], None]
    codes, micro, scale = quantize(q, amax, numerics)
    return codes, micro, scale[..., 0]


def quantize_k(k: torch.Tensor, numerics: Numerics):
    """Permuted, smoothed, rotated k `[B, H, Nk, D]` -> (codes, micro, scale `[B, H, nK, groups]`)."""
    groups = K_GROUPS[numerics.k_granularity]
    group = k_group_of_key(numerics.k_granularity, k.device)
    per_key = blocks(k.abs().amax(-1, keepdim=True), BLOCK)[..., 0]
    amax = torch.stack([per_key[..., group == g].amax(-1) for g in range(groups)], -1)
    codes, micro, scale = quantize(k, amax[..., group].flatten(-2)[..., : k.shape[-2], None], numerics)
    first = [int((group == g).nonzero()[0]) for g in range(groups)]
    return codes, micro, blocks(scale, BLOCK)[..., first, 0]


def rotate(x: torch.Tensor, numerics: Numerics) -> torch.Tensor:
    """The Hadamard transform if the numerics ask for it; its gain D is divided out of the scores."""
    return hadamard(x) if numerics.hadamard else x
