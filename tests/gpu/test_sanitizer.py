"""compute-sanitizer over preparation and attention: memory, races, barriers, uninitialised reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# initcheck must see who wrote a tensor, torch's own kernels included; the other tools look at ours alone.
OURS = ("--kernel-regex", "kns=vc_")
TOOLS = {"memcheck": OURS, "racecheck": OURS, "synccheck": OURS, "initcheck": ()}


@pytest.mark.parametrize("calls", ("prepare", "attention"))
@pytest.mark.parametrize("tool", TOOLS)
def test_clean(tool, calls):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not on PATH: it comes with the CUDA toolkit")
    script = f"from tests.gpu import sanitized_calls\nsanitized_calls.{calls}()"
    command = (program, "--tool", tool, *TOOLS[tool], "--error-exitcode", "99", sys.executable, "-c", script)
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
