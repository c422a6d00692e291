"""Fakes, the stated memory bound and the table of what the kernels can do: everything that needs no GPU."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from vc_attention import layout, ops, prepare, reference, stages
from vc_attention.config import PROFILES, Action
from vc_attention.errors import ParameterError


def shapes(outputs) -> list[tuple[tuple[int, ...], torch.dtype]]:
    return [(tuple(x.shape), x.dtype) for x in (outputs if isinstance(outputs, tuple | list) else (outputs,))]


def test_fakes_give_the_documented_shapes():
    u8, f32, i32 = torch.uint8, torch.float32, torch.int32
    with FakeTensorMode():
        x = torch.empty(2, 3, 300, 64, dtype=torch.float16, device="cuda")
        mean, factor = torch.ops.vc_attention.channel_stats(x, x, 64, True)
        assert shapes((mean, factor)) == [((2, 3, 64), f32), ((2, 3, 2, 64), f32)]
        assert shapes(torch.ops.vc_attention.prepare_q(x, factor)) == [((2, 3, 3, 128, 64), u8), ((2, 3, 384), f32)]
        for sort in (True, False):
            got = shapes(torch.ops.vc_attention.prepare_k(x, None, mean, factor, sort))
            assert got == [((2, 3, 3, 128, 64), u8), ((2, 3, 3, 4), f32), ((2, 3, 300 if sort else 0), i32)]
        got = shapes(torch.ops.vc_attention.prepare_k_step(x, None, mean, factor, 2))
        assert got == [((2, 3, 3, 128, 64), u8), ((2, 3, 3, 4), f32)]
        for v_format, scale in (("e4m3", (2, 3, 64)), ("int8", (2, 3, 3, 64))):
            got = shapes(torch.ops.vc_attention.prepare_v(x, None, v_format, True, 1, False))
            assert got == [((2, 3, 3, 64, 128), u8), (scale, f32), ((2, 3, 1, 64, 32), f32)]
        got = shapes(torch.ops.vc_attention.prepare_v_nvfp4(x, None, False))
        assert got == [((2, 3, 3, 64, 64), u8), ((2, 3, 64), f32), ((2, 3, 0, 64, 32), f32), ((2, 3, 3, 64, 8), u8)]
        centroids, step, rank, perm = torch.ops.vc_attention.group(x, 8, 4, 4)
        expected = [((2, 3, 8, 64), torch.int8), ((2, 3), f32), ((2, 3, 8), i32), ((2, 3, 300), i32)]
        assert shapes((centroids, step, rank, perm)) == expected
        assert shapes(torch.ops.vc_attention.assign(x, centroids, step, rank)) == [((2, 3, 300), i32)]


@pytest.mark.parametrize("profile", ("balanced", "4bit"))
def test_tensors_of_the_cpu_are_refused_with_a_remedy(profile):
    x = torch.zeros(1, 2, 300, 64, dtype=torch.float16)
    with pytest.raises(ParameterError, match="on an NVIDIA GPU, got 'cpu': use vc_attention.reference"):
        prepare.prepare(x, x, x, PROFILES[profile], None, True, 128)
    with pytest.raises(ParameterError, match="tensors of group"):
        prepare.group(x, PROFILES[profile], Action.GROUP)


def test_a_second_copy_of_the_module_finds_the_ops(monkeypatch):
    """ComfyUI imports a pack under a name made of its path; tests and tools import it under its own."""
    kept = torch.ops.vc_attention.prepare_q
    monkeypatch.delitem(sys.modules, "vc_attention.ops")
    second = importlib.import_module("vc_attention.ops")
    assert second is not ops and torch.ops.vc_attention.prepare_q is kept


@pytest.mark.parametrize(
    "profile, fits",
    [
        ("balanced", True),
        ("quality", True),
        ("4bit", True),
        ("int8-nvfp4", True),
        ("paper-8bit", False),
        ("paper-4bit", False),
    ],
)
def test_what_has_no_kernel_says_why(profile, fits):
    reasons = prepare.unsupported(PROFILES[profile])
    assert (not reasons) == fits and all("no preparation kernel" in reason for reason in reasons)


@pytest.mark.parametrize("profile", ("4bit", "int8-nvfp4"))
def test_the_reference_and_the_ops_give_the_same_shapes(profile):
    numerics, random = PROFILES[profile], torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 128, generator=random) for n in (200, 300, 300))
    images = layout.images(reference.prepare(q, k, v, numerics, None, True))
    with FakeTensorMode():
        q, k, v = (torch.empty(1, 2, n, 128, dtype=torch.bfloat16, device="cuda") for n in (200, 300, 300))
        operands = prepare.prepare(q, k, v, numerics, None, True, 128)
    assert shapes([getattr(operands, name) for name in images]) == shapes(list(images.values()))


@pytest.mark.parametrize("profile", ("balanced", "quality", "4bit", "int8-nvfp4"))
def test_the_bound_counts_what_the_ops_return(profile):
    numerics, shape = PROFILES[profile], (2, 3, 1000, 64)
    with FakeTensorMode():
        x = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        operands = prepare.prepare(x, x, x, numerics, None, True, 128)
    assert operands.nbytes == prepare.operand_bytes(2, 3, 1000, 1000, 64, numerics)
    assert operands.nbytes < prepare.extra_bytes(2, 3, 1000, 1000, 64, numerics)


def test_extra_memory_at_wan_is_below_the_inputs():
    """At Wan2.2's shape q, k and v take 2.3 GB; the operands in 8 bits and everything else take about half of that."""
    inputs = 3 * 40 * 75_600 * 128 * 2
    assert prepare.extra_bytes(1, 40, 75_600, 75_600, 128, PROFILES["balanced"]) < 0.6 * inputs


@pytest.mark.parametrize("seqlen", (1, 128, 129, 8_192, 8_320, 75_600, 111_600))
@pytest.mark.parametrize("max_blocks", (0, 1, 64))
def test_statistics_count_their_tokens(seqlen, max_blocks):
    stride, sampled, tokens = stages.sampled_blocks(seqlen, max_blocks)
    read = [block for block in range(stages.tiles(seqlen)) if block % stride == 0]
    assert sampled == len(read)
    assert tokens == sum(min(128, seqlen - 128 * block) for block in read)
