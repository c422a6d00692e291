"""q, k, v -> the operands of an attention kernel, on the GPU; equal to `vc_attention.reference` to the bit."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch

from . import ops, ops_nvfp4, stages
from .config import Action, Grouping, Numerics
from .reference.grouping import carry_out, cluster_count
from .stages import TILE, tiles

# What the kernels are written for; everything else is the reference's.
WRITTEN_FOR = {
    "qk": ("int8", "nvfp4"),
    "pv": (*ops.V_FORMATS, "nvfp4"),
    "smooth_k": (True,),
    "hadamard": (True,),
    "cluster_order": ("chain", "none"),
    "mean": ("corrected", "none"),
}
WRITTEN_FOR_QK = {
    "int8": {"q_granularity": ("token",), "k_granularity": ("thread",), "smooth_q": ("none",)},
    "nvfp4": {"pv": ("nvfp4",), "smooth_q": ("head",), "balance_qk": (False,), "sort_keys": (False,)},
}
WRITTEN_FOR_NVFP4 = {"four_over_six": (True,)}


@dataclass(frozen=True)
class Operands:
    """Operands of one attention call, laid out as csrc/README.md says; nQ and nK count tiles of 128 rows."""

    q_codes: torch.Tensor  # u8  [B, H, nQ, 128, D] tile images
    q_scale: torch.Tensor  # f32 [B, H, nQ * 128]
    k_codes: torch.Tensor  # u8  [B, H, nK, 128, D] tile images
    k_scale: torch.Tensor  # f32 [B, H, nK, 4]
    v_codes: torch.Tensor  # u8  [B, H, nK, D, 128] tile images
    v_scale: torch.Tensor  # f32 [B, H, D] for E4M3, [B, H, nK, D] for INT8
    v_mean: torch.Tensor  # f32 [B, H, ceil(nK / 32), D, 32] images; [B, H, 0, D, 32] when means are off
    seqlen_q: int
    seqlen_k: int
    # Of NVFP4 operands, else None; see csrc/README.md.
    q_micro: torch.Tensor | None = None
    k_micro: torch.Tensor | None = None
    k_bias: torch.Tensor | None = None
    v_micro: torch.Tensor | None = None

    @property
    def nbytes(self) -> int:
        """Bytes held on the device."""
        tensors = [value for field in fields(self) if isinstance(value := getattr(self, field.name), torch.Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def unsupported(numerics: Numerics) -> list[str]:
    """Why the preparation kernels cannot make these operands, one sentence each; empty when they can."""
    written_for = WRITTEN_FOR | WRITTEN_FOR_QK.get(numerics.qk, {})
    if "nvfp4" in (numerics.qk, numerics.pv):
        written_for |= WRITTEN_FOR_NVFP4
    return [
        f"{name}={getattr(numerics, name)!r} has no preparation kernel, {' and '.join(map(repr, allowed))} have"
        for name, allowed in written_for.items()
        if getattr(numerics, name) not in allowed
    ]


def _narrow(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16() if x.dtype == torch.float32 else x


def group(v: torch.Tensor, numerics: Numerics, action: Action, kept: Grouping | None = None) -> Grouping | None:
    """The grouping that `action` asks for, from values v `[B, H, Nk, D]`; as `reference.group`, on the GPU (Eq. 3)."""

    def assign_to(kept: Grouping) -> torch.Tensor:
        return torch.ops.vc_attention.assign(_narrow(v), kept.centroids, kept.step, kept.rank)

    def group_anew() -> Grouping:
        clusters = cluster_count(v.shape[2], numerics)
        return Grouping(
            *torch.ops.vc_attention.group(_narrow(v), clusters, numerics.iterations, numerics.sample_stride)
        )

    return carry_out(action, numerics, kept, assign_to, group_anew)


def prepare(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, numerics: Numerics, perm: torch.Tensor | None, means: bool,
    scale_n: int, packed: bool = False,
) -> Operands:  # fmt: skip
    """Operands of one call; q `[B, H, Nq, D]`, k and v `[B, H, Nk, D]`, perm int32 `[B, H, Nk]` or None.

    `means` False leaves the block means out (Action.PLAIN). `scale_n`: keys that share an INT8 value scale, 128 or
    256, `block_n` of the attention kernel; `packed`: and an INT8 key scale, `packed` of the kernel. Inputs of any
    strides are read where they lie and never written; fp32 is rounded to bf16 first. Extra memory is at most
    `extra_bytes`.
    """
    means = means and numerics.mean != "none"
    seqlen_q, seqlen_k = q.shape[2], k.shape[2]
    q, k, shared_tiles = _narrow(q), _narrow(k), max(1, scale_n // TILE)
    if numerics.qk == "nvfp4":
        made, order = _prepare_qk_nvfp4(q, k, numerics, perm), perm
    else:
        made, order = _prepare_qk_int8(q, k, numerics, perm, shared_tiles if packed else 0)
    del q, k
    run = torch.ops.vc_attention
    if numerics.pv == "nvfp4":
        made |= _named("v", run.prepare_v_nvfp4(_narrow(v), order, means))
    else:
        made |= _named("v", run.prepare_v(_narrow(v), order, numerics.pv, means, shared_tiles, numerics.half_sums))
    return Operands(**made, seqlen_q=seqlen_q, seqlen_k=seqlen_k)


def _named(operand: str, tensors: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """An op's results by the names of `Operands`: codes, scale, then what only that operand or format has."""
    rest = {"q": ("micro",), "k": ("micro", "bias"), "v": ("mean", "micro")}[operand]
    return {f"{operand}_{name}": tensor for name, tensor in zip(("codes", "scale", *rest), tensors, strict=False)}


