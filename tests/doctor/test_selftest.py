"""The self-test of the 4-bit matrix instruction on GPUs that are not there: right ones pass, wrong ones fail."""

from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest
import torch

from tests.doctor import fake_mma
from tests.gpu import emulated
from vc_attention import dispatch, launch, selftest
from vc_attention.build import compilers, kernels, toolchain
from vc_attention.build.tasks import Task
from vc_attention.config import PROFILES

CPU = torch.device("cpu")


def swap(register: str, shift: int, mask: int):
    """A belief that exchanges neighbouring fields of a register."""

    def belief(registers):
        low = registers[register] & np.uint32(mask)
        registers[register] = registers[register] >> np.uint32(shift) & np.uint32(mask) | low << np.uint32(shift)

    return belief


def take(register: str, *, lanes=slice(None), order=None):
    """A belief that holds another lane's value, or the registers of a lane in another order."""

    def belief(registers):
        registers[register] = registers[register][:, lanes]
        if order is not None:
            registers[register] = registers[register][..., order]

    return belief


BELIEFS = {
    "nibbles of a": swap("a", 4, 0x0F0F0F0F),
    "nibbles of b": swap("b", 4, 0x0F0F0F0F),
    "bytes of a": swap("a", 8, 0x00FF00FF),
    "halves of b": swap("b", 16, 0x0000FFFF),
    "scale bytes of a": swap("a_scale", 8, 0x00FF00FF),
    "scale halves of b": swap("b_scale", 16, 0x0000FFFF),
    "lanes of a across": take("a", lanes=8 * fake_mma.T + fake_mma.G),
    "lanes of b across": take("b", lanes=8 * fake_mma.T + fake_mma.G),
    "neighbouring lanes of a": take("a", lanes=fake_mma.LANES ^ 1),
    "rows of a eight apart": take("a", order=[1, 0, 3, 2]),
    "k of a 32 apart": take("a", order=[2, 3, 0, 1]),
    "registers of a as of 16-bit types": take("a", order=[0, 2, 1, 3]),
    "k of b 32 apart": take("b", order=[1, 0]),
    "scale lanes of a": take("a_scale", lanes=fake_mma.LANES ^ 1),
    "scale lanes of b": take("b_scale", lanes=fake_mma.LANES ^ 4),
    "selector of a": lambda registers: registers.update(thread_id_a=1 - registers["thread_id_a"]),
    "selector of b": lambda registers: registers.update(thread_id_b=registers["thread_id_b"] * 0),
    "signs of a": lambda registers: registers.update(a=registers["a"] ^ np.uint32(0x88888888)),
}


@pytest.fixture
def gpu(monkeypatch):
    """gpu(kernel) puts a fake kernel where the GPU's would be."""

    def be(kernel):
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: types.SimpleNamespace(cuda_stream=0))
        monkeypatch.setattr(launch, "kernel", lambda unit, name, device: kernel)
        return kernel

    return be


@pytest.mark.parametrize("bits", [None, 13], ids=["exact", "tensor cores that keep 13 bits"])
def test_a_gpu_that_computes_as_the_ptx_isa_says_passes(gpu, bits):
    kernel = gpu(fake_mma.Kernel(bits=bits))
    assert selftest.mma_mismatch(CPU) is None and kernel.launches == 1


@pytest.mark.parametrize("name", BELIEFS)
def test_a_wrong_belief_is_caught(gpu, name):
    gpu(fake_mma.Kernel(BELIEFS[name]))
    mismatch = selftest.mma_mismatch(CPU)
    assert mismatch is not None and "values wrong, the first at product" in mismatch


def test_one_wrong_scale_code_is_caught(gpu):
    def subnormals_are_zero(registers):
        scale = registers["a_scale"]
        registers["a_scale"] = np.where((scale & np.uint32(0xFF)) < 8, np.uint32(0), scale)

    gpu(fake_mma.Kernel(subnormals_are_zero))
    assert "product 1," in selftest.mma_mismatch(CPU)  # the sweep's second code is the smallest


ROUNDINGS = {
    "nibbles": lambda packed: packed >> np.uint32(4) & np.uint32(0x0F0F0F0F) | (packed & np.uint32(0x0F0F0F0F)) << 4,
    "bytes": lambda packed: packed.byteswap(),
}


@pytest.mark.parametrize("name", ROUNDINGS)
def test_a_wrong_rounding_is_caught(gpu, name):
    gpu(fake_mma.Kernel(pack=lambda x: ROUNDINGS[name](fake_mma.pack(x))))
    assert "its rounding to 4 bits gives" in selftest.mma_mismatch(CPU)


