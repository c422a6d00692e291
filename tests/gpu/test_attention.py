"""The attention kernels equal the reference with identical operands, at every length and whatever surrounds them."""

from __future__ import annotations

import dataclasses
import math
import threading

import pytest
import torch

from vc_attention import dispatch, layout, prepare, reference, selftest
from vc_attention.attention import attend
from vc_attention.config import PROFILES, Action
from vc_attention.kernel_table import KernelSpec

pytestmark = pytest.mark.gpu

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
KINDS = [(spec, means) for spec in dispatch.KERNELS if spec.arch == "sm90" for means in (True, False)]
NAMES = [spec.kernel_name(means) for spec, means in KINDS]
# bf16 output alone is 1.65e-3. Scores and codes that round differently add little to it on many keys; on few, one code
# (up to 7% of one probability) can be all the difference. FP8 tensor cores cut small products off: with values of one
# sign, as without block means, that does not cancel.
LIMIT, LIMIT_FP8, LIMIT_FEW_KEYS = 2.5e-3, 4e-3, 1.2e-2


@pytest.fixture(autouse=True)
def _exact_reference():
    torch.backends.cuda.matmul.allow_tf32 = False


def inputs(batch, heads, seqlen_q, seqlen_k, head_dim, seed=0, gain=2.0):
    """q, k, v in bf16 on the device: scores of `gain` nats, keys and values with an offset."""
    random = torch.Generator(CUDA).manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=random, device=CUDA)

    q = gain * normal(batch, heads, seqlen_q, head_dim)
    k = normal(batch, heads, seqlen_k, head_dim) + normal(batch, heads, 1, head_dim)
    v = normal(batch, heads, seqlen_k, head_dim) + 0.3 * normal(batch, heads, 1, head_dim)
    return q.bfloat16(), k.bfloat16(), v.bfloat16()


def both(spec, means, q, k, v, dtype=torch.bfloat16, poison=False):
    """(kernel's output, reference's in fp64) from the same operands, made by the reference."""
    made, expected = by_spec(spec, means, q, k, v)
    operands = selftest.operands_on(CUDA, made, means)
    if poison:
        operands = surround(operands)
    return dispatch.run(operands, selftest.numerics_of(spec), dtype), expected


def by_spec(spec, means, q, k, v, numerics=None, perm=None):
    """(operands of the reference for the kernel, its output in fp64)."""
    numerics = numerics or selftest.numerics_of(spec)
    made = reference.prepare(q, k, v, numerics, perm, means, spec.block_n, spec.packed)
    made = dataclasses.replace(made, v_mean=layout.tf32(made.v_mean))
    return made, reference.attention(made, numerics, spec.block_n, torch.float64, packed=spec.packed)


def by_reference(q, k, v, profile: str, action: Action):
    """What a call on a Hopper GPU is to give, from the reference alone: its tiles are the kernel's."""
    numerics, means = PROFILES[profile], action is not Action.PLAIN
    spec = next(spec for spec, _ in KINDS if not spec.misfits(numerics, q.shape[-1]))
    perm = reference.group(v, numerics, action).perm if means else None
    return by_spec(spec, means, q, k, v, numerics, perm)[1]


def surround(operands: prepare.Operands) -> prepare.Operands:
    """The same operands between bytes that are NaN in every format and far out of range as integers."""
    moved = {}
    for field in dataclasses.fields(operands):
        tensor = getattr(operands, field.name)
        if not isinstance(tensor, torch.Tensor):
            continue
        data = tensor.view(torch.uint8).flatten()
        buffer = torch.full((data.numel() + 8192,), 0xFF, dtype=torch.uint8, device=CUDA)
        buffer[4096 : 4096 + data.numel()] = data
        moved[field.name] = buffer[4096 : 4096 + data.numel()].view(tensor.dtype).view(tensor.shape)
    return dataclasses.replace(operands, **moved)


def limit(spec, means, keys):
    """What a relative error must stay below."""
    if keys <= 300:
        return LIMIT_FEW_KEYS
    return LIMIT if spec.probability == "u8" or spec.packed or (means and keys > 1100) else LIMIT_FP8


