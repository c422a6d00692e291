"""Loading and launching on a driver without a GPU, by both launchers."""

import ctypes
import threading

import pytest

from vc_attention import driver, launch, launchers
from vc_attention.build import cache, selftest
from vc_attention.build.units import INTERFACE
from vc_attention.errors import KernelUnavailable, ParameterError

PARAMS = selftest.LAYOUT.pack(out=None, count=-5, multiplier=60000, offset=2**63 + 9, scale=0.1)


class Launched(ctypes.Structure):
    """What fake_driver.c recorded of the last launch."""

    _fields_ = [
        ("context", ctypes.c_uint64), ("function", ctypes.c_uint64), ("stream", ctypes.c_uint64),
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("params", ctypes.c_ubyte * 256),
    ]  # fmt: skip


def last(fake):
    fake.fake_last.restype = ctypes.POINTER(Launched)
    return fake.fake_last().contents


@pytest.fixture(params=["ctypes", "pybind11"])
def either(request, fake_driver, monkeypatch):
    """Both launchers, one after the other, on the fake driver."""
    if request.param == "pybind11":
        folder = request.getfixturevalue("compiled_module")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cache, "folders", lambda: [folder])
            chosen = launchers.load_compiled(fake_driver._name)
        monkeypatch.setattr(launch, "choose", lambda: chosen)
    assert launch.launcher().name == request.param
    return fake_driver


def test_a_launch_reaches_the_driver_as_it_was_asked(either, built):
    built("90a")
    kernel = launch.kernel("selftest", "vc_selftest", 0)
    kernel.launch((3, 2, 1), (64, 2, 1), 0, 0xABC0, PARAMS)
    seen = last(either)
    assert (list(seen.grid), list(seen.block), seen.shared, seen.stream) == ([3, 2, 1], [64, 2, 1], 0, 0xABC0)
    assert bytes(seen.params[:32]) == PARAMS
    assert seen.context == 0x1000


def test_the_self_test_computes_its_pattern(either, built):
    built("80")
    assert "sm_80 kernels run, launched by" in selftest.run(1)


def test_a_wrong_result_fails_the_self_test(either, built, monkeypatch):
    built("90a")
    monkeypatch.setenv("FAKE_COMPUTES_NOTHING", "1")
    with pytest.raises(launch.LaunchError, match="1000 of 1000 values differ, the first at 0"):
        selftest.run(0)


def test_shared_memory_is_allowed_once_and_only_beyond_what_is_free(either, built):
    built("90a")
    kernel = launch.kernel("selftest", "vc_selftest", 0)
    kernel.launch((1, 1, 1), (32, 1, 1), 48 * 1024, 0, PARAMS)
    assert either.fake_shared_limit() == 0
    kernel.launch((1, 1, 1), (32, 1, 1), 200_000, 0, PARAMS)
    kernel.launch((1, 1, 1), (32, 1, 1), 100_000, 0, PARAMS)
    assert either.fake_shared_limit() == 200_000
    assert last(either).shared == 100_000


def test_refusals_name_kernel_gpu_and_shape(either, built):
    built("90a")
    kernel = launch.kernel("selftest", "vc_selftest", 0)
    for shared, block in ((300_000, 32), (0, 2048)):
        with pytest.raises(launch.LaunchError) as caught:
            kernel.launch((1, 1, 1), (block, 1, 1), shared, 0, PARAMS)
        for part in ("vc_selftest", "sm_90a", "Fake 0, 9.0", f"block ({block}, 1, 1)", f"{shared} bytes", "CUDA_ERROR"):
            assert part in str(caught.value)


def test_a_struct_of_the_wrong_size_never_reaches_the_driver(either, built):
    built("90a")
    with pytest.raises(ParameterError, match="params must be 32 bytes for vc_selftest, got 24"):
        launch.kernel("selftest", "vc_selftest", 0).launch((1, 1, 1), (32, 1, 1), 0, 0, PARAMS[:24])


def test_the_callers_context_stays_current(either, built):
    built("120a")
    either.fake_push(ctypes.c_uint64(0x1000))
    launch.kernel("selftest", "vc_selftest", 2).launch((1, 1, 1), (32, 1, 1), 0, 0, PARAMS)
    assert last(either).context == 0x1002
    current = ctypes.c_uint64()
    either.cuCtxGetCurrent(ctypes.byref(current))
    assert (current.value, either.fake_depth()) == (0x1000, 1)


