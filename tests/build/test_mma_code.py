"""What the mma.sync kernels are compiled to: tensor-core instructions, nothing spilled, few instructions per score."""

from __future__ import annotations

import pytest

from tests.absent import absent
from tests.build import sass
from tests.build.test_attention_code import disassembler
from vc_attention import kernel_table
from vc_attention.build import compilers, source, toolchain
from vc_attention.build.units import UNITS

SPECS = {(spec.unit, spec.head_dim): spec for spec in kernel_table.KERNELS if spec.arch == "mma"}
# sm_80 has no instruction that rounds and packs bytes, hence no bound for it.
BUILDS = [(unit, arch) for unit in sorted({unit for unit, _ in SPECS}) for arch in UNITS[unit].arches if arch != "80"]
# 10 are wanted of every kernel; what takes fewer shall not take more unseen.
MOST_INSTRUCTIONS = {"u8": 10.0, "expcast": 8.2, "nvfp4": 9.0, "int8_nvfp4": 8.9}
PEAK_FP4_SLOTS = 16.0  # for instructions per score while FP4 tensor cores run at their peak (docs/mma-log.md)
PRODUCTS = {
    "expcast": {"IMMA.16832.S8.S8", "QMMA.16832.F16.E4M3.E4M3"},
    "u8": {"IMMA.16832.S8.S8", "IMMA.16832.U8.S8"},
    "nvfp4": {"OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"},
    "int8_nvfp4": {"IMMA.16832.S8.S8", "OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X"},
}
REGISTERS = 255  # 256 threads, one block an SM: 65,536 registers


@pytest.fixture(scope="module", params=["nvrtc", "nvcc"])
def compiled(request, tmp_path_factory):
    """compiled(unit, arch) -> {kernel: sass.Kernel}, compiled once."""
    tool, usable = disassembler(), compilers.available(toolchain.probe(), request.param, None)[0]
    if tool is None or not usable:
        absent(f"needs {request.param} and cuobjdump")
    folder, known = tmp_path_factory.mktemp("mma"), {}

    def compile_once(unit, arch):
        if (unit, arch) not in known:
            known[unit, arch] = sass.kernels(unit, arch, usable[0], tool, folder)
        return known[unit, arch]

    return compile_once


def spec_of(unit: str, kernel: str) -> kernel_table.KernelSpec:
    return SPECS[unit, 128 if "_d128_" in kernel else 64]


@pytest.mark.parametrize(("unit", "arch"), [*BUILDS, ("attention_mma_u8", "80")])
def test_products_run_on_tensor_cores_and_nothing_is_spilled(compiled, unit, arch):
    for name, kernel in compiled(unit, arch).items():
        first, last = kernel.main_loop()
        found = {op for op in kernel.opcodes[first:last] if op.startswith(("IMMA", "QMMA", "OMMA"))}
        assert found == PRODUCTS[unit.removeprefix("attention_mma_")], name
        assert not any(op.startswith(("LDL", "STL")) for op in kernel.opcodes), name
        used = kernel.resources
        assert used["stack"] == used["spill_stores"] == used["local"] == 0 and used["registers"] <= REGISTERS, name


def test_compilers_without_sums_in_halves_use_floats(monkeypatch, tmp_path):
    """CUDA before 12.8, as PyTorch for CUDA 12.6 brings it for RTX 40."""
    tool, usable = disassembler(), compilers.available(toolchain.probe(), "nvrtc", None)[0]
    if tool is None or not usable:
        absent("needs nvrtc and cuobjdump")
    flatten, condition = source.flatten, "__CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1208"
    assert flatten(UNITS["attention_mma_expcast"].source).count(condition) == 1
    monkeypatch.setattr(source, "flatten", lambda *path: flatten(*path).replace(condition, "0"))
    for name, kernel in sass.kernels("attention_mma_expcast", "89", usable[0], tool, tmp_path).items():
        products = {op for op in kernel.opcodes if op.startswith("QMMA")}
        assert products == {"QMMA.16832.F32.E4M3.E4M3"} and kernel.resources["spill_stores"] == 0, name


@pytest.mark.parametrize(("unit", "arch"), BUILDS)
def test_few_instructions_per_score(compiled, unit, arch, capsys):
    for name, kernel in compiled(unit, arch).items():
        spec, executed = spec_of(unit, name), kernel.executed()
        scores = 16 * spec.block_n // 32  # of a thread in one step
        count = executed.total() / scores
        text = f"{name} sm_{arch}: {count:.2f} instructions per score on the shortest path through the loop"
        text += f", {kernel.resources['registers']} registers"
        if unit == "attention_mma_nvfp4" and spec.head_dim == 128:
            products = executed["OMMA"] / 64  # of 64 that every implementation needs
            text += f", prediction: at most {1 / max(products, count / PEAK_FP4_SLOTS):.2f} of the FP4 peak"
        with capsys.disabled():
            print(f"\n{text}", end="")
        assert count <= MOST_INSTRUCTIONS[unit.removeprefix("attention_mma_")], executed


def test_the_self_test_is_one_product_of_each_selector(compiled):
    (kernel,) = compiled("mma_selftest", "120a").values()
    assert kernel.opcodes.count("OMMA.SF.16864.F32.E2M1.E2M1.UE4M3.4X") == 8
    assert any(op.startswith("F2FP.SATFINITE.E2M1") for op in kernel.opcodes)


def test_shared_memory_allows_one_block_on_the_smallest_card():
    assert max(spec.shared_bytes(means) for spec in SPECS.values() for means in (True, False)) <= 99 * 1024
