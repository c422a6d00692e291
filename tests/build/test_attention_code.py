"""What the Hopper kernels are compiled to: 8-bit tensor-core instructions, and no exponential per score in ExpCast."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

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
        pytest.skip("needs NVRTC and cuobjdump")
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

    return disassemble


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


def test_int8_values_run_on_integer_tensor_cores(opcodes):
    for kernel, code in opcodes("attention_sm90_u8").items():
        assert any(op.startswith("IGMMA") and ".U8.S8" in op for op in code), kernel
        assert not any(op.startswith(("QGMMA", "LDL", "STL")) for op in code), kernel
