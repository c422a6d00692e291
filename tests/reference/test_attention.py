"""The loop against Eq. 1 and Eq. 6 step by step, against fp64 attention, and attend() at its edges."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.reference.fidelity import exact_attention, relative_error
from vc_attention import reference
from vc_attention.attention import attend
from vc_attention.config import PROFILES, Action, Numerics
from vc_attention.errors import KernelUnavailable, ParameterError
from vc_attention.reference.attention import score_factors, values
from vc_attention.reference.formats import decode
from vc_attention.reference.probability import probabilities

OFF = PROFILES["unquantized"]
RUNNABLE = list(PROFILES)


def random(seqlen_q, seqlen_k, heads=2, dim=64, batch=1, dtype=torch.bfloat16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    q = torch.randn(batch, heads, seqlen_q, dim, generator=generator)
    k, v = torch.randn(2, batch, heads, seqlen_k, dim, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def error(out, q, k, v) -> float:
    """Worst relative error over heads, as a fraction."""
    return relative_error(out, exact_attention(q, k, v)).amax().item() / 100


def run(q, k, v, numerics=OFF, action=Action.GROUP):
    """fp32 result, whatever q's dtype."""
    grouping = reference.group(v, numerics, action)
    perm = None if grouping is None else grouping.perm
    return reference.attention(reference.prepare(q, k, v, numerics, perm, means=True), numerics)


