"""V-Smooth, first half: k-means over value tokens and the permutation it gives (Eq. 3), in exact integer arithmetic.

Tokens and centroids are int8, sums and scores int32. Sums of integers need no order, so every device finds the same
permutation. CPU matrix products run in fp32, which is exact here: every partial sum stays below 2^24.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from ..config import Action, Grouping, Numerics
from .arithmetic import TINY, clean, divide, tree_sum

RANGE = 8.0  # int8 covers 8 rms; outlier tokens beyond it saturate and still find each other


def cluster_count(seqlen: int, numerics: Numerics) -> int:
    """Number of clusters for `seqlen` keys, never more than there are training tokens."""
    wanted = numerics.clusters or min(max(seqlen // numerics.tokens_per_cluster, 8), 512)
    return min(wanted, -(-seqlen // numerics.sample_stride))


def step_size(sample: torch.Tensor) -> torch.Tensor:
    """Training tokens `[..., n, D]` -> int8 steps per unit of v, `127 / (8 rms)`; 0 when the rms counts as zero."""
    squares = (sample * sample).flatten(-2)
    mean = divide(tree_sum(squares, -1), squares.shape[-1])
    rms = mean.double().sqrt().float()  # torch's own fp32 root on a CPU may be one ulp off
    return torch.where(rms < TINY, 0.0, divide(127.0, RANGE * rms))


def to_steps(v: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    """fp32 `[..., N, D]` -> int8."""
    return (v * step[..., None, None]).round().clamp(-127, 127).to(torch.int8)


def assign(x: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """Nearest centroid of every token, int64 `[..., N]`: argmax of `x.c - ((|c|^2 + 1) >> 1)`.

    Ties go to the lowest index. The score fits 22 bits, so that a kernel can keep it and the index of one of 512
    clusters in an int32.
    """
    c = centroids.float()
    half_norm = ((c * c).sum(-1) + 1.0).mul(0.5).floor()
    return (x.float() @ c.mT - half_norm[..., None, :]).argmax(-1)


def update(x: torch.Tensor, labels: torch.Tensor, centroids: torch.Tensor) -> torch.Tensor:
    """Rounded mean `floor((2 sum + count) / (2 count))` of every cluster; an empty one keeps its centroid."""
    total = torch.zeros_like(centroids, dtype=torch.int32)
    count = total[..., :1].scatter_add(-2, labels[..., None], torch.ones_like(labels[..., None], dtype=torch.int32))
    total.scatter_add_(-2, labels[..., None].expand(x.shape), x.int())
    mean = torch.div(2 * total + count, 2 * count.clamp(min=1), rounding_mode="floor")
    return torch.where(count > 0, mean, centroids.int()).to(torch.int8)


def chain(centroids: torch.Tensor) -> torch.Tensor:
    """Rank of every cluster in a greedy nearest-neighbour tour, int32 `[..., C]`.

    The tour starts at the centroid of largest norm and goes to the nearest one not yet visited; ties go to the lowest
    index. Neighbours in the tour share blocks at cluster borders, so similar neighbours keep those blocks smooth.
    """
    c = centroids.float()
    norm = (c * c).sum(-1)
    distance = norm[..., None] + norm[..., None, :] - 2.0 * (c @ c.mT)
    rank = torch.zeros(norm.shape, dtype=torch.int32, device=c.device)
    blocked = torch.zeros_like(norm)
    current = norm.argmax(-1, keepdim=True)
    for position in range(c.shape[-2]):
        rank.scatter_(-1, current, position)
        blocked.scatter_(-1, current, torch.inf)
        row = distance.gather(-2, current[..., None].expand(*current.shape, c.shape[-2]))[..., 0, :]
        current = (row + blocked).argmin(-1, keepdim=True)
    return rank


def sort(labels: torch.Tensor, rank: torch.Tensor) -> torch.Tensor:
    """Stable permutation by chain rank (Eq. 3), int32 `[..., N]`."""
    return rank.gather(-1, labels).argsort(dim=-1, stable=True).int()


def carry_out(
    action: Action,
    numerics: Numerics,
    kept: Grouping | None,
    assign_to: Callable[[Grouping], torch.Tensor],
    group_anew: Callable[[], Grouping],
) -> Grouping | None:
    """What `action` makes of what was kept, on any backend.

    Without anything kept, ASSIGN and REUSE group and PLAIN gives None. None also when the numerics do not group.
    """
    if numerics.cluster_order == "none":
        return None
    if action is Action.PLAIN or (action is Action.REUSE and kept is not None):
        return kept
    if action is Action.ASSIGN and kept is not None:
        return replace(kept, perm=assign_to(kept))
    return group_anew()


def group(v: torch.Tensor, numerics: Numerics, action: Action, kept: Grouping | None = None) -> Grouping | None:
    """The grouping that `action` asks for, from values v `[B, H, Nk, D]`; see `carry_out`."""

    def assign_to(kept: Grouping) -> torch.Tensor:
        return sort(assign(to_steps(clean(v), kept.step), kept.centroids), kept.rank)

    return carry_out(action, numerics, kept, assign_to, lambda: group_anew(clean(v), numerics))


def group_anew(v: torch.Tensor, numerics: Numerics) -> Grouping:
    """k-means from scratch over clean values `[B, H, Nk, D]`, fp32."""
    sample = v[..., :: numerics.sample_stride, :]
    clusters, rows = cluster_count(v.shape[-2], numerics), sample.shape[-2]
    step = step_size(sample)
    x = to_steps(sample, step)
    centroids = x[..., [i * rows // clusters for i in range(clusters)], :]
    for _ in range(numerics.iterations):
        centroids = update(x, assign(x, centroids), centroids)
    order = torch.arange(clusters, dtype=torch.int32, device=v.device).expand(centroids.shape[:-1])
    rank = chain(centroids) if numerics.cluster_order == "chain" else order.contiguous()
    return Grouping(centroids, step, rank, sort(assign(to_steps(v, step), centroids), rank))