def test_threads_load_a_module_once_per_device(fake_driver, built):
    built("90a"), built("80")
    kernels = []
    barrier = threading.Barrier(8)

    def ask(number):
        barrier.wait()
        kernels.append(launch.kernel("selftest", "vc_selftest", number % 2))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fake_driver.fake_modules() == 2
    assert len(set(map(id, kernels))) == 2


def test_built_for_one_gpu_and_run_on_another(fake_driver, built):
    built("80")
    with pytest.raises(KernelUnavailable) as caught:
        launch.kernel("selftest", "vc_selftest", 2)
    for part in (
        "built for sm_80",
        "GPU 2 (Fake 2, 12.0) needs sm_120a",
        "install.py",
        '--arch "120a"',
        "restart ComfyUI",
    ):
        assert part in str(caught.value)
    assert launch.missing("selftest", 2) == str(caught.value)
    assert launch.missing("selftest", 1) is None


def test_nothing_built_and_no_such_gpu(fake_driver, folders):
    assert "selftest is built for no GPU" in launch.missing("selftest", 0)
    assert "cuDeviceGet" in launch.missing("selftest", 9)
    with pytest.raises(launch.LaunchError, match="device 9"):
        launch.kernel("selftest", "vc_selftest", 9)


def test_a_gpu_that_a_unit_is_not_written_for(fake_driver, built, monkeypatch):
    monkeypatch.setenv("FAKE_GPUS", "7.5")
    assert "selftest is written for sm_80" in launch.missing("selftest", 0)


def test_a_kernel_that_the_unit_has_not(fake_driver, built):
    with pytest.raises(ParameterError, match="name must be one of vc_selftest, got 'vc_other'"):
        launch.kernel("selftest", "vc_other", 0)


def test_a_damaged_cubin_never_reaches_the_driver(fake_driver, built):
    built("90a").path.write_bytes(b"\x7fELF cut")
    with pytest.raises(KernelUnavailable, match="damaged"):
        launch.kernel("selftest", "vc_selftest", 0)
    assert fake_driver.fake_modules() == 0


def test_a_cubin_that_the_driver_refuses(fake_driver, built, monkeypatch):
    built("90a")
    monkeypatch.setenv("FAKE_REFUSES", "1")
    with pytest.raises(launch.LaunchError, match="vc_selftest.*CUDA_ERROR_NO_BINARY_FOR_GPU"):
        launch.kernel("selftest", "vc_selftest", 0)


def test_no_driver_is_a_reason_not_a_crash():
    with pytest.raises(driver.DriverError, match=r"libnone\.so does not load"):
        driver.Driver("libnone.so")


class TestChoice:
    """Which launcher is taken, and what is said when it is not the compiled one."""

    @pytest.fixture(autouse=True)
    def fresh(self):
        launchers.choose.cache_clear()
        yield
        launchers.choose.cache_clear()

    def test_never_built(self, folders, fake_driver):
        chosen = launchers.choose(fake_driver._name)
        assert (chosen.name, chosen.reason) == ("ctypes", "it was never built")

    def test_built(self, compiled_module, fake_driver, monkeypatch):
        monkeypatch.setattr(cache, "folders", lambda: [compiled_module])
        chosen = launchers.choose(fake_driver._name)
        assert (chosen.name, chosen.reason) == ("pybind11", "")

    def test_built_by_another_python(self, folders, fake_driver):
        made_of = {**launchers.identity(), "suffix": ".cp399.so"}
        cache.store("launcher-cpython-399", ".so", b"x", made_of, {"python": "/elsewhere/python"})
        chosen = launchers.choose(fake_driver._name)
        assert chosen.name == "ctypes"
        assert "built for /elsewhere/python, running" in chosen.reason

    def test_an_older_interface(self, folders, fake_driver):
        made_of = {**launchers.identity(), "interface": INTERFACE - 1}
        cache.store(launchers.entry_name(), launchers.suffix(), b"x", made_of, {})
        assert "differs in interface" in launchers.choose(fake_driver._name).reason

    def test_no_extension_module(self, folders, fake_driver):
        cache.store(launchers.entry_name(), launchers.suffix(), b"not one", launchers.identity(), {})
        chosen = launchers.choose(fake_driver._name)
        assert chosen.name == "ctypes" and chosen.reason

    def test_a_module_that_speaks_another_interface(self, compiled_module, fake_driver, monkeypatch):
        monkeypatch.setattr(cache, "folders", lambda: [compiled_module])
        monkeypatch.setattr(launchers, "identity", lambda: {})
        monkeypatch.setattr(launchers, "INTERFACE", INTERFACE + 1)
        assert f"speaks interface {INTERFACE}, the pack {INTERFACE + 1}" in launchers.choose(fake_driver._name).reason