def online(operands, numerics, block_n=128):
    """Eq. 1 with Eq. 6 as written, in fp64: running maximum, alpha, numerator and normaliser, tile after tile."""
    row, key = score_factors(operands, numerics)
    q = decode(operands.q_codes, operands.q_micro, numerics.qk).double() * row[..., None]
    k = decode(operands.k_codes, operands.k_micro, numerics.qk).double() * key[..., None]
    v = values(operands, numerics).double()
    row_max = torch.full(q.shape[:-1], -torch.inf, dtype=torch.float64)
    row_sum, numerator = torch.zeros_like(row_max), torch.zeros_like(q)
    for start in range(0, k.shape[-2], block_n):
        part = slice(start, start + block_n)
        s = q @ k[:, :, part].mT
        new_max = torch.maximum(row_max, s.amax(-1))
        reference_max = new_max if numerics.p_scale == "running" else s.amax(-1)
        p, r = probabilities((s - reference_max[..., None]).float(), numerics)
        weight, alpha = torch.exp2(reference_max - new_max), torch.exp2(row_max - new_max)
        r = r.double() * weight
        tile = (
            p.double() @ v[:, :, part] * weight[..., None]
            + r[..., None] * operands.v_mean[:, :, start // 128, None].double()
        )
        numerator = alpha[..., None] * numerator + tile
        row_sum = alpha * row_sum + r
        row_max = new_max
    return numerator / row_sum[..., None]


@pytest.mark.parametrize("block_n", [64, 128])
@pytest.mark.parametrize("name", ["balanced", "quality", "int8-nvfp4", "paper-8bit", "fp8-naive", "unquantized"])
def test_equals_the_online_recurrence(name, block_n):
    numerics = PROFILES[name]
    q, k, v = random(70, 336)  # 336: a ragged last tile, whole NVFP4 groups
    grouping = reference.group(v, numerics, Action.GROUP)
    operands = reference.prepare(q, k, v, numerics, None if grouping is None else grouping.perm, means=True)
    out = reference.attention(operands, numerics, block_n, torch.float64)
    difference = relative_error(out, online(operands, numerics, block_n)).amax()
    assert difference < 0.02  # a score in fp32 or fp64 may round to the next code, rarely


@pytest.mark.parametrize("dim", [64, 128])
def test_without_quantization_it_is_attention_at_every_length(dim):
    worst = 0.0
    for seqlen in range(1, 401, 7 if dim == 64 else 57):
        q, k, v = random(1 + (seqlen * 37) % 300, seqlen, dim=dim, heads=1, seed=seqlen)
        worst = max(worst, error(run(q, k, v), q, k, v))
    assert worst < 1e-6


@settings(max_examples=40)
@given(
    st.integers(1, 400),
    st.integers(1, 400),
    st.sampled_from(["chain", "label", "none"]),
    st.sampled_from(["tile", "running"]),
)
def test_without_quantization_it_is_attention(seqlen_q, seqlen_k, order, p_scale):
    q, k, v = random(seqlen_q, seqlen_k, heads=1)
    numerics = replace(OFF, cluster_order=order, p_scale=p_scale, smooth_q="none" if seqlen_q % 2 else "block")
    assert error(run(q, k, v, numerics), q, k, v) < 1e-6


BOUNDS = {
    "balanced": 0.050, "quality": 0.022, "4bit": 0.24, "int8-nvfp4": 0.17, "paper-8bit": 0.052, "sage2-like": 0.048,
    "paper-4bit": 0.24, "sage3-like": 0.24, "fp8-naive": 0.06,
}  # fmt: skip


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("name", BOUNDS)
def test_random_inputs_stay_within_the_format_bounds(name, dim):
    q, k, v = random(256, 1024, dim=dim)
    assert error(run(q, k, v, PROFILES[name]), q, k, v) < BOUNDS[name]


@pytest.mark.parametrize("name", RUNNABLE)
def test_inputs_are_not_written_and_the_output_has_qs_type(name):
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        inputs = random(33, 150, dtype=dtype)
        before = [x.clone() for x in inputs]
        out, _ = attend(*inputs, numerics=PROFILES[name], action=Action.GROUP)
        assert out.dtype == dtype and out.shape == inputs[0].shape
        assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


@pytest.mark.parametrize("name", ["balanced", "quality", "4bit"])
def test_strides_batches_and_repeats_change_nothing(name):
    q, k, v = random(130, 257, batch=2, heads=3)
    whole, _ = attend(q, k, v, numerics=PROFILES[name], action=Action.GROUP)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    again, _ = attend(*strided, numerics=PROFILES[name], action=Action.GROUP)
    assert torch.equal(whole, again)
    for b in range(2):
        single, _ = attend(*(x[b : b + 1, 1:2] for x in (q, k, v)), numerics=PROFILES[name], action=Action.GROUP)
        assert torch.allclose(single[0, 0].float(), whole[b, 1].float(), rtol=0.01, atol=1e-3)


def test_query_rows_can_be_picked():
    q, k, v = random(300, 200)
    numerics = PROFILES["sage3-like"]
    operands = reference.prepare(q, k, v, numerics, None, means=True)
    rows = torch.tensor([299, 0, 131])
    picked, whole = reference.attention(operands, numerics, rows=rows), reference.attention(operands, numerics)
    assert torch.allclose(picked, whole[:, :, rows], atol=1e-5)


@pytest.mark.parametrize("name", RUNNABLE)
def test_nan_and_infinity_are_tamed(name):
    q, k, v = random(40, 200, dtype=torch.float16)
    for x in (q, k, v):
        x[0, 0, 3, 5], x[0, 0, 7, 9], x[0, 0, 8, 9] = float("nan"), float("inf"), -float("inf")
    out = run(q, k, v, PROFILES[name])
    assert out.isfinite().all()
    quiet = run(
        *(torch.nan_to_num(x, nan=0.0, posinf=float("inf"), neginf=-float("inf")) for x in (q, k, v)), PROFILES[name]
    )
    assert torch.equal(out, quiet)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
@pytest.mark.parametrize("name", RUNNABLE)
def test_extreme_magnitudes(name, scale):
    q, k, v = random(40, 200)
    out = run(q * scale, k, v * scale, PROFILES[name])
    assert out.isfinite().all()
    assert out.abs().amax() <= 1.2 * min(scale * v.float().abs().amax(), 2.0**40)


@pytest.mark.parametrize("name", RUNNABLE)
def test_the_largest_fp16_values_do_not_overflow(name):
    q, k, v = (x.sign().half() * 65504 for x in random(40, 200))
    out, _ = attend(q, k, v, numerics=PROFILES[name], action=Action.GROUP)
    assert out.isfinite().all()


def test_equal_keys_average_the_values():
    q, _, v = random(16, 300)
    k = torch.ones(1, 2, 300, 64, dtype=torch.bfloat16)
    out = run(q, k, v, Numerics())
    assert torch.allclose(out, v.float().mean(-2, keepdim=True).expand_as(out), atol=1e-5)


def test_one_key_returns_its_value():
    q, k, v = random(5, 1)
    for name in RUNNABLE:
        out = run(q, k, v, PROFILES[name])
        assert torch.allclose(out, v.float().expand_as(out), rtol=0.2, atol=0.02), name


def test_actions_agree_on_the_output_they_can_share():
    q, k, v = random(64, 500)
    numerics = PROFILES["balanced"]
    out, grouping = attend(q, k, v, numerics=numerics, action=Action.GROUP)
    for action in (Action.REUSE, Action.ASSIGN):
        same, kept = attend(q, k, v, numerics=numerics, action=action, grouping=grouping)
        assert torch.equal(same, out) and torch.equal(kept.perm, grouping.perm)
    plain, kept = attend(q, k, v, numerics=numerics, action=Action.PLAIN, grouping=grouping)
    assert kept is grouping and not torch.equal(plain, out)
    assert error(plain, q, k, v) < 0.06
    cold, kept = attend(q, k, v, numerics=numerics, action=Action.PLAIN)
    assert kept is None and error(cold, q, k, v) < 0.06


@pytest.mark.parametrize(
    "spoil, parameter",
    [
        (lambda q, k, v: (q[0], k, v), "q"),
        (lambda q, k, v: (q[:, :, :0], k, v), "q"),
        (lambda q, k, v: (q, k.float(), v), "k.dtype"),
        (lambda q, k, v: (q.double(), k.double(), v.double()), "q.dtype"),
        (lambda q, k, v: (q[..., :32], k[..., :32], v[..., :32]), "q.shape[-1] (head_dim)"),
        (lambda q, k, v: (q, k[:, :1], v[:, :1]), "q, k, v"),
        (lambda q, k, v: (q, k[:, :, :-1], v), "q, k, v"),
        (lambda q, k, v: (q.to("meta"), k, v), "k.device"),
        (lambda q, k, v: (q.to("meta"), k.to("meta"), v.to("meta")), "q, k, v"),
        (lambda q, k, v: (q, None, v), "k"),
    ],
)
def test_a_malformed_call_is_named(spoil, parameter):
    with pytest.raises(ParameterError) as caught:
        attend(*spoil(*random(8, 9)), numerics=OFF, action=Action.GROUP)
    assert caught.value.parameter == parameter


@pytest.mark.parametrize("action", ["plain", None])
def test_an_action_that_is_none_is_named(action):
    with pytest.raises(ParameterError, match="action must be an Action"):
        attend(*random(8, 9), numerics=OFF, action=action)


def test_the_name_of_a_profile_is_no_numerics():
    with pytest.raises(ParameterError, match="numerics must be a Numerics, got 'balanced'"):
        attend(*random(8, 9), numerics="balanced", action=Action.GROUP)


@pytest.mark.parametrize("other", [random(8, 10), random(8, 9, dim=128), random(8, 9, heads=1)])
def test_a_grouping_of_another_shape_is_named(other):
    _, grouping = attend(*random(8, 9), numerics=OFF, action=Action.GROUP)
    with pytest.raises(ParameterError, match="group again"):
        attend(*other, numerics=OFF, action=Action.ASSIGN, grouping=grouping)


def test_an_unknown_backend_is_named():
    q, k, v = random(8, 9)
    with pytest.raises(ParameterError, match="backend must be one of auto, cuda, reference"):
        attend(q, k, v, numerics=OFF, action=Action.GROUP, backend="gpu")


def test_kernels_without_a_gpu_are_refused_with_the_reason():
    with pytest.raises(KernelUnavailable, match="the tensors are on cpu"):
        attend(*random(8, 9), numerics=OFF, action=Action.GROUP, backend="cuda")


def test_scores_are_scaled_by_the_root_of_head_dim():
    q, k, v = random(1, 2, heads=1)
    q[:], k[0, 0, 0], k[0, 0, 1] = 1, 1, -1
    v[0, 0, 0], v[0, 0, 1] = 1, 0
    assert run(q, k, v).mean().item() == pytest.approx(1 / (1 + math.exp(-2 * 64 / 8)), rel=1e-6)
