"""torch custom ops of the preparation, one per stage and never per arch: `torch.ops.vc_attention.*`.

All are functional: they return new tensors, never write an input, run on the current stream of the input's device and
work under torch.compile, on fake tensors and inside a CUDA graph. Shapes and dtypes are those of csrc/README.md.

v_format is "e4m3" or "int8", whose scales `shared_tiles` neighbouring tiles share. A perm of None keeps the sequence
order. When `prepare_k` sorts, its order takes the place of perm for V; `prepare_k_step` is for keys of which those of
`shared_tiles` tiles share a scale. `half_sums` as of `Numerics`, of E4M3 values.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import stages
from .errors import ParameterError
from .reference.formats import value_max
from .stages import TILE, tiles

NAMESPACE = "vc_attention"
V_FORMATS = ("e4m3", "int8")
MEAN_GROUP = 32  # tiles that one image of block means serves

# A library of our own, kept alive with the module. Under ComfyUI this file can be imported under several names: whoever
# comes first defines an op, the others find it.
_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def register(schema: str, implementation, fake) -> None:
    """Define `vc_attention::<schema>` for CUDA unless it exists: `implementation` runs it, `fake` gives its outputs.

    On CPU tensors it raises ParameterError.
    """
    name = schema.split("(")[0]
    if hasattr(getattr(torch.ops, NAMESPACE), name):
        return

    def run(*args):
        with torch.cuda.device(args[0].device):
            return implementation(*args)

    def refuse(*args):
        raise ParameterError(f"tensors of {name}", "on an NVIDIA GPU", "cpu", "use vc_attention.reference")

    _library.define(schema)
    _library.impl(name, run, "CUDA")
    _library.impl(name, refuse, "CPU")
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=_library)


def empty(like: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Uninitialised `shape` on like's device."""
    return torch.empty(shape, dtype=dtype, device=like.device)


def check_perm(perm: Tensor | None, x: Tensor) -> None:
    """Raises ParameterError unless perm is None or int32 `[B, H, N]` of x `[B, H, N, D]`."""
    if perm is None:
        return
    if perm.shape != x.shape[:3] or perm.dtype != torch.int32 or perm.device != x.device or not perm.is_contiguous():
        got = (tuple(perm.shape), perm.dtype, perm.device, "contiguous" if perm.is_contiguous() else "strided")
        raise ParameterError(
            "perm", f"contiguous int32 {tuple(x.shape[:3])} on {x.device}", got, "group this shape again"
        )


# --- channel statistics: mean of k f32 [B,H,D], factor f32 [B,H,2,D] for q and for k ----------------------------------


def _stats_outputs(q: Tensor, k: Tensor, max_blocks: int, balance: bool) -> tuple[Tensor, Tensor]:
    batch, heads, _, head_dim = k.shape
    return empty(k, batch, heads, head_dim), empty(k, batch, heads, 2, head_dim)


def _channel_stats(q: Tensor, k: Tensor, max_blocks: int, balance: bool) -> tuple[Tensor, Tensor]:
    stages.check("q", q)
    stages.check("k", k)
    if q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3] or q.device != k.device:
        got = (tuple(q.shape), q.device)
        raise ParameterError("q", f"heads and channels of k, {tuple(k.shape)} on {k.device}", got, "align them")
    outputs = _stats_outputs(q, k, max_blocks, balance)
    stages.channel_stats(q, k, max_blocks, balance, *outputs)
    return outputs


def check_stats(x: Tensor, **stats: Tensor) -> None:
    """Raises ParameterError unless `mean` and `factor` are those of `channel_stats` for x `[B, H, N, D]`."""
    for name, tensor in stats.items():
        shape = (*x.shape[:2], 2, x.shape[3]) if name == "factor" else (*x.shape[:2], x.shape[3])
        if tensor.shape != shape or tensor.dtype != torch.float32 or not tensor.is_contiguous():
            got = (tuple(tensor.shape), tensor.dtype)
            raise ParameterError(name, f"contiguous fp32 {shape}", got, "take it from channel_stats")


