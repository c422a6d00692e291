"""compute-sanitizer over preparation and attention: memory, races, barriers, uninitialised reads."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import emulated
from vc_attention.kernel_table import KERNELS

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
CLEAN = r"SUMMARY: 0 (errors|hazards)"  # the exit status says nothing about races
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
OURS = ("--kernel-regex", "kns=vc_")
ATTENTION = {spec.unit: spec for spec in (*KERNELS, *emulated.SPECS)}


def sanitize(tool: str, *command: str) -> str:
    """What the tool says of a command that ends well."""
    program = shutil.which("compute-sanitizer")
    if program is None:
        pytest.skip("compute-sanitizer is not on PATH: it comes with the CUDA toolkit")
    command = (program, "--tool", tool, *command)
    # Memory of its own for every tensor: in torch's pool it is lost where one ends and who wrote it.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    return run.stdout


@pytest.mark.parametrize("tool", TOOLS)
def test_preparation_is_clean(tool):
    script = "from tests.gpu import sanitized_calls; sanitized_calls.prepare()"
    # initcheck must see who wrote a tensor: here torch's own kernels write some.
    watched = () if tool == "initcheck" else OURS
    assert re.search(CLEAN, report := sanitize(tool, *watched, sys.executable, "-c", script)), report[-4000:]


@pytest.mark.parametrize("unit", ATTENTION)
@pytest.mark.parametrize("tool", TOOLS)
def test_attention_is_clean(tool, unit):
    spec = ATTENTION[unit]
    if torch.cuda.get_device_capability() not in spec.capabilities:
        pytest.skip(f"{unit} is not for this GPU")
    script = f"from tests.gpu import sanitized_calls; sanitized_calls.attention({unit!r})"
    if unit in emulated.UNITS:
        emulated.build()  # which the tool need not watch
    assert re.search(CLEAN, report := sanitize(tool, *OURS, sys.executable, "-c", script)), report[-4000:]
