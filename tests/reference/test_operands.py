"""Q, K and V operands: what each scale serves, what the means restore, what padding holds."""

from dataclasses import replace

import pytest
import torch

from tests.generator import qkv
from vc_attention import reference
from vc_attention.config import PROFILES, Numerics
from vc_attention.reference import scores
from vc_attention.reference.arithmetic import clean
from vc_attention.reference.attention import mean_products, score_factors, values
from vc_attention.reference.formats import decode, from_e4m3

GRID = (3, 10, 11)  # 330 tokens: two whole blocks and 74 rows


@pytest.fixture(scope="module")
def inputs():
    return qkv(GRID, (10, 11))


def decoded_scores(operands, numerics):
    row, key = score_factors(operands, numerics)
    q = decode(operands.q_codes, operands.q_micro, numerics.qk).double()
    s = q @ decode(operands.k_codes, operands.k_micro, numerics.qk).double().mT
    if operands.k_bias is not None:
        part = torch.arange(q.shape[-2])
        s += mean_products(operands, part, 0, torch.float64).unflatten(0, q.shape[:2])
    return s * row[..., None] * key[..., None, :]


def exact_scores(q, k):
    """In log2 units, less the mean of each row."""
    s = q.double() @ k.double().mT / q.shape[-1] ** 0.5 * 1.4426950408889634
    return s - s.mean(-1, keepdim=True)


@pytest.mark.parametrize(
    "name, limit", [("balanced", 0.02), ("paper-8bit", 0.02), ("fp8-naive", 0.05), ("sage3-like", 0.17), ("4bit", 0.12)]
)
def test_scores_are_close_up_to_a_row_constant(inputs, name, limit):
    q, k, v = inputs
    numerics = replace(PROFILES[name], sort_keys=False)
    operands = reference.prepare(q, k, v, numerics, None, means=True)
    s = decoded_scores(operands, numerics)
    if operands.score_bias is not None:
        block = torch.arange(q.shape[-2]) // 128
        s = s + operands.score_bias[:, :, block].double() / q.shape[-1] ** 0.5 * 1.4426950408889634
    exact = exact_scores(q, k)
    assert (s - s.mean(-1, keepdim=True) - exact).norm() < limit * exact.norm()


