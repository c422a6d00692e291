"""torch custom ops that make NVFP4 operands; functional like those of `ops`, shapes as in csrc/README.md.

center is fp32 `[B, H, 2, D]`: the mean of a head's queries, and rotated. amax, fp32 `[B, H]`, is the largest magnitude
of the rotated queries less that mean, and of the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import stages
from .errors import ParameterError
from .ops import MEAN_GROUP, check_perm, check_stats, empty, register
from .stages import TILE, tiles

MEAN_ROWS = 8  # rows of a K tile beyond its keys


def _check_center(x: Tensor, center: Tensor, amax: Tensor) -> None:
    for name, tensor, shape in (("center", center, (*x.shape[:2], 2, x.shape[3])), ("amax", amax, x.shape[:2])):
        if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            got = (tuple(tensor.shape), tensor.dtype)
            raise ParameterError(name, f"contiguous fp32 {tuple(shape)}", got, "take it from q_center")


def _codes_and_micro(x: Tensor, *rows: int) -> tuple[Tensor, Tensor]:
    """Images of elements and micro scales, `rows` each of x's channels in a tile."""
    batch, heads, seqlen, head_dim = x.shape
    shape = (batch, heads, tiles(seqlen), *rows)
    return empty(x, *shape, head_dim // 2, dtype=torch.uint8), empty(x, *shape, head_dim // 16, dtype=torch.uint8)


# --- q: center and amax; codes u8 [B,H,nQ,2,128,D/2], scale f32 [B,H,nQ*128], micro u8 [B,H,nQ,2,128,D/16] -----------


def _center_outputs(q: Tensor, max_blocks: int) -> tuple[Tensor, Tensor]:
    batch, heads, _, head_dim = q.shape
    return empty(q, batch, heads, 2, head_dim), empty(q, batch, heads)


def _q_center(q: Tensor, max_blocks: int) -> tuple[Tensor, Tensor]:
    stages.check("q", q)
    outputs = _center_outputs(q, max_blocks)
    stages.q_center(q, max_blocks, *outputs)
    return outputs


def _q_outputs(q: Tensor, center: Tensor, amax: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    codes, micro = _codes_and_micro(q, 2, TILE)
    return codes, empty(q, *q.shape[:2], tiles(q.shape[2]) * TILE), micro


def _prepare_q(q: Tensor, center: Tensor, amax: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    stages.check("q", q)
    _check_center(q, center, amax)
    outputs = _q_outputs(q, center, amax)
    stages.prepare_q_nvfp4(q, center, amax, *outputs)
    return outputs


# --- k: codes u8 [B,H,nK,136,D/2], scale f32 [B,H,nK,4], micro u8 [B,H,nK,136,D/16], bias f32 [B,H,nK,128] -----------


def _k_outputs(
    k: Tensor, perm: Tensor | None, mean: Tensor, center: Tensor, amax: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (*k.shape[:2], tiles(k.shape[2]))
    codes, micro = _codes_and_micro(k, TILE + MEAN_ROWS)
    return codes, empty(k, *shape, 4), micro, empty(k, *shape, TILE)


def _prepare_k(
    k: Tensor, perm: Tensor | None, mean: Tensor, center: Tensor, amax: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stages.check("k", k)
    check_perm(perm, k)
    check_stats(k, mean=mean)
    _check_center(k, center, amax)
    outputs = _k_outputs(k, perm, mean, center, amax)
    stages.prepare_k_nvfp4(k, perm, mean, center, amax, *outputs)
    return outputs


# --- v: codes u8 [B,H,nK,D,64], scale f32 [B,H,D], mean f32 [B,H,ceil(nK/32) or 0,D,32], micro u8 [B,H,nK,D,8] -------


def _v_outputs(v: Tensor, perm: Tensor | None, means: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, seqlen, head_dim = v.shape
    count = tiles(seqlen)
    codes = empty(v, batch, heads, count, head_dim, TILE // 2, dtype=torch.uint8)
    mean = empty(v, batch, heads, -(-count // MEAN_GROUP) if means else 0, head_dim, MEAN_GROUP)
    micro = empty(v, batch, heads, count, head_dim, TILE // 16, dtype=torch.uint8)
    return codes, empty(v, batch, heads, head_dim), mean, micro


def _prepare_v(v: Tensor, perm: Tensor | None, means: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stages.check("v", v)
    check_perm(perm, v)
    outputs = _v_outputs(v, perm, means)
    stages.prepare_v(v, perm, "nvfp4", means, 1, 0.0, *outputs)
    return outputs


register("q_center(Tensor q, int max_blocks) -> (Tensor, Tensor)", _q_center, _center_outputs)
register("prepare_q_nvfp4(Tensor q, Tensor center, Tensor amax) -> (Tensor, Tensor, Tensor)", _prepare_q, _q_outputs)
register(
    "prepare_k_nvfp4(Tensor k, Tensor? perm, Tensor mean, Tensor center, Tensor amax) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _prepare_k,
    _k_outputs,
)
register(
    "prepare_v_nvfp4(Tensor v, Tensor? perm, bool means) -> (Tensor, Tensor, Tensor, Tensor)", _prepare_v, _v_outputs
)
