"""The custom ops as torch sees them: schema, fakes, streams, graphs, memory, bad input."""

from __future__ import annotations

import pytest
import torch

from tests.gpu import cases
from vc_attention import ops, prepare
from vc_attention.config import PROFILES, Action
from vc_attention.errors import ParameterError

pytestmark = pytest.mark.gpu
OPS = torch.ops.vc_attention


def values(seqlen=700, heads=2, seed=0):
    return cases.fill((1, heads, seqlen, 128), "clusters", torch.Generator().manual_seed(seed)).bfloat16().cuda()


def calls():
    x = values()
    centroids, step, rank, perm = OPS.group(x, 8, 2, 4)
    mean, factor = OPS.channel_stats(x, x, 64, True)
    return {
        "channel_stats": (x, x, 64, True),
        "prepare_q": (x, factor),
        "prepare_k": (x, perm, mean, factor, True),
        "prepare_k_step": (x, perm, mean, factor, 2),
        "prepare_v": (x, perm, "e4m3", True, 1, True),
        "group": (x, 8, 2, 4),
        "assign": (x, centroids, step, rank),
    }


@pytest.mark.parametrize(
    "name", ("channel_stats", "prepare_q", "prepare_k", "prepare_k_step", "prepare_v", "group", "assign")
)
def test_opcheck(name):
    torch.library.opcheck(getattr(OPS, name).default, calls()[name])


@pytest.mark.parametrize("v_format", ops.V_FORMATS)
def test_inputs_are_never_written(v_format):
    x = values()
    before = x.clone()
    perm = OPS.group(x, 8, 2, 4)[3]
    kept = perm.clone()
    mean, factor = OPS.channel_stats(x, x, 64, True)
    OPS.prepare_q(x, factor)
    OPS.prepare_k(x, perm, mean, factor, True)
    OPS.prepare_v(x, perm, v_format, True, 2, False)
    assert torch.equal(x, before) and torch.equal(perm, kept)


def run(q, k, v):
    grouping = prepare.group(v, PROFILES["balanced"], Action.GROUP)
    operands = prepare.prepare(q, k, v, PROFILES["balanced"], grouping.perm, True, 256)
    return operands.q_codes, operands.k_codes, operands.v_codes, operands.v_mean, grouping.perm


def test_the_current_stream_is_used():
    expected = run(*(values(seed=s) for s in (1, 2, 3)))
    side, source = torch.cuda.Stream(), [values(seed=s) for s in (1, 2, 3)]
    late = [torch.zeros_like(x) for x in source]
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        for x, y in zip(late, source, strict=True):
            x.copy_(y)
        got = run(*late)
    side.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_a_cuda_graph_replays_with_new_data():
    static = [values(seed=s) for s in (1, 2, 3)]
    run(*static)  # kernels load before the capture
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = run(*static)
    for seed in (10, 20, 30):
        fresh = [values(seed=seed + i) for i in range(3)]
        for x, y in zip(static, fresh, strict=True):
            x.copy_(y)
        graph.replay()
        assert all(torch.equal(a, b) for a, b in zip(outputs, run(*fresh), strict=True))


def test_no_graph_break():
    x = values()
    compiled = torch.compile(
        lambda x: OPS.prepare_v(x, None, "int8", True, 2, False), fullgraph=True, backend="aot_eager"
    )
    assert all(
        torch.equal(a, b) for a, b in zip(compiled(x), OPS.prepare_v(x, None, "int8", True, 2, False), strict=True)
    )


@pytest.mark.parametrize(
    ("profile", "seqlen"),
    [("balanced", 777), ("quality", 777), *((p, 20_000) for p in ("balanced", "quality", "4bit", "int8-nvfp4"))],
)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float32))
def test_extra_memory_stays_within_the_stated_bound(seqlen, dtype, profile):
    q, k, v = (values(seqlen, heads=4, seed=s).to(dtype) for s in (1, 2, 3))
    numerics = PROFILES[profile]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    grouping = prepare.group(v, numerics, Action.GROUP)
    operands = prepare.prepare(q, k, v, numerics, grouping.perm, True, 256)
    extra = torch.cuda.max_memory_allocated() - before
    assert operands.nbytes <= extra <= prepare.extra_bytes(1, 4, seqlen, seqlen, 128, numerics, dtype)


def test_wrong_input_is_named():
    x = values()
    mean, factor = OPS.channel_stats(x, x, 64, True)
    with pytest.raises(ParameterError, match="q.dtype"):
        OPS.prepare_q(x.float(), factor)
    with pytest.raises(ParameterError, match="head_dim"):
        OPS.prepare_q(x[..., :96], factor)
    with pytest.raises(ParameterError, match="factor"):
        OPS.prepare_q(x, mean)
    with pytest.raises(ParameterError, match="q"):
        OPS.channel_stats(x[:, :1], x, 64, True)
    with pytest.raises(ParameterError, match="perm"):
        OPS.prepare_k(x, torch.zeros(1, 2, 700, dtype=torch.int64, device="cuda"), mean, factor, True)
    with pytest.raises(ParameterError, match="v_format"):
        OPS.prepare_v(x, None, "e5m2", True, 1, False)
    with pytest.raises(ParameterError, match="shared_tiles"):
        OPS.prepare_v(x, None, "int8", True, 3, False)
    with pytest.raises(ParameterError, match="clusters"):
        OPS.group(x, 513, 1, 1)
    with pytest.raises(ParameterError, match="centroids"):
        OPS.assign(x, *OPS.group(x[:, :1], 8, 1, 4)[:3])
