"""Launching on a real GPU beside torch: its memory, its streams, its graphs, threads."""

import threading

import pytest
import torch

from vc_attention import driver, launch, launchers
from vc_attention.build import selftest

pytestmark = pytest.mark.gpu

DEVICE = 0


def both():
    """The launcher in use, and ctypes."""
    in_use = launch.launcher()
    return [in_use] if in_use.name == "ctypes" else [in_use, launchers.CtypesLauncher(driver.LIBRARY, "to compare")]


@pytest.fixture(scope="module", autouse=True)
def built():
    reason = launch.missing("selftest", DEVICE)
    assert reason is None, reason


@pytest.fixture(params=[0, 1], ids=["in-use", "ctypes"])
def kernel(request):
    if request.param >= len(both()):
        pytest.skip("the launcher in use is ctypes")
    found = launch.kernel("selftest", "vc_selftest", DEVICE)
    module = launch._modules["selftest", DEVICE]
    return launch.Kernel(found.name, module, both()[request.param])


def fill(kernel, out, offset=0, stream=None):
    params = selftest.LAYOUT.pack(out=out, count=out.numel(), multiplier=3, offset=offset, scale=0.0)
    stream = torch.cuda.current_stream(out.device) if stream is None else stream
    kernel.launch((-(-out.numel() // 128), 1, 1), (128, 1, 1), 0, stream.cuda_stream, params)


def expect(count, offset):
    return torch.arange(count, dtype=torch.int32, device=f"cuda:{DEVICE}") * 3 + offset


def test_it_fills_a_tensor_of_torch(kernel):
    out = torch.empty(100_001, dtype=torch.int32, device=f"cuda:{DEVICE}")
    fill(kernel, out, 7)
    assert torch.equal(out, expect(out.numel(), 7))


def test_it_runs_in_order_on_the_stream_it_is_given(kernel):
    stream = torch.cuda.Stream(DEVICE)
    out = torch.zeros(1 << 20, dtype=torch.int32, device=f"cuda:{DEVICE}")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        fill(kernel, out, 1)
        doubled = out * 2
    stream.synchronize()
    assert torch.equal(doubled, expect(out.numel(), 1) * 2)


def test_it_is_captured_in_a_graph(kernel):
    out = torch.zeros(1000, dtype=torch.int32, device=f"cuda:{DEVICE}")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fill(kernel, out, 5)
    out.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expect(1000, 5))


def test_a_thread_without_a_context_may_launch(kernel):
    out = torch.zeros(1000, dtype=torch.int32, device=f"cuda:{DEVICE}")
    stream = torch.cuda.current_stream(DEVICE)
    thread = threading.Thread(target=fill, args=(kernel, out, 9, stream))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.equal(out, expect(1000, 9))


def test_the_driver_tells_the_size_of_the_parameter(kernel):
    """Where it can (CUDA 12.4 and later), a struct declared wrongly is refused before it is read past its end."""
    assert kernel._parameter_bytes == selftest.LAYOUT.size or driver.load().version() < (12, 4)


def test_the_self_test_passes():
    assert "kernels run, launched by" in selftest.run(DEVICE)
