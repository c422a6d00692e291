"""Q, K and V operands: what each scale serves, what the means restore, what padding holds."""

from dataclasses import replace

import pytest
import torch

from tests.generator import qkv
from vc_attention import reference
from vc_attention.config import PROFILES, Numerics
from vc_attention.reference import scores
from vc_attention.reference.attention import score_factors, values
from vc_attention.reference.formats import decode

GRID = (3, 10, 11)  # 330 tokens: two whole blocks and 74 rows


@pytest.fixture(scope="module")
def inputs():
    return qkv(GRID, (10, 11))


def decoded_scores(operands, numerics):
    row, key = score_factors(operands, numerics)
    q = decode(operands.q_codes, operands.q_micro, numerics.qk).double() * row[..., None]
    k = decode(operands.k_codes, operands.k_micro, numerics.qk).double() * key[..., None]
    return q @ k.mT


@pytest.mark.parametrize(
    "name, limit", [("balanced", 0.02), ("paper-8bit", 0.02), ("fp8-naive", 0.05), ("sage3-like", 0.17)]
)
def test_scores_are_close_up_to_a_row_constant(inputs, name, limit):
    q, k, v = inputs
    numerics = PROFILES[name]
    operands = reference.prepare(q, k, v, numerics, None, means=True)
    s = decoded_scores(operands, numerics)
    if operands.score_bias is not None:
        block = torch.arange(q.shape[-2]) // 128
        s = s + operands.score_bias[:, :, block].double() / q.shape[-1] ** 0.5 * 1.4426950408889634
    exact = q.double() @ k.double().mT / q.shape[-1] ** 0.5 * 1.4426950408889634
    s, exact = s - s.mean(-1, keepdim=True), exact - exact.mean(-1, keepdim=True)
    assert (s - exact).norm() < limit * exact.norm()


def test_k_mean_samples_whole_blocks():
    k = torch.randn(1, 1, 128 * 7 + 5, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(scores.k_mean(k, 0), k.mean(-2, keepdim=True), atol=1e-6)
    chosen = torch.cat([k[:, :, 128 * b : 128 * (b + 1)] for b in (0, 2, 4, 6)], -2)
    assert torch.allclose(scores.k_mean(k, 4), chosen.mean(-2, keepdim=True), atol=1e-6)
    chosen = torch.cat([chosen[:, :, : 3 * 128][:, :, :128], k[:, :, 7 * 128 :]], -2)
    assert torch.allclose(scores.k_mean(k, 1)[0, 0, 0], k[0, 0, :128].mean(0), atol=1e-6)


@pytest.mark.parametrize("granularity, groups", [("thread", 4), ("warp", 2), ("block", 1)])
def test_k_scales_cover_their_groups(inputs, granularity, groups):
    numerics = replace(Numerics(), k_granularity=granularity)
    codes, _, scale = scores.quantize_k(inputs[1].float(), numerics)
    assert scale.shape == (1, 2, 3, groups)
    group = scores.k_group_of_key(granularity, None)
    for g in range(groups):
        keys = (torch.arange(128) + 128)[group == g]
        assert len(keys) == 128 // groups
        assert torch.equal(inputs[1][0, 0, keys].float().abs().amax() / 127, scale[0, 0, 1, g])
        assert codes[0, 0, keys].abs().amax() == 127


@pytest.mark.parametrize("granularity, rows", [("token", 1), ("warp", 32), ("block", 128)])
def test_q_scales_cover_their_rows(inputs, granularity, rows):
    codes, _, scale = scores.quantize_q(inputs[0].float(), replace(Numerics(), q_granularity=granularity))
    first = inputs[0][0, 0, 128 : 128 + rows].float().abs().amax() / 127
    assert scale[0, 0, 128 : 128 + rows].unique().tolist() == [first.item()]
    assert codes.abs().amax(-1).gt(0).all()


@pytest.mark.parametrize("name", ["balanced", "quality", "4bit"])
def test_corrected_means_make_block_sums_exact(inputs, name):
    v = inputs[2]
    numerics = PROFILES[name]
    operands = reference.prepare(*inputs, numerics, None, means=True)
    restored = (
        values(operands, numerics).double() + operands.v_mean.double().repeat_interleave(128, -2)[:, :, : v.shape[-2]]
    )
    for block in v.double().sub(restored).split(128, -2):
        assert block.mean(-2).abs().amax() < 2e-6


def test_plain_means_are_bf16_and_none_are_zero(inputs):
    plain = reference.prepare(*inputs, PROFILES["paper-8bit"], None, means=True).v_mean
    assert torch.equal(plain, plain.bfloat16().float()) and plain.any()
    assert not reference.prepare(*inputs, PROFILES["balanced"], None, means=False).v_mean.any()


@pytest.mark.parametrize(
    "name, shape", [("balanced", (1, 2, 128)), ("quality", (1, 2, 3, 128)), ("4bit", (1, 2, 3, 128))]
)
def test_v_scales(inputs, name, shape):
    operands = reference.prepare(*inputs, PROFILES[name], None, means=True)
    assert operands.v_scale.shape == shape
    if name == "4bit":
        assert operands.v_micro.shape == (1, 2, 128, -(-330 // 16))
        assert operands.q_micro.shape == operands.k_micro.shape == (1, 2, 330, 8)


def test_permutation_reaches_k_and_v_alike(inputs):
    q, k, v = inputs
    perm = torch.stack([torch.randperm(330), torch.randperm(330)])[None].int()
    moved = reference.prepare(q, k, v, PROFILES["unquantized"], perm, means=False)
    still = reference.prepare(q, k, v, PROFILES["unquantized"], None, means=False)
    index = perm.long()[..., None].expand(k.shape)
    assert torch.equal(moved.k_codes, still.k_codes.gather(-2, index))
    assert torch.equal(moved.v_codes, still.v_codes.gather(-2, index))


def test_zeros_quantize_to_zeros():
    zero = torch.zeros(1, 1, 130, 64)
    for name in ("balanced", "quality", "4bit", "fp8-naive"):
        operands = reference.prepare(zero, zero, zero, PROFILES[name], None, means=True)
        for tensor in (operands.q_codes, operands.k_codes, operands.v_codes, operands.k_scale, operands.v_scale):
            assert not tensor.any()
        assert not reference.attention(operands, PROFILES[name]).any()