# --- q: codes u8 [B,H,nQ,128,D], scale f32 [B,H,nQ*128] -------------------------------------------------------------


def _q_outputs(q: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    batch, heads, seqlen, head_dim = q.shape
    count = tiles(seqlen)
    return empty(q, batch, heads, count, TILE, head_dim, dtype=torch.uint8), empty(q, batch, heads, count * TILE)


def _prepare_q(q: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    stages.check("q", q)
    check_stats(q, factor=factor)
    outputs = _q_outputs(q, factor)
    stages.prepare_q(q, factor, *outputs)
    return outputs


# --- k: codes u8 [B,H,nK,128,D], scale f32 [B,H,nK,4]; of `prepare_k` order i32 [B,H,N], or [B,H,0] when not sorted ---


def _k_outputs(
    k: Tensor, perm: Tensor | None, mean: Tensor, factor: Tensor, sort: bool, lane_keys: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, seqlen, head_dim = k.shape
    count = tiles(seqlen)
    codes = empty(k, batch, heads, count, TILE, head_dim, dtype=torch.uint8)
    order = empty(k, batch, heads, seqlen if sort else 0, dtype=torch.int32)
    return codes, empty(k, batch, heads, count, 4), order


def _prepare_k(
    k: Tensor, perm: Tensor | None, mean: Tensor, factor: Tensor, sort: bool, lane_keys: int = 4
) -> tuple[Tensor, Tensor, Tensor]:
    stages.check("k", k)
    check_perm(perm, k)
    check_stats(k, mean=mean, factor=factor)
    if lane_keys not in (4, 8):
        raise ParameterError("lane_keys", "4 or 8", lane_keys, "take Numerics.lane_keys")
    codes, scale, order = _k_outputs(k, perm, mean, factor, sort)
    stages.prepare_k(k, perm, mean, factor, lane_keys, codes, scale, order if sort else None)
    return codes, scale, order


def _k_step_outputs(
    k: Tensor, perm: Tensor | None, mean: Tensor, factor: Tensor, shared_tiles: int
) -> tuple[Tensor, Tensor]:
    return _k_outputs(k, perm, mean, factor, False)[:2]


def _prepare_k_step(
    k: Tensor, perm: Tensor | None, mean: Tensor, factor: Tensor, shared_tiles: int
) -> tuple[Tensor, Tensor]:
    stages.check("k", k)
    check_perm(perm, k)
    check_stats(k, mean=mean, factor=factor)
    check_shared_tiles(shared_tiles)
    outputs = _k_step_outputs(k, perm, mean, factor, shared_tiles)
    stages.prepare_k_step(k, perm, mean, factor, shared_tiles, *outputs)
    return outputs


def check_shared_tiles(shared_tiles: int) -> None:
    """Raises ParameterError unless so many neighbouring tiles can share a scale."""
    if shared_tiles not in (1, 2):
        raise ParameterError("shared_tiles", "1 or 2", shared_tiles, "take block_n / 128 of the attention kernel")


# --- v: codes u8 [B,H,nK,D,128], scale f32 [B,H,D] or [B,H,nK,D], mean f32 [B,H,ceil(nK/32) or 0,D,32] ---------


def _v_outputs(
    v: Tensor, perm: Tensor | None, v_format: str, means: bool, shared_tiles: int, half_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, seqlen, head_dim = v.shape
    count = tiles(seqlen)
    scale = empty(v, batch, heads, head_dim) if v_format == "e4m3" else empty(v, batch, heads, count, head_dim)
    codes = empty(v, batch, heads, count, head_dim, TILE, dtype=torch.uint8)
    groups = -(-count // MEAN_GROUP) if means else 0
    return codes, scale, empty(v, batch, heads, groups, head_dim, MEAN_GROUP)


def _prepare_v(
    v: Tensor, perm: Tensor | None, v_format: str, means: bool, shared_tiles: int, half_sums: bool
) -> tuple[Tensor, Tensor, Tensor]:
    stages.check("v", v)
    check_perm(perm, v)
    if v_format not in V_FORMATS:
        raise ParameterError("v_format", f"one of {', '.join(V_FORMATS)}", v_format, "choose one of these")
    check_shared_tiles(shared_tiles)
    outputs = _v_outputs(v, perm, v_format, means, shared_tiles, half_sums)
    stages.prepare_v(v, perm, v_format, means, shared_tiles, value_max(v_format, half_sums), *outputs)
    return outputs


# --- group: centroids i8 [B,H,C,D], step f32 [B,H], rank i32 [B,H,C], perm i32 [B,H,N] ------------------------------


def _group_outputs(
    v: Tensor, clusters: int, iterations: int, sample_stride: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, seqlen, head_dim = v.shape
    return (
        empty(v, batch, heads, clusters, head_dim, dtype=torch.int8),
        empty(v, batch, heads),
        empty(v, batch, heads, clusters, dtype=torch.int32),
        empty(v, batch, heads, seqlen, dtype=torch.int32),
    )


def _group(v: Tensor, clusters: int, iterations: int, sample_stride: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stages.check("v", v)
    most = min(stages.MAX_CLUSTERS, -(-v.shape[2] // sample_stride))
    if not 1 <= clusters <= most:
        raise ParameterError("clusters", f"within 1..{most} (512, one per training token)", clusters, "take fewer")
    centroids, step, rank, perm = _group_outputs(v, clusters, iterations, sample_stride)
    stages.train(v, iterations, sample_stride, centroids, step)
    stages.chain(centroids, rank)
    stages.assign_and_sort(v, centroids, step, rank, perm)
    return centroids, step, rank, perm


def _assign_output(v: Tensor, centroids: Tensor, step: Tensor, rank: Tensor) -> Tensor:
    return empty(v, *v.shape[:3], dtype=torch.int32)


def _assign(v: Tensor, centroids: Tensor, step: Tensor, rank: Tensor) -> Tensor:
    stages.check("v", v)
    expected = (*v.shape[:2], centroids.shape[-2], v.shape[3])
    if centroids.shape != expected or centroids.shape[-2] > stages.MAX_CLUSTERS or rank.shape != expected[:3]:
        raise ParameterError("centroids", f"those of v, {expected}", tuple(centroids.shape), "group this shape again")
    perm = _assign_output(v, centroids, step, rank)
    stages.assign_and_sort(v, centroids.contiguous(), step.contiguous(), rank.contiguous(), perm)
    return perm


register(
    "channel_stats(Tensor q, Tensor k, int max_blocks, bool balance) -> (Tensor, Tensor)",
    _channel_stats,
    _stats_outputs,
)
register("prepare_q(Tensor q, Tensor factor) -> (Tensor, Tensor)", _prepare_q, _q_outputs)
register(
    "prepare_k(Tensor k, Tensor? perm, Tensor mean, Tensor factor, bool sort, int lane_keys=4) "
    "-> (Tensor, Tensor, Tensor)",
    _prepare_k,
    _k_outputs,
)
register(
    "prepare_k_step(Tensor k, Tensor? perm, Tensor mean, Tensor factor, int shared_tiles) -> (Tensor, Tensor)",
    _prepare_k_step,
    _k_step_outputs,
)
register(
    "prepare_v(Tensor v, Tensor? perm, str v_format, bool means, int shared_tiles, bool half_sums) "
    "-> (Tensor, Tensor, Tensor)",
    _prepare_v,
    _v_outputs,
)
register(
    "group(Tensor v, int clusters, int iterations, int sample_stride) -> (Tensor, Tensor, Tensor, Tensor)",
    _group,
    _group_outputs,
)
register("assign(Tensor v, Tensor centroids, Tensor step, Tensor rank) -> Tensor", _assign, _assign_output)
