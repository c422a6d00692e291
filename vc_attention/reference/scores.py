"""Q and K: smoothing, balance, rotation, order, quantization.

Scores are `q_scale * k_scale * (q . k) * sm_scale / gain`.
"""

from __future__ import annotations

import torch

from ..config import Numerics
from .arithmetic import TINY, block_sizes, blocks, divide, hadamard, tree_sum
from .formats import encode, encode_nvfp4, qmax, reciprocal_scale
from .values import shared

BLOCK = 128
MOST_BALANCE = 8  # binary orders of magnitude that a channel moves at most
Q_ROWS = {"token": 1, "warp": 32, "block": 128}
K_GROUPS = {"thread": 4, "warp": 2, "block": 1}  # per tile of 128 keys


def sample_sum(x: torch.Tensor, max_blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Channel sums of x `[B, H, N, D]` over every s-th block of 128 tokens in sequence order, and the tokens in them.

    `s = max(1, blocks // max_blocks)`, or 1 when max_blocks is 0. fp32 `[B, H, 1, D]` and a scalar.
    """
    tiles, sizes = blocks(x, BLOCK), block_sizes(x.shape[-2], BLOCK, x.device)
    stride = max(1, len(sizes) // max_blocks) if max_blocks else 1
    return tree_sum(tree_sum(tiles[:, :, ::stride], -2), -2)[:, :, None], sizes[::stride].sum()


def channel_mean(x: torch.Tensor, max_blocks: int) -> torch.Tensor:
    """Channel mean of x `[B, H, N, D]` over the sampled blocks, fp32 `[B, H, 1, D]`.

    Any estimate is legitimate: a vector common to all keys moves every score of a row alike and cancels in the softmax,
    one common to all queries is added again.
    """
    total, rows = sample_sum(x, max_blocks)
    return divide(total, rows)


def balance(q: torch.Tensor, k: torch.Tensor, mean: torch.Tensor | float, max_blocks: int) -> torch.Tensor:
    """Powers of two f, fp32 `[B, H, 1, D]`, for scores of `q f` and `(k - mean) / f`: the product is the same.

    `f^4` is nearest to the ratio of the channel's mean squares, `k - mean` over q, so that both get the same spread and
    no channel takes the resolution of others in Q alone or in K alone. Mean squares come from the sampled blocks; a
    channel where one of them counts as zero keeps its scale, and no factor leaves `2^-8..2^8`.
    """
    squares_q, rows_q = sample_sum(q * q, max_blocks)
    squares_k, rows_k = sample_sum(k * k, max_blocks)
    squares_k = squares_k - sample_sum(k, max_blocks)[0] * mean
    mean_q, mean_k = divide(squares_q, rows_q), divide(squares_k, rows_k)
    octaves = (divide(mean_k, mean_q.clamp(min=TINY)).view(torch.int32) >> 23) - 127  # log2, rounded down
    exponent = ((octaves + 2) >> 2).clamp(-MOST_BALANCE, MOST_BALANCE)
    exponent = torch.where((mean_q < TINY) | (mean_k < TINY), 0, exponent)
    return (exponent + 127 << 23).view(torch.float32)


def q_block_mean(q: torch.Tensor) -> torch.Tensor:
    """Mean of every block of 128 queries, fp32 `[B, H, nQ, D]` (Q smoothing of SageAttention2 and 3)."""
    return tree_sum(blocks(q, BLOCK), -2) / block_sizes(q.shape[-2], BLOCK, q.device)[:, None]


def k_group_of_key(numerics: Numerics, device) -> torch.Tensor:
    """Scale group of each of the 128 keys of a tile, in natural order, int64 `[128]`.

    "thread" is the set of keys that one lane of a quad owns in the score fragment: image row p belongs to group
    `(p >> 1) & 3`, and the key slots of csrc/README.md turn that into `(key >> 2) & 3`, of NVFP4 `(key >> 3) & 3`.
    """
    key, granularity = torch.arange(BLOCK, device=device), numerics.k_granularity
    return key // numerics.lane_keys & 3 if granularity == "thread" else key * K_GROUPS[granularity] // BLOCK


def sorted_keys(k: torch.Tensor, numerics: Numerics) -> torch.Tensor:
    """Order of the keys of rotated k `[B, H, N, D]`, int32 `[B, H, N]`: place i takes row i of this.

    The 128 keys of a tile stay in it. Ascending by the largest magnitude of their rows they fill one scale group after
    the other, so that a large key costs its likes alone their resolution. A ragged last tile keeps its order.
    """
    length = k.shape[-2]
    full = length - length % BLOCK
    size = k.abs().amax(-1)[..., :full].unflatten(-1, (-1, BLOCK)).contiguous()
    key = torch.arange(BLOCK, dtype=torch.int32, device=k.device)
    # The key's own number in the last bits of its magnitude: no two are equal, and one integer comparison tells.
    ascending = ((size.view(torch.int32) & -BLOCK) | key).argsort(-1)
    places = k_group_of_key(numerics, k.device).argsort(stable=True)
    order = torch.arange(length, device=k.device).expand(size.shape[:2] + (length,)).contiguous()
    inside = torch.empty_like(ascending)
    inside[..., places] = ascending
    order[..., :full] = (inside + torch.arange(0, full, BLOCK, device=k.device)[:, None]).flatten(-2)
    return order.int()


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


def quantize_k(k: torch.Tensor, numerics: Numerics, step_n: int | None = None):
    """Permuted, smoothed, rotated k `[B, H, Nk, D]` -> (codes, micro, scale `[B, H, nK, groups]`).

    step_n: keys that share one scale, a multiple of 128, whatever k_granularity says.
    """
    groups = K_GROUPS[numerics.k_granularity]
    group = k_group_of_key(numerics, k.device)
    per_key = blocks(k.abs().amax(-1, keepdim=True), BLOCK)[..., 0]
    amax = torch.stack([per_key[..., group == g].amax(-1) for g in range(groups)], -1)
    if step_n is not None:
        amax = shared(amax.amax(-1, keepdim=True), step_n // BLOCK).expand(amax.shape)
    codes, micro, scale = quantize(k, amax[..., group].flatten(-2)[..., : k.shape[-2], None], numerics)
    # A key of each group; of a step any, and the last ones may be missing.
    first = [0 if step_n else int((group == g).nonzero()[0]) for g in range(groups)]
    return codes, micro, blocks(scale, BLOCK)[..., first, 0]


def rotate(x: torch.Tensor, numerics: Numerics) -> torch.Tensor:
    """The Hadamard transform if the numerics ask for it; its gain D is divided out of the scores."""
    return hadamard(x) if numerics.hadamard else x
