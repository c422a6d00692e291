"""k-means in integers against a plain restatement in Python integers, and what the actions keep."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.generator import qkv
from vc_attention import reference
from vc_attention.config import Action, Numerics
from vc_attention.reference import grouping as G

NUMERICS = Numerics()


def values(seqlen=700, batch=1, heads=2, dim=64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(12, dim, generator=generator)
    kind = torch.randint(12, (batch, heads, seqlen), generator=generator)
    return (centres[kind] + torch.randn(batch, heads, seqlen, dim, generator=generator)).bfloat16()


def plain_kmeans(v: np.ndarray, numerics: Numerics):
    """One head, int64 throughout: (step, centroids, rank, perm)."""
    sample = v[:: numerics.sample_stride]
    squares = (sample * sample).ravel()
    squares = np.concatenate([squares, np.zeros((1 << (len(squares) - 1).bit_length()) - len(squares), np.float32)])
    while len(squares) > 1:
        squares = squares[0::2] + squares[1::2]
    step = np.float32(127) / (np.float32(8) * np.sqrt(squares[0] / np.float32(sample.size)))
    quantize = lambda x: np.clip(np.rint(x * step), -127, 127).astype(np.int64)  # noqa: E731
    x, rows = quantize(sample), len(sample)
    clusters = G.cluster_count(len(v), numerics)
    c = np.stack([x[i * rows // clusters] for i in range(clusters)])

    def nearest(tokens):
        return np.argmax(tokens @ c.T - (((c * c).sum(1) + 1) >> 1), axis=1)

    for _ in range(numerics.iterations):
        labels = nearest(x)
        for j in range(clusters):
            members = x[labels == j]
            if len(members):
                c[j] = (2 * members.sum(0) + len(members)) // (2 * len(members))
    tour = [int(np.argmax((c * c).sum(1)))]
    while len(tour) < clusters:
        distance = ((c - c[tour[-1]]) ** 2).sum(1)
        distance[tour] = np.iinfo(np.int64).max
        tour.append(int(np.argmin(distance)))
    rank = np.argsort(tour)
    return step, c, rank, np.argsort(rank[nearest(quantize(v))], kind="stable")


@pytest.mark.parametrize("seqlen, clusters", [(700, 0), (257, 16), (64, 0), (5, 0), (1, 0), (2000, 100)])
def test_equals_plain_integers(seqlen, clusters):
    numerics = replace(NUMERICS, clusters=clusters)
    v = values(seqlen)
    grouping = reference.group(v, numerics, Action.GROUP)
    for head in range(2):
        step, centroids, rank, perm = plain_kmeans(v[0, head].float().numpy(), numerics)
        assert grouping.step[0, head].item() == float(step)
        assert np.array_equal(grouping.centroids[0, head].numpy(), centroids)
        assert np.array_equal(grouping.rank[0, head].numpy(), rank)
        assert np.array_equal(grouping.perm[0, head].numpy(), perm)


def test_shapes_types_and_size():
    grouping = reference.group(values(batch=2), NUMERICS, Action.GROUP)
    assert (grouping.centroids.dtype, grouping.centroids.shape) == (torch.int8, (2, 2, 8, 64))
    assert (grouping.step.dtype, grouping.step.shape) == (torch.float32, (2, 2))
    assert (grouping.rank.dtype, grouping.rank.shape) == (torch.int32, (2, 2, 8))
    assert (grouping.perm.dtype, grouping.perm.shape) == (torch.int32, (2, 2, 700))
    assert grouping.nbytes == 4 * (8 * 64 + 4 + 8 * 4 + 700 * 4)
    assert torch.equal(grouping.perm.sort(-1).values, torch.arange(700).int().expand(2, 2, -1))


@pytest.mark.parametrize("seqlen, count", [(1, 1), (30, 8), (4, 1), (2048, 21), (16384, 170), (75600, 512)])
def test_automatic_cluster_count(seqlen, count):
    assert G.cluster_count(seqlen, NUMERICS) == count


def test_clusters_lie_in_one_run_each():
    v = values(2000)
    grouping = reference.group(v, NUMERICS, Action.GROUP)
    labels = G.assign(G.to_steps(v.float(), grouping.step), grouping.centroids)
    ranks = grouping.rank.gather(-1, labels).gather(-1, grouping.perm.long())
    assert (ranks.diff(dim=-1) >= 0).all()
    same = ranks.diff(dim=-1) == 0
    assert (grouping.perm.diff(dim=-1)[same] > 0).all(), "tokens of a cluster keep their order"


def test_chain_walks_to_the_nearest():
    points = torch.tensor([[0, 0], [50, 0], [10, 0], [11, 0], [49, 1]], dtype=torch.int8)[None, None]
    assert G.chain(points)[0, 0].tolist() == [4, 0, 3, 2, 1]


def test_empty_cluster_keeps_its_centroid_and_ties_go_low():
    x = torch.zeros(1, 1, 6, 64, dtype=torch.int8)
    c = torch.zeros(1, 1, 3, 64, dtype=torch.int8)
    c[0, 0, 2] = 5
    labels = G.assign(x, c)
    assert labels.unique().tolist() == [0]
    assert torch.equal(G.update(x, labels, c), c)


@pytest.mark.parametrize("constant", [0.0, 3.0, 2.0**-100])
def test_constant_values_keep_their_order(constant):
    grouping = reference.group(torch.full((1, 1, 300, 64), constant), NUMERICS, Action.GROUP)
    assert torch.equal(grouping.perm[0, 0], torch.arange(300).int())


def test_actions():
    old, new = values(seed=1), values(seed=2)
    first = reference.group(old, NUMERICS, Action.GROUP)
    assert reference.group(new, NUMERICS, Action.REUSE, first) is first
    assert reference.group(new, NUMERICS, Action.PLAIN, first) is first
    assert reference.group(new, NUMERICS, Action.PLAIN) is None
    assert reference.group(new, replace(NUMERICS, cluster_order="none"), Action.GROUP) is None
    assigned = reference.group(new, NUMERICS, Action.ASSIGN, first)
    assert assigned.centroids is first.centroids and assigned.rank is first.rank and assigned.step is first.step
    assert not torch.equal(assigned.perm, first.perm)
    again = reference.group(old, NUMERICS, Action.ASSIGN, first)
    assert torch.equal(again.perm, first.perm)


@pytest.mark.parametrize("action", [Action.ASSIGN, Action.REUSE])
def test_a_cold_action_groups(action):
    v = values()
    cold, grouped = (reference.group(v, NUMERICS, a) for a in (action, Action.GROUP))
    assert torch.equal(cold.perm, grouped.perm)


def test_kept_centroids_follow_content_that_moved():
    """numerics: a shift by one token ruins a kept permutation, while assignment to kept centroids follows it."""
    v = qkv((4, 16, 32), (10,))[2]
    shifted = v.roll(1, dims=-2)
    kept = reference.group(v, NUMERICS, Action.GROUP)

    def within_block_energy(perm):
        tiles = shifted.float().gather(-2, perm.long()[..., None].expand(v.shape)).unflatten(-2, (-1, 128))
        return (tiles - tiles.mean(-2, keepdim=True)).square().mean().item()

    fresh = within_block_energy(reference.group(shifted, NUMERICS, Action.GROUP).perm)
    assigned = within_block_energy(reference.group(shifted, NUMERICS, Action.ASSIGN, kept).perm)
    stale = within_block_energy(kept.perm)
    assert assigned < 1.03 * fresh < 0.9 * stale
