"""What the Hopper kernels are compiled to: 8-bit tensor-core instructions, no exponential per score in ExpCast, and
exponentials in the order that makes the others fast."""

import functools
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

from tests.absent import absent
from vc_attention.build import compilers, toolchain
from vc_attention.build.tasks import Task
from vc_attention.build.units import UNITS


def disassembler() -> str | None:
    """cuobjdump of a CUDA toolkit, or of its wheel."""
    wheels = Path(sysconfig.get_path("purelib")).glob("nvidia/*/bin/cuobjdump")
    return shutil.which("cuobjdump") or next(map(str, wheels), None)


@pytest.fixture(scope="module")
def opcodes(tmp_path_factory):
    """opcodes(unit) -> {kernel: its SASS opcodes}."""
    tool = disassembler()
    usable = compilers.available(toolchain.probe(), "nvrtc", None)[0]
    if tool is None or not usable:
        absent("needs NVRTC and cuobjdump")
    compiler = usable[0]

    def disassemble(unit):
        outcomes = []
        compiler.compile([Task(UNITS[unit], "90a")], 1, outcomes.append)
        file = tmp_path_factory.mktemp(unit) / "kernel.cubin"
        file.write_bytes(outcomes[0].cubin)
        text = subprocess.run([tool, "--dump-sass", file], capture_output=True, text=True, check=True).stdout
        kernels = {}
        for line in text.splitlines():
            if "Function :" in line:
                found = kernels[line.split()[-1]] = []
            elif match := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]+)", line):
                found.append(match[1])
        return kernels

    return functools.cache(disassemble)


def test_expcast_has_no_exponential_per_score(opcodes):
    for kernel, code in opcodes("attention_sm90_expcast").items():
        head_dim = int(re.search(r"_d(\d+)_", kernel)[1])
        scores = [op for op in code if op.startswith("IGMMA")]
        values = [op for op in code if op.startswith("QGMMA")]
        # Two bodies, the main loop's and the last step's: head_dim / 32 products of scores, 8 of values each.
        assert len(scores) == 2 * head_dim // 32 and len(values) == 16, kernel
        assert all(".S8.S8" in op for op in scores) and all(".E4M3.E4M3" in op for op in values), kernel
        # Per step and row one for the weight, one for moving the reference.
        assert code.count("MUFU.EX2") <= 8, kernel
        assert not any(op.startswith(("LDL", "STL", "HMMA")) for op in code), kernel


def test_packed_scores_take_two_instructions(opcodes):
    """128 scores of a step, two a register: packed, maxima of three, less the maximum, a code, four a word."""
    for kernel, code in opcodes("attention_sm90_expcast").items():
        if "_tile_" not in kernel:
            continue
        count = {
            op: sum(x.startswith(op) for x in code) for op in ("VIMNMX3.S16x2", "VIADDMNMX.S16x2", "HFMA2", "F2IP")
        }
        assert count["VIMNMX3.S16x2"] == 2 * 30 and count["VIADDMNMX.S16x2"] == 2 * 64, (kernel, count)
        assert 2 * 64 <= count["HFMA2"] <= 2 * 64 + 24 and count["F2IP"] == 0, (kernel, count)


def test_packed_kernels_sum_values_in_fp16(opcodes):
    """Half the registers, and half of what a product reads and writes there."""
    for kernel, code in opcodes("attention_sm90_expcast").items():
        kinds = {op.split(".")[2] for op in code if op.startswith("QGMMA")}
        assert kinds == {"F16" if "_tile_" in kernel else "F32"}, kernel


def test_int8_values_run_on_integer_tensor_cores(opcodes):
    for kernel, code in opcodes("attention_sm90_u8").items():
        assert any(op.startswith("IGMMA") and ".U8.S8" in op for op in code), kernel
        assert not any(op.startswith(("QGMMA", "LDL", "STL")) for op in code), kernel


def test_exact_probabilities_are_e4m3(opcodes):
    for kernel, code in opcodes("attention_sm90_exact").items():
        assert any(op.startswith("IGMMA") and ".S8.S8" in op for op in code), kernel
        assert any(op.startswith("QGMMA") and ".E4M3.E4M3" in op for op in code), kernel
        assert not any(op.startswith(("LDL", "STL", "HMMA")) for op in code), kernel


@pytest.mark.parametrize("unit", ["attention_sm90_u8", "attention_sm90_exact"])
def test_exponentials_alternate_in_their_turn(opcodes, unit):
    """From the barrier that gives the turn to the product: all 128 of a step, and not after everything else."""
    for kernel, code in opcodes(unit).items():
        turns = [i for i, op in enumerate(code) if op.startswith("BAR.SYNC")][1:]  # the first is that of the start
        assert len(turns) == 2, kernel  # in the main loop, and in the last step
        product = next(i for i in range(turns[0], len(code)) if re.match("[IQ]GMMA", code[i]))
        step = [op == "MUFU.EX2" for op in code[turns[0] : product]]
        assert sum(step) == 128 and sum(step[: len(step) // 4]) >= 16, (kernel, len(step), sum(step))
