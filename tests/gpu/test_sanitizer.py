"""compute-sanitizer over a few preparation calls: memory, races, barriers, uninitialised reads."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

SEEDS = (0, 5, 9, 14, 21, 33)
CALLS = f"from tests.gpu import cases, test_prepare\nfor seed in {SEEDS}: test_prepare.check_case(cases.draw(seed))"
# initcheck must see who wrote a tensor, torch's own kernels included; the other tools look at ours alone.
OURS = ("--kernel-regex", "kns=vc_")
TOOLS = {"memcheck": OURS, "racecheck": OURS, "synccheck": OURS, "initcheck": ()}


@pytest.mark.parametrize("tool", TOOLS)
def test_clean(tool):
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not on PATH: it comes with the CUDA toolkit")
    command = (program, "--tool", tool, *TOOLS[tool], "--error-exitcode", "99", sys.executable, "-c", CALLS)
    root = Path(__file__).parents[2]
    run = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