def test_ties_the_wrong_way_are_caught(gpu):
    gpu(fake_mma.Kernel(pack=lambda x: fake_mma.pack(x + np.float32(1e-3))))
    assert "its rounding to 4 bits gives" in selftest.mma_mismatch(CPU)


def test_a_kernel_that_writes_nothing_is_caught(gpu):
    kernel = gpu(fake_mma.Kernel())
    kernel.launch = lambda *arguments: None
    assert "nan instead of" in selftest.mma_mismatch(CPU)


def test_operands_hold_every_code_on_either_side():
    operands = selftest.mma_operands()
    for codes in (operands.a, operands.b):
        assert set(torch.cat((codes & 15, codes >> 4)).flatten().tolist()) == set(range(16))
    for scales in (operands.a_scale, operands.b_scale):
        assert set(scales.flatten().tolist()) == set(range(127))


@pytest.mark.gpu
def test_the_kernel_itself_where_halves_emulate_the_instruction(monkeypatch):
    """The same csrc/mma/selftest.cuh on a Hopper card: the host's side of the test and the kernel's mean the same."""
    if torch.cuda.get_device_capability() != emulated.CAPABILITY:
        pytest.skip("the emulated kernels are built for Hopper")
    task = Task(emulated.SELFTEST, emulated.TARGET)
    assert not kernels.build([task], compilers.available(toolchain.probe(), "auto", None)[0], print)
    monkeypatch.setitem(launch.UNITS, selftest.MMA_UNIT, emulated.SELFTEST)
    assert selftest.mma_mismatch(torch.device("cuda", torch.cuda.current_device())) is None


class TestSelection:
    """What becomes of 4 bits when the instruction fails, on an RTX 50 that has kernels for 4 and 8 bits."""

    FOUR = dataclasses.replace(dispatch.KERNELS[0], unit="four", qk="nvfp4", probability="nvfp4", p_scale="running")
    EIGHT = dataclasses.replace(dispatch.KERNELS[0], unit="eight")

    @pytest.fixture(autouse=True)
    def rtx_50(self, monkeypatch):
        specs = tuple(dataclasses.replace(spec, capabilities=((12, 0),)) for spec in (self.FOUR, self.EIGHT))
        monkeypatch.setattr(dispatch, "KERNELS", specs)
        monkeypatch.setattr(dispatch, "_tested", {})
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (12, 0))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Fake 5090")
        monkeypatch.setattr(launch, "missing", lambda unit, device: None)
        monkeypatch.setattr(dispatch.prepare, "unsupported", lambda numerics: [])
        monkeypatch.setattr(selftest, "error", lambda spec, device, means: 0.0)

    def select(self, name):
        return dispatch.select(torch.device("cuda", 0), PROFILES[name], 128)

    def test_both_widths_run_where_it_passes(self, monkeypatch):
        monkeypatch.setattr(selftest, "mma_mismatch", lambda device: None)
        assert (self.select("4bit").unit, self.select("balanced").unit) == ("four", "eight")

    def test_only_4_bits_are_refused_where_it_fails(self, monkeypatch):
        monkeypatch.setattr(selftest, "mma_mismatch", lambda device: "its matrix instruction is off")
        (reason,) = self.select("4bit")
        for part in ("four", "cuda:0", "its matrix instruction is off", "doctor", "report"):
            assert part in reason
        assert self.select("balanced").unit == "eight"

    def test_a_launch_that_fails_refuses_with_its_words(self, monkeypatch):
        def fails(device):
            raise launch.LaunchError("CUDA_ERROR_ILLEGAL_INSTRUCTION")

        monkeypatch.setattr(selftest, "mma_mismatch", fails)
        (reason,) = self.select("4bit")
        assert "CUDA_ERROR_ILLEGAL_INSTRUCTION" in reason

    def test_8_bits_do_not_wait_for_it(self, monkeypatch):
        monkeypatch.setattr(selftest, "mma_mismatch", lambda device: pytest.fail("asked for 8 bits"))
        assert self.select("balanced").unit == "eight"

    def test_another_gpu_is_told_which_ones_have_4_bits(self, monkeypatch):
        hopper = dataclasses.replace(self.EIGHT, capabilities=((9, 0),))
        monkeypatch.setattr(dispatch, "KERNELS", (*dispatch.KERNELS, hopper))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        assert self.select("4bit") == ["Fake 5090 is 9.0, attention kernels of this kind are for 12.0"]
        assert self.select("balanced").unit == "eight"
