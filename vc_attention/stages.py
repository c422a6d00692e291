"""What the preparation stages launch: parameter structs, grids, shared memory. One function per stage, on CUDA tensors.

The structs are those of csrc/smxx/params.cuh. Everything is queued on the current stream of the tensor's device;
nothing synchronises or reads back, and all memory comes from torch, so a CUDA graph can capture any stage.
"""

from __future__ import annotations

import torch

from .errors import ParameterError
from .launch import kernel
from .params import Params

TILE = 128
ASSIGN_THREADS, ASSIGN_CHUNK = 192, 768  # kAssignThreads and kChunkTokens of csrc/smxx/assign.cuh
MAX_CLUSTERS = 512
DTYPES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
HEAD_DIMS = (64, 128)

VIEW = Params(
    data="ptr", stride_batch="i64", stride_head="i64", stride_token="i64", stride_channel="i64",
    heads="i32", vector="i32",
)  # fmt: skip
SAMPLE_SUMS = Params(x=VIEW, sums="ptr", squares="ptr", seqlen="i32", block_stride="i32")
CHANNEL_STATS = Params(
    k_sums="ptr", k_squares="ptr", q_squares="ptr", k_mean="ptr", factor="ptr",
    sampled_q="i32", sampled_k="i32", rows_q="f32", rows_k="f32",
)  # fmt: skip
PREPARE_Q = Params(q=VIEW, factor="ptr", codes="ptr", scale="ptr", seqlen="i32")
PREPARE_K = Params(
    k=VIEW, perm="ptr", mean="ptr", factor="ptr", codes="ptr", scale="ptr", order="ptr", seqlen="i32", lane_keys="i32"
)
PREPARE_K_STEP = Params(k=VIEW, perm="ptr", mean="ptr", factor="ptr", codes="ptr", scale="ptr", seqlen="i32")
Q_CENTER = Params(sums="ptr", center="ptr", amax="ptr", sampled="i32", rows="f32")
PREPARE_Q_NVFP4 = Params(q=VIEW, center="ptr", amax="ptr", codes="ptr", micro="ptr", scale="ptr", seqlen="i32")
PREPARE_K_NVFP4 = Params(
    k=VIEW, perm="ptr", mean="ptr", q_center="ptr", q_amax="ptr", codes="ptr", micro="ptr", scale="ptr", bias="ptr",
    seqlen="i32",
)  # fmt: skip
PREPARE_V = Params(
    v=VIEW, perm="ptr", amax="ptr", codes="ptr", micro="ptr", scale="ptr", block_mean="ptr", mean="ptr",
    seqlen="i32", means="i32", shared_tiles="i32", value_max="f32",
)  # fmt: skip
KMEANS_MOMENTS = Params(v=VIEW, sums="ptr", rows="i32", token_stride="i32")
KMEANS_INIT = Params(
    v=VIEW, sums="ptr", step="ptr", centroids="ptr", rows="i32", token_stride="i32", clusters="i32", head_dim="i32"
)
KMEANS_ASSIGN = Params(
    v=VIEW, step="ptr", centroids="ptr", rank="ptr", labels="ptr", histogram="ptr",
    rows="i32", token_stride="i32", clusters="i32",
)  # fmt: skip
KMEANS_UPDATE = Params(
    v=VIEW, step="ptr", perm="ptr", offsets="ptr", centroids="ptr", rows="i32", token_stride="i32", clusters="i32"
)
KMEANS_CHAIN = Params(centroids="ptr", rank="ptr", clusters="i32")
SORT = Params(labels="ptr", offsets="ptr", perm="ptr", seqlen="i32", clusters="i32")


