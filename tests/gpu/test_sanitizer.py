"""compute-sanitizer over preparation and attention: memory, races, barriers, uninitialised reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vc_attention.kernel_table import KERNELS

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# initcheck must see who wrote a tensor, torch's own kernels included; the other tools look at ours alone.
OURS = ("--kernel-regex", "kns=vc_")
TOOLS = {"memcheck": OURS, "racecheck": OURS, "synccheck": OURS, "initcheck": ()}


ATTENTION = {spec.unit: spec.capabilities for spec in KERNELS}
CALLS = ("prepare()", *(f"attention({unit!r})" for unit in ATTENTION))


@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("tool", TOOLS)
def test_clean(tool, calls):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not on PATH: it comes with the CUDA toolkit")
    for unit, capabilities in ATTENTION.items():
        if unit in calls and torch.cuda.get_device_capability() not in capabilities:
            pytest.skip(f"{unit} is not for this GPU")
    script = f"from tests.gpu import sanitized_calls\nsanitized_calls.{calls}"
    command = (program, "--tool", tool, *TOOLS[tool], "--error-exitcode", "99", sys.executable, "-c", script)
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