def test_k_mean_samples_whole_blocks():
    k = torch.randn(1, 1, 128 * 7 + 5, 64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(scores.channel_mean(k, 0), k.mean(-2, keepdim=True), atol=1e-6)
    chosen = torch.cat([k[:, :, 128 * b : 128 * (b + 1)] for b in (0, 2, 4, 6)], -2)
    assert torch.allclose(scores.channel_mean(k, 4), chosen.mean(-2, keepdim=True), atol=1e-6)
    chosen = torch.cat([chosen[:, :, : 3 * 128][:, :, :128], k[:, :, 7 * 128 :]], -2)
    assert torch.allclose(scores.channel_mean(k, 1)[0, 0, 0], k[0, 0, :128].mean(0), atol=1e-6)


def test_keys_that_share_a_scale_are_alike(inputs):
    k = inputs[1].float()
    order = scores.sorted_keys(k, Numerics()).long()
    length, full = k.shape[-2], 2 * 128
    assert torch.equal(order[..., full:], torch.arange(full, length).expand(1, 2, -1)), "a ragged tile keeps its order"
    assert torch.equal(order.sort(-1).values, torch.arange(length).expand(1, 2, -1))
    assert torch.equal(order // 128, torch.arange(length).expand(1, 2, -1) // 128), "keys stay in their tile"
    size = k.abs().amax(-1).gather(-1, order)[..., :full].unflatten(-1, (-1, 128))
    group = scores.k_group_of_key(Numerics(), None)
    groups = torch.stack([size[..., group == g] for g in range(4)], -2)
    assert (groups.amax(-1)[..., :-1] <= groups.amin(-1)[..., 1:] * (1 + 2**-15)).all()


def test_keys_alike_stay_in_sequence():
    k = torch.ones(1, 1, 128, 64)
    k[..., 5, 3] = 9.0
    order = scores.sorted_keys(k, Numerics())[0, 0]
    group = scores.k_group_of_key(Numerics(), None)
    places = torch.cat([(group == g).nonzero().flatten() for g in range(4)])
    assert order[places].tolist() == [i for i in range(128) if i != 5] + [5]


def test_sorted_keys_take_their_values_along(inputs):
    q, k, v = inputs
    numerics = PROFILES["unquantized"]
    perm = torch.stack([torch.randperm(330), torch.randperm(330)])[None].int()
    operands = reference.prepare(q, k, v, numerics, perm, means=False)
    exact = (q.double() @ k.double().mT / 128**0.5).softmax(-1) @ v.double()
    assert (reference.attention(operands, numerics) - exact).norm() < 1e-5 * exact.norm()


def test_balance_evens_the_channels_by_powers_of_two(inputs):
    q, k = inputs[0].float(), inputs[1].float()
    q[..., 3], k[..., 3] = q[..., 3] * 2.0**-5, k[..., 3] * 2.0**5
    q[..., 4], k[..., 5] = 0.0, 7.0  # nothing to balance: a channel of zeros, one that is all mean
    q[..., 6], k[..., 6] = q[..., 6] * 2.0**-30, k[..., 6] * 2.0**30
    mean = scores.channel_mean(k, 0)
    factor = scores.balance(q, k, mean, 0)
    assert torch.equal(factor.log2(), factor.log2().round()) and factor.shape == (1, 2, 1, 128)
    assert (factor[..., 4] == 1).all() and (factor[..., 5] == 1).all()
    assert (factor[..., 6] == 2.0**scores.MOST_BALANCE).all()
    plain = [c for c in range(128) if c not in (4, 5, 6)]
    ratio = (((k - mean) / factor).square().mean(-2) / (q * factor).square().mean(-2))[..., plain]
    assert ((ratio >= 2.0**-2.01) & (ratio <= 2.0**2.01)).all(), "within half a power of two in rms"
    assert torch.equal((q * factor) * ((k - mean) / factor), q * (k - mean)), "no bit of a product changes"


def test_balance_of_broken_input_is_finite():
    q, k = (clean(torch.full((1, 1, 130, 64), value)) for value in (torch.nan, torch.inf))
    assert (scores.balance(q, k, scores.channel_mean(k, 0), 0) == 1).all()


@pytest.mark.parametrize("granularity, groups", [("thread", 4), ("warp", 2), ("block", 1)])
def test_k_scales_cover_their_groups(inputs, granularity, groups):
    numerics = replace(Numerics(), k_granularity=granularity)
    codes, _, scale = scores.quantize_k(inputs[1].float(), numerics)
    assert scale.shape == (1, 2, 3, groups)
    group = scores.k_group_of_key(numerics, None)
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


@pytest.mark.parametrize("name, shape", [("balanced", (1, 2, 128)), ("quality", (1, 2, 3, 128)), ("4bit", (1, 2, 128))])
def test_v_scales(inputs, name, shape):
    operands = reference.prepare(*inputs, PROFILES[name], None, means=True)
    assert operands.v_scale.shape == shape
    if name == "4bit":
        assert operands.v_micro.shape == (1, 2, 128, -(-330 // 16))
        assert operands.q_micro.shape == operands.k_micro.shape == (1, 2, 330, 8)


@pytest.mark.parametrize("p_scale, largest", [("tile", 2.25), ("running", 448.0)])
def test_e4m3_values_of_a_channel_end_where_sums_of_products_fit(inputs, p_scale, largest):
    operands = reference.prepare(*inputs, Numerics(p_scale=p_scale), None, means=True)
    assert (from_e4m3(operands.v_codes).abs().amax(-2) == largest).all()


def test_permutation_reaches_k_and_v_alike(inputs):
    q, k, v = inputs
    perm = torch.stack([torch.randperm(330), torch.randperm(330)])[None].int()
    numerics = replace(PROFILES["unquantized"], sort_keys=False)
    moved = reference.prepare(q, k, v, numerics, perm, means=False)
    still = reference.prepare(q, k, v, numerics, None, means=False)
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


def test_what_means_carry_has_no_error_of_four_bits(inputs):
    """Keys that equal their tile's mean need only the product with it, queries that are all alike only the bias."""
    q, k, v = inputs
    numerics, tile = PROFILES["4bit"], torch.arange(k.shape[-2]) // 128
    for queries, keys, unused, limit in (
        (q, k[:, :, tile], "k_codes", 0.02),
        (q[:, :, :1].expand(q.shape), k, "q_codes", 1e-5),
    ):
        operands = reference.prepare(queries, keys, v, numerics, None, means=True)
        assert not getattr(operands, unused).any()
        s, exact = decoded_scores(operands, numerics), exact_scores(queries, keys)
        assert (s - s.mean(-1, keepdim=True) - exact).norm() < limit * exact.norm()