def error(out, expected):
    assert out.isfinite().all()
    return float((out.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("spec", "means"), KINDS, ids=NAMES)
@pytest.mark.parametrize(
    "shape", [(1, 2, 1024, 2048), (2, 3, 1000, 1333), (1, 2, 300, 5000), (1, 1, 129, 8200)], ids=str
)
def test_equals_the_reference(spec, means, shape):
    out, expected = both(spec, means, *inputs(*shape, spec.head_dim), poison=True)
    assert error(out, expected) < limit(spec, means, shape[3])


@pytest.mark.parametrize(("spec", "means"), KINDS, ids=NAMES)
def test_peaky_heads_and_fp16(spec, means):
    out, expected = both(spec, means, *inputs(1, 2, 512, 1000, spec.head_dim, gain=12.0), dtype=torch.float16)
    assert error(out, expected) < 4e-3


@pytest.mark.parametrize(("spec", "means"), KINDS, ids=NAMES)
def test_fp16_output_saturates(spec, means):
    numerics = selftest.numerics_of(spec)
    q, k, v = inputs(1, 2, 200, 700, spec.head_dim)
    made = reference.prepare(q, k, v * 1e6, numerics, None, means, spec.block_n, spec.packed)
    out = dispatch.run(selftest.operands_on(CUDA, made, means), numerics, torch.float16)
    assert out.isfinite().all() and out.abs().amax() == torch.finfo(torch.float16).max


@pytest.mark.parametrize(("spec", "means"), KINDS, ids=NAMES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_sums_there_can_be(spec, means, sign):
    """Equal scores have the top code everywhere, equal values the largest one: 64,512 of the 65,504 that fp16 has."""
    q, k, v = inputs(1, 2, 200, 1500, spec.head_dim)
    v = torch.full_like(v, sign)
    v[:, :, 256:512] = -sign
    v[:, :, 1024:1152:2] = 0.0
    out, expected = both(spec, means, q * 0.0, k, v, dtype=torch.float16)
    assert error(out, expected) < 1e-3


@pytest.mark.parametrize("probability", ["expcast", "u8"])
@pytest.mark.parametrize("head_dim", [128, 64])
def test_every_length(probability, head_dim):
    spec = next(
        s for s in dispatch.KERNELS if (s.probability, s.head_dim, s.p_scale) == (probability, head_dim, "tile")
    )
    near_tiles = (n for tile in range(1152, 8321, 128) for n in (tile - 1, tile, tile + 1))
    step = 1 if (probability, head_dim) == ("expcast", 128) else 7
    lengths = [*range(1, 1031, step), *near_tiles]
    failures = {}
    for length in lengths:
        q, k, v = inputs(1, 1, min(length, 1030), length, head_dim, seed=length)
        means = length % 2 == 0
        made, expected = by_spec(spec, means, q, k, v)
        operands = surround(selftest.operands_on(CUDA, made, means))
        out, again = (dispatch.run(operands, selftest.numerics_of(spec), torch.bfloat16) for _ in range(2))
        found = error(out, expected)
        if found > limit(spec, means, length) or not torch.equal(out, again):
            failures[length] = found
    assert not failures


def late_keys(head_dim: int):
    """q, k, v of equal queries that find little at first and then, more than once, a key far above all before."""
    q, k, v = inputs(1, 2, 256, 2048, head_dim)
    k = torch.randn_like(k) * 0.02
    for place, size in ((700, 3.0), (1100, 9.0), (1900, 40.0)):
        k[..., place, :] = q[..., 0, :] * size
    q = q[..., :1, :].expand(-1, -1, 256, -1).contiguous()
    return q, k, v


@pytest.mark.parametrize(("spec", "means"), KINDS[:2] + KINDS[8:10], ids=NAMES[:2] + NAMES[8:10])
def test_a_later_key_far_above_all_earlier_ones(spec, means):
    """The first tiles hold almost nothing: their sums must give way to what comes, more than once."""
    out, expected = both(spec, means, *late_keys(spec.head_dim))
    assert error(out, expected) < 4e-3


def sinks(head_dim: int, gain: float):
    """Rows of any steepness, and in every fourth tile a key along the first query, of up to `gain` times its size."""
    q, k, v = inputs(2, 2, 200, 1333, head_dim)
    q = q * torch.logspace(-3, 1, 200, device=CUDA)[:, None].bfloat16()
    for place in range(50, 1333, 512):
        k[..., place, :] = gain * torch.nn.functional.normalize(q[..., 199, :].float(), dim=-1).bfloat16()
    return q, k, v


# Slopes that Softmax::set_slope takes as they are reach 30; those of packed scores are the reference's at any gain.
@pytest.mark.parametrize(
    ("spec", "means", "gain"),
    [(spec, means, gain) for gain in (30.0, 300.0, 3000.0) for spec, means in KINDS if spec.packed or gain == 30.0],
    ids=lambda x: x.kernel_name(False) if isinstance(x, KernelSpec) else str(x),
)
def test_rows_of_any_steepness_with_keys_far_above_the_others(spec, means, gain):
    out, expected = both(spec, means, *sinks(spec.head_dim, gain), dtype=torch.float16)
    assert error(out, expected) < LIMIT_FP8


@pytest.mark.parametrize("profile", ["balanced", "quality"])
def test_broken_and_huge_inputs_stay_finite(profile):
    q, k, v = inputs(1, 2, 300, 1500, 128)
    q[0, 0, 5, 3], k[0, 1, 7, 9], v[0, 0, 11, 2] = math.nan, math.inf, -math.inf
    q[0, 1] *= 1e4
    k[0, 1] *= 1e4
    out, _ = attend(q, k, v, numerics=PROFILES[profile], action=Action.GROUP, backend="cuda")
    expected = by_reference(q, k, v, profile, Action.GROUP)
    assert out.isfinite().all()
    assert error(out[0, 0, :, 3:], expected[0, 0, :, 3:]) < LIMIT_FP8


@pytest.mark.parametrize("profile", ["balanced", "quality"])
@pytest.mark.parametrize("action", [Action.GROUP, Action.PLAIN])
def test_a_call_end_to_end(profile, action):
    """Inputs between NaN, output next to the reference's; never written."""
    padded = [torch.full((2, 3, x + 64, 128), math.nan, device=CUDA, dtype=torch.bfloat16) for x in (777, 1300, 1300)]
    views = [x[:, :, 32:-32] for x in padded]
    for view, values in zip(views, inputs(2, 3, 777, 1300, 128), strict=True):
        view.copy_(values)
    before = [view.clone() for view in views]
    out, _ = attend(*views, numerics=PROFILES[profile], action=action, backend="cuda")
    expected = by_reference(*views, profile, action)
    assert all(torch.equal(view, old) for view, old in zip(views, before, strict=True))
    assert out.shape == expected.shape and out.dtype == views[0].dtype
    assert error(out, expected) < LIMIT_FP8
    assert out.transpose(1, 2).is_contiguous()  # [B, N, H * D] is what follows in a model


@pytest.mark.parametrize("profile", ["balanced", "quality"])
@pytest.mark.parametrize("action", [Action.GROUP, Action.PLAIN])
def test_calls_of_every_kind_of_length_between_nan(profile, action):
    """Whole calls on views that NaN surrounds, also where the last tile's missing rows would lie."""
    failures = {}
    for length in (*range(1, 1031, 41), 1151, 1152, 1153, 2047, 2049):
        padded = [torch.full((1, 2, length + 300, 128), math.nan, device=CUDA, dtype=torch.bfloat16) for _ in range(3)]
        views = [x[:, :, 150:-150] for x in padded]
        for view, values in zip(views, inputs(1, 2, length, length, 128, seed=length), strict=True):
            view.copy_(values)
        out, _ = attend(*views, numerics=PROFILES[profile], action=action, backend="cuda")
        found = error(out, by_reference(*views, profile, action))
        if found > (LIMIT_FEW_KEYS if length <= 300 else LIMIT_FP8):
            failures[length] = found
    assert not failures


def test_same_bits_on_every_run():
    spec = dispatch.KERNELS[0]
    numerics = selftest.numerics_of(spec)
    made = reference.prepare(*inputs(1, 4, 2000, 3000, 128), numerics, None, True, spec.block_n, spec.packed)
    operands = selftest.operands_on(CUDA, made, True)
    first = dispatch.run(operands, numerics, torch.bfloat16)
    for _ in range(20):
        assert torch.equal(dispatch.run(operands, numerics, torch.bfloat16), first)


def test_last_rows_of_200k_tokens_of_a_fused_buffer():
    """Offsets beyond 2^31 elements: q, k and v lie side by side in one [N, 3, 56, 128] buffer."""
    tokens, heads = 200_000, 56
    fused = torch.empty(1, tokens, 3, heads, 128, device=CUDA, dtype=torch.bfloat16)
    for start in range(0, tokens, 20_000):
        fused[:, start : start + 20_000].normal_()
    q, k, v = (fused[:, :, i].transpose(1, 2) for i in range(3))
    out, _ = attend(q, k, v, numerics=PROFILES["balanced"], action=Action.PLAIN, backend="cuda")
    for head in (0, heads - 1):
        rows, keys, values = (x[:, head].float() for x in (q[:, :, -64:], k, v))
        expected = torch.softmax(rows @ keys.mT / math.sqrt(128), -1) @ values
        assert error(out[:, head, -64:], expected.double()) < 0.06


def test_streams_threads_and_graphs():
    spec = dispatch.KERNELS[0]
    numerics = selftest.numerics_of(spec)
    operands = selftest.operands_on(
        CUDA, reference.prepare(*inputs(1, 2, 700, 1500, 128), numerics, None, True, spec.block_n, spec.packed), True
    )
    expected = dispatch.run(operands, numerics, torch.bfloat16)
    torch.cuda.synchronize()  # no other stream waits for the one on which operands are made
    results = []

    def work():
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(dispatch.run(operands, numerics, torch.bfloat16))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = dispatch.run(operands, numerics, torch.bfloat16)
    captured.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(result, expected) for result in (*results, captured))


def test_operator_works_on_fake_tensors():
    spec = dispatch.KERNELS[0]
    numerics = selftest.numerics_of(spec)
    o = selftest.operands_on(
        CUDA, reference.prepare(*inputs(1, 2, 200, 300, 128), numerics, None, True, spec.block_n, spec.packed), True
    )
    arguments = (
        o.q_codes, o.q_scale, o.k_codes, o.k_scale, o.v_codes, o.v_scale, o.v_mean,
        o.q_micro, o.k_micro, o.k_bias, o.v_micro, o.seqlen_q, o.seqlen_k,
        dispatch.score_scale(128), "expcast", "tile", False,
    )  # fmt: skip
    torch.library.opcheck(torch.ops.vc_attention.attention.default, arguments)


def test_selection_names_every_reason():
    assert isinstance(dispatch.select(CUDA, PROFILES["balanced"], 128), dispatch.KernelSpec)
    reasons = dispatch.select(CUDA, PROFILES["4bit"], 96, seqlen_k=100)
    assert any("qk" in reason for reason in reasons)
    assert any("head_dim" in reason for reason in reasons)
    assert any("100" in reason for reason in reasons)
    assert dispatch.select(CPU, PROFILES["balanced"], 128) == ["kernels need an NVIDIA GPU, the tensors are on cpu"]


def test_a_kernel_that_fails_its_self_test_is_refused(monkeypatch):
    monkeypatch.setattr(dispatch, "_tested", {})
    monkeypatch.setattr(selftest, "error", lambda *_: 0.3)
    (reason,) = dispatch.select(CUDA, PROFILES["balanced"], 128)
    assert "0.3" in reason and "install.py" in reason
