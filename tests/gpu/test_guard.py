"""The guard on a GPU: exact rows, the same draw as on the host, and no wait once a layer is proven."""

import math

import pytest
import torch

from vc_attention import attention, guard
from vc_attention.config import PROFILES, Action
from vc_attention.stopwatch import Stopwatch

pytestmark = pytest.mark.gpu


def tensors(dtype=torch.bfloat16, tokens=3000, heads=3):
    random = torch.Generator("cuda").manual_seed(0)
    size = (1, tokens, heads, 128)
    return tuple(torch.randn(size, generator=random, device="cuda").to(dtype).transpose(1, 2) for _ in range(3))


def call(q, k, v, grouping=None):
    action = Action.GROUP if grouping is None else Action.REUSE
    numerics = PROFILES["balanced"]
    return attention.attend(q, k, v, numerics=numerics, action=action, grouping=grouping, backend="cuda")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_exact_rows_are_exact(dtype, monkeypatch):
    monkeypatch.setattr(guard, "SCORES", 1 << 16)  # a head at a time
    q, k, v = tensors(dtype)
    out = guard.exact_rows(3.0 * q[:, :, :40], k, v).double()
    exact = ((3.0 * q[:, :, :40]).double() @ k.double().mT / 128**0.5).softmax(-1) @ v.double()
    assert (out - exact).norm() / exact.norm() < 3e-5


def test_host_and_gpu_draw_the_same_rows():
    _, _, out = tensors()
    for seed in (0, 12345, 4294967295):
        (rows, weight), (host_rows, host_weight) = guard.sample_rows(out, seed), guard.sample_rows(out.cpu(), seed)
        assert (rows.cpu() == host_rows).float().mean() > 0.99  # sums of squares may differ in the last bit
        assert torch.allclose(weight.cpu(), host_weight, rtol=1e-3)


def test_a_proven_layer_is_measured_without_waiting():
    q, k, v = tensors()
    _, grouping = call(q, k, v)
    told = []
    watch = guard.Guard(0.2, told.append)

    def attempt(rung, qkv):
        return call(*qkv, grouping)

    assert watch.call("layer", 0, [q, k, v], attempt, ("balanced",)) is not None and len(told) == 1
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        stopwatch = Stopwatch(q.device)
        out = watch.call("layer", guard.INTERVAL, [q, k, v], attempt, ("balanced",))
        stopwatch.lap("call")
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(told) == 1 and watch.rung("layer", guard.INTERVAL + 1) == 0 and len(told) == 2
    exact = guard.exact_rows(q, k, v)
    true = float((out.float() - exact).norm() / exact.norm())
    assert all(math.isclose(one.error, true, rel_tol=0.15) for one in told)
    assert stopwatch.milliseconds()["call"] > 0