def _prepare_qk_int8(
    q: torch.Tensor, k: torch.Tensor, numerics: Numerics, perm: torch.Tensor | None, shared_tiles: int
) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
    """Operands by name, and the order of the keys, int32 `[B, H, Nk]` or None.

    shared_tiles: tiles of keys with one scale, or 0: a scale for every thread of a tile.
    """
    run = torch.ops.vc_attention
    mean, factor = run.channel_stats(q, k, numerics.k_mean_blocks, numerics.balance_qk)
    made = _named("q", run.prepare_q(q, factor))
    del q
    if shared_tiles:
        return made | _named("k", run.prepare_k_step(k, perm, mean, factor, shared_tiles)), perm
    *prepared_k, order = run.prepare_k(k, perm, mean, factor, numerics.sort_keys, numerics.lane_keys)
    return made | _named("k", prepared_k), order if numerics.sort_keys else perm


def _prepare_qk_nvfp4(
    q: torch.Tensor, k: torch.Tensor, numerics: Numerics, perm: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """Operands by name."""
    run = torch.ops.vc_attention
    mean, _ = run.channel_stats(q, k, numerics.k_mean_blocks, False)
    center, amax = run.q_center(q, numerics.k_mean_blocks)
    made = _named("q", run.prepare_q_nvfp4(q, center, amax))
    del q
    return made | _named("k", run.prepare_k_nvfp4(k, perm, mean, center, amax))


def operand_bytes(batch: int, heads: int, seqlen_q: int, seqlen_k: int, head_dim: int, numerics: Numerics) -> int:
    """Bytes of the `Operands` of one call with block means."""
    nvfp4_row = head_dim // 2 + head_dim // 16  # elements and micro scales
    if numerics.qk == "nvfp4":
        q = TILE * (2 * nvfp4_row + 4)
        k = (TILE + ops_nvfp4.MEAN_ROWS) * nvfp4_row + 4 * 4 + TILE * 4
    else:
        q, k = TILE * (head_dim + 4), TILE * head_dim + 4 * 4
    v = TILE * (nvfp4_row if numerics.pv == "nvfp4" else head_dim)
    v_mean = -(-tiles(seqlen_k) // ops.MEAN_GROUP) * ops.MEAN_GROUP * head_dim * 4
    v_scale = head_dim * 4 * (tiles(seqlen_k) if numerics.pv == "int8" else 1)
    return batch * heads * (tiles(seqlen_q) * q + tiles(seqlen_k) * (k + v) + v_mean + v_scale)


def extra_bytes(
    batch: int, heads: int, seqlen_q: int, seqlen_k: int, head_dim: int, numerics: Numerics,
    dtype: torch.dtype = torch.bfloat16,
) -> int:  # fmt: skip
    """Most device memory that `group` and `prepare` of one call hold beside q, k and v, results included.

    Grouping and quantization do not overlap, so the larger of their scratch counts. torch's allocator rounds each of
    the at most 24 tensors up, by 2 MiB for large ones; that is included.
    """
    stride, clusters = numerics.sample_stride, cluster_count(seqlen_k, numerics)
    sampled = sum(stages.sampled_blocks(n, numerics.k_mean_blocks)[1] for n in (seqlen_q, seqlen_k))
    rows, chunks = -(-seqlen_k // stride), -(-seqlen_k // stages.ASSIGN_CHUNK)
    grouping = 4 * seqlen_k + clusters * (head_dim + 4) + 4
    training = 4 * tiles(rows) + 4 * rows  # and what sorting `rows` tokens takes, which is less than sorting all
    sorting = 2 * seqlen_k + 4 * chunks * clusters
    statistics = 4 * head_dim * (2 * sampled + 3)
    smoothing = 4 * head_dim * (tiles(seqlen_k) + 1) + 4 * seqlen_k  # and the order of the keys
    cast = 2 * (seqlen_q + seqlen_k) * head_dim if dtype == torch.float32 else 0
    operands = operand_bytes(1, 1, seqlen_q, seqlen_k, head_dim, numerics)
    per_head = grouping + max(training + sorting, operands + statistics + smoothing) + cast
    return batch * heads * per_head + 24 * (2 << 20)
