"""NVFP4 operands of the kernels equal the reference's, bit for bit."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from tests.gpu import cases
from tests.gpu.test_prepare import assert_same
from vc_attention import layout, prepare, reference
from vc_attention.config import PROFILES, Action, Numerics
from vc_attention.errors import ParameterError
from vc_attention.reference.formats import NVFP4_GROUP, from_e4m3

pytestmark = pytest.mark.gpu

SEEDS = range(1000, 1120)
OPS = torch.ops.vc_attention


def numerics_of(case: cases.Case) -> Numerics:
    pick = random.Random(case.seed + 2)
    numerics = PROFILES[pick.choice(("4bit", "4bit", "int8-nvfp4"))]
    return dataclasses.replace(numerics, k_mean_blocks=pick.choice((0, 2, 64)), clusters=pick.choice((0, 5)))


def check_case(case: cases.Case) -> None:
    numerics = numerics_of(case)
    q, k, v = case.tensors()
    grouping = prepare.group(v, numerics, Action.GROUP)
    means, perm = case.seed % 4 != 3, None if case.seed % 5 == 4 else grouping.perm
    operands = prepare.prepare(q, k, v, numerics, perm, means, 128)
    wanted = layout.images(reference.prepare(q, k, v, numerics, perm, means))
    if not means:
        assert operands.v_mean.numel() == 0 and not wanted.pop("v_mean").any()
    for name, tensor in wanted.items():
        assert_same(name, getattr(operands, name), tensor)


@pytest.mark.parametrize("seed", SEEDS)
def test_operands_equal_the_reference(seed):
    case = cases.draw(seed)
    print(case)
    check_case(case)


def test_the_table_covers_what_it_promises():
    drawn = [cases.draw(seed) for seed in SEEDS]
    assert {c.layout for c in drawn} == set(cases.LAYOUTS)
    assert {c.content for c in drawn} == set(cases.CONTENTS)
    assert {c.dtype for c in drawn} == {torch.float16, torch.bfloat16, torch.float32}
    assert {numerics_of(c).qk for c in drawn} == {"int8", "nvfp4"}


def every_scale_and_tie() -> torch.Tensor:
    """Values bf16 [1, 1, 2048, 128] whose groups are E4M3 scales times numbers at and between the bounds of E2M1.

    A channel's largest value brings its fp32 scale to 1. Half the groups lie where E4M3 runs out of small numbers, so
    that their largest element may exceed 6 times the scale.
    """
    random = torch.Generator().manual_seed(0)

    def pick(choices: torch.Tensor, *shape: int) -> torch.Tensor:
        return choices[torch.randint(len(choices), shape, generator=random)]

    scales = from_e4m3(torch.arange(1, 0x79, dtype=torch.uint8))  # up to 256
    scales = torch.stack((pick(scales, 64, 128), pick(torch.arange(1, 25) * 2.0**-12, 64, 128)))
    numbers = torch.tensor((0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6))
    v = pick(torch.cat((numbers, -numbers)), 128, NVFP4_GROUP, 128) * scales.view(128, 1, 128)
    v = v.view(2048, 128)
    v[0] = 1536.0
    return v[None, None].bfloat16()


def test_every_scale_and_tie():
    v = every_scale_and_tie().cuda()
    wanted = layout.images(reference.prepare(v, v, v, PROFILES["4bit"], None, False))
    operands = prepare.prepare(v, v, v, PROFILES["4bit"], None, False, 128)
    for name in ("v_scale", "v_micro", "v_codes"):
        assert_same(name, getattr(operands, name), wanted[name])
    assert set(wanted["v_micro"].unique().tolist()) >= set(range(0x79))


def quotients_beside_ties() -> torch.Tensor:
    """Values fp16 [1, 1, 128, 128]: amax / 6 of a scaled group is one ulp below the middle of two E4M3 numbers.

    Only the quotient is: the product with the float next to 1 / 6 is that middle. Other elements favour 6 over 4.
    """
    steps = torch.tensor((12, 1, 2, 3, 4, 6, 8, 1, 2, 3, 4, 6, 8, 2, 4, 6)) / 12
    v = (1406 * 2.0 ** -torch.arange(1, 9)[:, None] * steps).view(128, 1).repeat(1, 128)
    v[1] = 1184.0  # brings the others where they are meant to be
    return v[None, None].half()


def test_quotients_beside_ties():
    v = quotients_beside_ties().cuda()
    wanted = layout.images(reference.prepare(v, v, v, PROFILES["4bit"], None, False))
    operands = prepare.prepare(v, v, v, PROFILES["4bit"], None, False, 128)
    for name in ("v_micro", "v_codes"):
        assert_same(name, getattr(operands, name), wanted[name])


def values(seqlen=700, heads=2, seed=0):
    return cases.fill((1, heads, seqlen, 128), "clusters", torch.Generator().manual_seed(seed)).bfloat16().cuda()


def calls():
    x = values()
    center, amax = OPS.q_center(x, 64)
    mean, _ = OPS.channel_stats(x, x, 64, False)
    perm = OPS.group(x, 8, 2, 4)[3]
    return {
        "q_center": (x, 64),
        "prepare_q_nvfp4": (x, center, amax),
        "prepare_k_nvfp4": (x, perm, mean, center, amax),
        "prepare_v_nvfp4": (x, perm, True),
    }


@pytest.mark.parametrize("name", ("q_center", "prepare_q_nvfp4", "prepare_k_nvfp4", "prepare_v_nvfp4"))
def test_opcheck(name):
    torch.library.opcheck(getattr(OPS, name).default, calls()[name])


def test_inputs_are_never_written():
    x = values()
    before = x.clone()
    prepare.prepare(x, x, x, PROFILES["4bit"], None, True, 128)
    assert torch.equal(x, before)


def test_a_cuda_graph_replays_with_new_data():
    static = [values(seed=s) for s in (1, 2, 3)]
    names = ("q_codes", "q_micro", "q_scale", "k_codes", "k_bias", "v_codes", "v_micro", "v_mean")

    def run(q, k, v):
        operands = prepare.prepare(q, k, v, PROFILES["4bit"], None, True, 128)
        return [getattr(operands, name) for name in names]

    run(*static)  # kernels load before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(*static)
    fresh = [values(seed=10 + i) for i in range(3)]
    for x, y in zip(static, fresh, strict=True):
        x.copy_(y)
    graph.replay()
    for name, got, wanted in zip(names, outputs, run(*fresh), strict=True):
        assert_same(name, got, wanted)


def test_wrong_input_is_named():
    x = values()
    center, amax = OPS.q_center(x, 64)
    mean, _ = OPS.channel_stats(x, x, 64, False)
    with pytest.raises(ParameterError, match="center"):
        OPS.prepare_q_nvfp4(x, center[:, :1], amax)
    with pytest.raises(ParameterError, match="amax"):
        OPS.prepare_k_nvfp4(x, None, mean, center, amax.double())
    with pytest.raises(ParameterError, match="perm"):
        OPS.prepare_v_nvfp4(x, torch.zeros(1, 2, 700, dtype=torch.int64, device="cuda"), True)
    with pytest.raises(ParameterError, match="lane_keys"):
        OPS.prepare_k(x, None, mean, torch.ones(1, 2, 2, 128, device="cuda"), False, 5)
