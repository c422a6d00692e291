"""Cluster shares and block energy on values whose groups are known."""

import pytest
import torch

from vc_attention import reference, statistics
from vc_attention.config import Action, Numerics


def grouped(sizes: list[int]):
    """Values in clusters of these sizes, shuffled, and their grouping."""
    random = torch.Generator().manual_seed(0)
    centers = 10.0 * torch.eye(64)[: len(sizes)]
    v = torch.cat([center.expand(size, -1) for center, size in zip(centers, sizes, strict=True)])
    order = torch.randperm(len(v), generator=random)
    for cluster in range(len(sizes)):  # k-means starts at evenly spaced tokens: put one of every cluster there
        start, there = cluster * len(v) // len(sizes), (order == sum(sizes[:cluster])).nonzero()[0, 0]
        order[there], order[start] = order[start].clone(), order[there].clone()
    v = (v + 0.01 * torch.randn(v.shape, generator=random))[order].expand(1, 2, -1, -1)
    numerics = Numerics(clusters=len(sizes), sample_stride=1, iterations=16)
    return v, reference.group(v, numerics, Action.GROUP)


def test_cluster_shares_are_those_of_the_tokens():
    v, grouping = grouped([128, 256, 640])
    smallest, median, largest = statistics.cluster_shares(v, grouping).tolist()
    assert (smallest, median, largest) == pytest.approx((0.125, 0.25, 0.625), abs=0.01)


def test_block_energy_is_nearly_all_once_alike_tokens_are_together():
    v, grouping = grouped([256, 256, 512])
    assert float(statistics.block_energy(v, grouping.perm)) > 0.99
    assert 0.2 < float(statistics.block_energy(v, None)) < 0.6


@pytest.mark.parametrize("length", [1, 100, 128, 129, 5000])
def test_any_length(length):
    v = torch.randn(1, 3, length, 64, generator=torch.Generator().manual_seed(0)) + 1.0
    grouping = reference.group(v, Numerics(), Action.GROUP)
    assert 0.4 < float(statistics.block_energy(v, grouping.perm)) <= 1.0001
    shares = statistics.cluster_shares(v, grouping)
    assert 0 <= shares[0] <= shares[1] <= shares[2] <= 1
