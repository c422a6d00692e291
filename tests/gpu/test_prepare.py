"""Grouping and operands of the kernels equal the reference's, bit for bit."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from tests.gpu import cases
from vc_attention import layout, prepare, reference
from vc_attention.config import PROFILES, Action, Numerics

pytestmark = pytest.mark.gpu

CASES = 216
GROUPING = ("step", "centroids", "rank", "perm")


def assert_same(name: str, got: torch.Tensor, expected: torch.Tensor) -> None:
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), name
    wrong = got != expected
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        pytest.fail(
            f"{name}: {int(wrong.sum())} of {wrong.numel()} differ, first {first}: {got[first]} != {expected[first]}"
        )


def numerics_of(case: cases.Case) -> Numerics:
    pick = random.Random(case.seed + 1)
    return dataclasses.replace(
        pick.choice((PROFILES["balanced"], Numerics(probability="exact"), PROFILES["quality"])),
        clusters=pick.choice((0, 0, 1, 5, 12, 64)),
        iterations=pick.choice((1, 2, 4)),
        sample_stride=pick.choice((1, 2, 4, 5)),
        k_mean_blocks=pick.choice((0, 2, 64)),
        balance_qk=pick.random() < 0.7,
        sort_keys=pick.random() < 0.7,
    )


def check_case(case: cases.Case) -> None:
    numerics = numerics_of(case)
    q, k, v = case.tensors()
    grouped = prepare.group(v, numerics, Action.GROUP)
    expected = reference.group(v, numerics, Action.GROUP)
    for name in GROUPING:
        assert_same(name, getattr(grouped, name), getattr(expected, name))
    refreshed = prepare.group(k, numerics, Action.ASSIGN, grouped)
    assert_same("refreshed perm", refreshed.perm, reference.group(k, numerics, Action.ASSIGN, expected).perm)

    means, perm = case.seed % 4 != 3, None if case.seed % 5 == 4 else grouped.perm
    scale_n = 128 if case.seed % 3 == 2 else 256
    packed = case.seed % 7 in (1, 3, 4)
    operands = prepare.prepare(q, k, v, numerics, perm, means, scale_n, packed)
    wanted = layout.images(reference.prepare(q, k, v, numerics, perm, means, scale_n, packed))
    if not means:
        assert operands.v_mean.numel() == 0 and not wanted.pop("v_mean").any()
    for name, tensor in wanted.items():
        assert_same(name, getattr(operands, name), tensor)


@pytest.mark.parametrize("seed", range(CASES))
def test_operands_and_grouping_equal_the_reference(seed):
    case = cases.draw(seed)
    print(case)
    check_case(case)


def test_the_table_covers_what_it_promises():
    drawn = [cases.draw(seed) for seed in range(CASES)]
    assert {c.layout for c in drawn} == set(cases.LAYOUTS)
    assert {c.content for c in drawn} == set(cases.CONTENTS)
    assert {c.dtype for c in drawn} == {torch.float16, torch.bfloat16, torch.float32}
    assert min(c.seqlen_k for c in drawn) == 1 and max(c.batch for c in drawn) == 2


def test_the_reference_is_the_same_on_the_cpu():
    """The table above runs the reference on the GPU; here it runs where it was specified."""
    case = dataclasses.replace(cases.draw(7), content="clusters", layout="bnhd", dtype=torch.bfloat16)
    q, k, v = case.tensors()
    numerics = numerics_of(case)
    grouped = prepare.group(v, numerics, Action.GROUP)
    expected = reference.group(v.cpu(), numerics, Action.GROUP)
    for name in GROUPING:
        assert_same(name, getattr(grouped, name).cpu(), getattr(expected, name))
    operands = prepare.prepare(q, k, v, numerics, grouped.perm, True, 128)
    for name, tensor in layout.images(
        reference.prepare(q.cpu(), k.cpu(), v.cpu(), numerics, expected.perm, True)
    ).items():
        assert_same(name, getattr(operands, name).cpu(), tensor)


@pytest.mark.parametrize("clusters", (500, 512))
def test_as_many_clusters_as_there_can_be(clusters):
    numerics = Numerics(clusters=clusters, sample_stride=2)
    v = cases.fill((1, 2, 3001, 128), "clusters", torch.Generator().manual_seed(clusters)).bfloat16().cuda()
    got, expected = (room.group(v, numerics, Action.GROUP) for room in (prepare, reference))
    for name in GROUPING:
        assert_same(name, getattr(got, name), getattr(expected, name))


def test_offsets_beyond_32_bits():
    """MiniMax-H3: q, k and v are views of one buffer, 21504 elements a row; 2^31 elements are 99,864 rows."""
    heads, dim, seqlen, row = 2, 128, 100_100, 21504
    room = torch.zeros(seqlen * row, dtype=torch.bfloat16, device="cuda")
    rows = room.view(seqlen, row)
    rows[:, : 3 * heads * dim] = torch.randn(seqlen, 3 * heads * dim, device="cuda")
    q, k, v = (part.unflatten(1, (heads, dim)).transpose(0, 1)[None] for part in rows[:, : 3 * heads * dim].chunk(3, 1))
    numerics = PROFILES["balanced"]
    perm = torch.randperm(seqlen, device="cuda", dtype=torch.int32).expand(1, heads, seqlen).contiguous()
    operands = prepare.prepare(q, k, v, numerics, perm, True, 256)
    packed = prepare.prepare(q.contiguous(), k.contiguous(), v.contiguous(), numerics, perm, True, 256)
    for field in dataclasses.fields(operands):
        value = getattr(operands, field.name)
        if isinstance(value, torch.Tensor):
            assert_same(field.name, value, getattr(packed, field.name))
    grouped, packed_group = (prepare.group(x, numerics, Action.GROUP) for x in (v, v.contiguous()))
    assert_same("perm", grouped.perm, packed_group.perm)
    assert (grouped.perm.sort(-1).values == torch.arange(seqlen, device="cuda", dtype=torch.int32)).all()