def tiles(seqlen: int) -> int:
    """Number of 128-row tiles that hold `seqlen` rows."""
    return -(-seqlen // TILE)


def sampled_blocks(seqlen: int, max_blocks: int) -> tuple[int, int, int]:
    """(every how many blocks of 128 tokens one is read for channel statistics, how many are, tokens in them)."""
    blocks = tiles(seqlen)
    stride = max(1, blocks // max_blocks) if max_blocks else 1
    sampled = -(-blocks // stride)
    last = (sampled - 1) * stride
    return stride, sampled, (sampled - 1) * TILE + min(TILE, seqlen - last * TILE)


def check(name: str, x: torch.Tensor) -> None:
    """Raises ParameterError unless x is a [B, H, N, D] fp16 or bf16 tensor that the kernels can index."""
    if x.dim() != 4 or 0 in x.shape:
        raise ParameterError(name, "a non-empty [B, H, N, D] tensor", tuple(x.shape), "reshape it")
    if x.dtype not in DTYPES:
        raise ParameterError(f"{name}.dtype", "fp16 or bf16", x.dtype, "cast it, fp32 to bf16")
    if x.shape[-1] not in HEAD_DIMS:
        raise ParameterError(f"{name}.shape[-1] (head_dim)", "64 or 128", x.shape[-1], "use the model's own attention")
    if tiles(x.shape[2]) > 65535:
        raise ParameterError(f"{name}.shape[2] (seqlen)", "at most 8388480", x.shape[2], "split the sequence")


def _view(x: torch.Tensor) -> bytes:
    """How the kernels see x `[B, H, N, D]`. Vector loads need 16-byte rows: odd offsets and strides read by element."""
    strides = x.stride()
    rows = [stride for stride, size in zip(strides[:3], x.shape[:3], strict=True) if size > 1]
    vector = x.data_ptr() % 16 == 0 and strides[3] == 1 and all(stride % 8 == 0 for stride in rows)
    return VIEW.pack(
        data=x, stride_batch=strides[0], stride_head=strides[1], stride_token=strides[2], stride_channel=strides[3],
        heads=x.shape[1], vector=int(vector),
    )  # fmt: skip


def _launch(
    unit: str, name: str, like: torch.Tensor, grid: tuple[int, ...], threads: int, params: bytes, shared: int = 0
):
    grid = (*grid, 1, 1)[:3]
    stream = torch.cuda.current_stream(like.device).cuda_stream
    kernel(unit, name, like.device.index).launch(grid, (threads, 1, 1), shared, stream, params)


def _suffix(x: torch.Tensor) -> str:
    return f"{DTYPES[x.dtype]}_d{x.shape[-1]}"


def _sample_sums(x: torch.Tensor, max_blocks: int) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    """(channel sums and sums of squares of every sampled block, fp32 `[B * H, sampled, D]`; sampled; their tokens)."""
    batch, heads, seqlen, head_dim = x.shape
    stride, sampled, rows = sampled_blocks(seqlen, max_blocks)
    sums, squares = torch.empty(2, batch * heads, sampled, head_dim, device=x.device)
    params = SAMPLE_SUMS.pack(x=_view(x), sums=sums, squares=squares, seqlen=seqlen, block_stride=stride)
    _launch("prepare", f"vc_sample_sums_{_suffix(x)}", x, (batch * heads, sampled), 2 * head_dim, params)
    return sums, squares, sampled, rows


def channel_stats(
    q: torch.Tensor, k: torch.Tensor, max_blocks: int, balance: bool, mean: torch.Tensor, factor: torch.Tensor
) -> None:
    """Fills mean and factor of `ops.channel_stats`."""
    batch, heads, _, head_dim = k.shape
    k_sums, k_squares, sampled_k, rows_k = _sample_sums(k, max_blocks)
    q_squares, sampled_q, rows_q = _sample_sums(q, max_blocks)[1:] if balance else (None, 0, 0)
    params = CHANNEL_STATS.pack(
        k_sums=k_sums, k_squares=k_squares, q_squares=q_squares, k_mean=mean, factor=factor,
        sampled_q=sampled_q, sampled_k=sampled_k, rows_q=rows_q, rows_k=rows_k,
    )  # fmt: skip
    _launch("prepare", "vc_channel_stats", k, (batch * heads,), head_dim, params)


def prepare_q(q: torch.Tensor, factor: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor) -> None:
    """Fills codes and scale of `ops.prepare_q`."""
    batch, heads, seqlen, _ = q.shape
    params = PREPARE_Q.pack(q=_view(q), factor=factor, codes=codes, scale=scale, seqlen=seqlen)
    _launch("prepare", f"vc_prepare_q_{_suffix(q)}", q, (batch * heads, tiles(seqlen)), 128, params)


def prepare_k(
    k: torch.Tensor, perm: torch.Tensor | None, mean: torch.Tensor, factor: torch.Tensor,
    lane_keys: int, codes: torch.Tensor, scale: torch.Tensor, order: torch.Tensor | None,
) -> None:  # fmt: skip
    """Fills codes, scale and order of `ops.prepare_k`."""
    batch, heads, seqlen, _ = k.shape
    params = PREPARE_K.pack(
        k=_view(k), perm=perm, mean=mean, factor=factor, codes=codes, scale=scale, order=order, seqlen=seqlen,
        lane_keys=lane_keys,
    )  # fmt: skip
    _launch("prepare", f"vc_prepare_k_{_suffix(k)}", k, (batch * heads, tiles(seqlen)), 128, params)


def prepare_k_step(
    k: torch.Tensor, perm: torch.Tensor | None, mean: torch.Tensor, factor: torch.Tensor,
    shared_tiles: int, codes: torch.Tensor, scale: torch.Tensor,
) -> None:  # fmt: skip
    """Fills codes and scale of `ops.prepare_k_step`."""
    batch, heads, seqlen, _ = k.shape
    params = PREPARE_K_STEP.pack(
        k=_view(k), perm=perm, mean=mean, factor=factor, codes=codes, scale=scale, seqlen=seqlen
    )
    grid = (batch * heads, -(-tiles(seqlen) // shared_tiles))
    _launch("prepare", f"vc_prepare_k_step_{_suffix(k)}", k, grid, 256 * shared_tiles, params)


def q_center(q: torch.Tensor, max_blocks: int, center: torch.Tensor, amax: torch.Tensor) -> None:
    """Fills center and amax of `ops.q_center`."""
    batch, heads, seqlen, head_dim = q.shape
    sums, _, sampled, rows = _sample_sums(q, max_blocks)
    params = Q_CENTER.pack(sums=sums, center=center, amax=amax, sampled=sampled, rows=rows)
    _launch("prepare_nvfp4", "vc_q_center", q, (batch * heads,), head_dim, params)
    params = PREPARE_Q_NVFP4.pack(
        q=_view(q), center=center, amax=amax, codes=None, micro=None, scale=None, seqlen=seqlen
    )
    _launch("prepare_nvfp4", f"vc_q_amax_{_suffix(q)}", q, (batch * heads, tiles(seqlen)), 128, params)


def prepare_q_nvfp4(
    q: torch.Tensor, center: torch.Tensor, amax: torch.Tensor,
    codes: torch.Tensor, scale: torch.Tensor, micro: torch.Tensor,
) -> None:  # fmt: skip
    """Fills codes, scale and micro of `ops.prepare_q_nvfp4`."""
    batch, heads, seqlen, _ = q.shape
    params = PREPARE_Q_NVFP4.pack(
        q=_view(q), center=center, amax=amax, codes=codes, micro=micro, scale=scale, seqlen=seqlen
    )
    _launch("prepare_nvfp4", f"vc_prepare_q_nvfp4_{_suffix(q)}", q, (batch * heads, tiles(seqlen)), 128, params)


def prepare_k_nvfp4(
    k: torch.Tensor, perm: torch.Tensor | None, mean: torch.Tensor, center: torch.Tensor, amax: torch.Tensor,
    codes: torch.Tensor, scale: torch.Tensor, micro: torch.Tensor, bias: torch.Tensor,
) -> None:  # fmt: skip
    """Fills codes, scale, micro and bias of `ops.prepare_k_nvfp4`."""
    batch, heads, seqlen, _ = k.shape
    params = PREPARE_K_NVFP4.pack(
        k=_view(k), perm=perm, mean=mean, q_center=center, q_amax=amax, codes=codes, micro=micro, scale=scale,
        bias=bias, seqlen=seqlen,
    )  # fmt: skip
    _launch("prepare_nvfp4", f"vc_prepare_k_nvfp4_{_suffix(k)}", k, (batch * heads, tiles(seqlen)), 256, params)


def prepare_v(
    v: torch.Tensor, perm: torch.Tensor | None, pv: str, means: bool, shared_tiles: int, value_max: float,
    codes: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor, micro: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """Fills codes, scale, mean and, of NVFP4, micro of `ops.prepare_v`."""
    batch, heads, seqlen, head_dim = v.shape
    amax = block_mean = None
    if pv != "int8":
        amax = torch.zeros(batch * heads, head_dim, dtype=torch.int32, device=v.device)
        block_mean = torch.empty(batch * heads, tiles(seqlen), head_dim, device=v.device)
    params = PREPARE_V.pack(
        v=_view(v), perm=perm, amax=amax, codes=codes, micro=micro, scale=scale, block_mean=block_mean, mean=mean,
        seqlen=seqlen, means=int(means), shared_tiles=shared_tiles, value_max=value_max,
    )  # fmt: skip
    grid = (batch * heads, tiles(seqlen) if pv != "int8" else -(-tiles(seqlen) // shared_tiles))
    if pv != "int8":
        _launch("prepare", f"vc_v_moments_{_suffix(v)}", v, grid, 2 * head_dim, params)
    unit = "prepare_nvfp4" if pv == "nvfp4" else "prepare"
    _launch(unit, f"vc_v_{pv}_{_suffix(v)}", v, grid, 2 * head_dim, params)


def assign_and_sort(
    v: torch.Tensor, centroids: torch.Tensor, step: torch.Tensor, rank: torch.Tensor | None, perm: torch.Tensor,
    token_stride: int = 1,
) -> torch.Tensor:  # fmt: skip
    """Fills perm int32 `[B, H, rows]`: every token_stride-th token in a stable order by its cluster's rank, or index.

    Returns int32 `[B * H, chunks, C]` whose first chunk says where each cluster begins.
    """
    batch, heads, _, head_dim = v.shape
    rows, clusters = perm.shape[-1], centroids.shape[-2]
    chunks = -(-rows // ASSIGN_CHUNK)
    labels = torch.empty(batch, heads, rows, dtype=torch.int16, device=v.device)
    offsets = torch.empty(batch * heads, chunks, clusters, dtype=torch.int32, device=v.device)
    params = KMEANS_ASSIGN.pack(
        v=_view(v), step=step, centroids=centroids, rank=rank, labels=labels, histogram=offsets,
        rows=rows, token_stride=token_stride, clusters=clusters,
    )  # fmt: skip
    shared = -(-clusters // 8) * 8 * (head_dim + 4) + 4 * clusters
    _launch("group", f"vc_kmeans_assign_{_suffix(v)}", v, (batch * heads, chunks), ASSIGN_THREADS, params, shared)
    params = SORT.pack(labels=labels, offsets=offsets, perm=perm, seqlen=rows, clusters=clusters)
    _launch("group", "vc_sort_offsets", v, (batch * heads,), MAX_CLUSTERS, params)
    shared = ASSIGN_THREADS // 32 * clusters * 4
    _launch("group", "vc_sort_scatter", v, (batch * heads, chunks), ASSIGN_THREADS, params, shared)
    return offsets


def train(v: torch.Tensor, iterations: int, token_stride: int, centroids: torch.Tensor, step: torch.Tensor) -> None:
    """Fills centroids and step: strided start, then Lloyd iterations over every token_stride-th token."""
    batch, heads, seqlen, head_dim = v.shape
    clusters, rows = centroids.shape[-2], -(-seqlen // token_stride)
    sums = torch.empty(batch * heads, tiles(rows), device=v.device)
    shape = dict(v=_view(v), rows=rows, token_stride=token_stride)
    params = KMEANS_MOMENTS.pack(sums=sums, **shape)
    _launch("group", f"vc_kmeans_moments_{_suffix(v)}", v, (batch * heads, tiles(rows)), 128, params)

    shape |= dict(step=step, centroids=centroids, clusters=clusters)
    params = KMEANS_INIT.pack(sums=sums, head_dim=head_dim, **shape)
    _launch("group", f"vc_kmeans_init_{DTYPES[v.dtype]}", v, (batch * heads, clusters), head_dim, params)
    perm = torch.empty(batch, heads, rows, dtype=torch.int32, device=v.device)
    for _ in range(iterations):
        offsets = assign_and_sort(v, centroids, step, None, perm, token_stride)
        params = KMEANS_UPDATE.pack(perm=perm, offsets=offsets, **shape)
        _launch("group", f"vc_kmeans_update_{_suffix(v)}", v, (batch * heads, clusters), 128, params)


def chain(centroids: torch.Tensor, rank: torch.Tensor) -> None:
    """Fills rank: place of every cluster in the nearest-neighbour tour."""
    batch, heads, clusters, head_dim = centroids.shape
    params = KMEANS_CHAIN.pack(centroids=centroids, rank=rank, clusters=clusters)
    _launch("group", f"vc_kmeans_chain_d{head_dim}", centroids, (batch * heads,), MAX_CLUSTERS, params)
