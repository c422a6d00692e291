"""The doctor's command line: looks at the machine, has a process of its own look at the GPUs, prints the page."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import launch
from ..build import diagnose
from . import gpu, machine, page
from .finding import REPORT, Finding

SECONDS = 300  # a GPU part without an answer by then has hung


def main(argv: list[str]) -> int:
    """Prints the page. Returns 0 when attention can be accelerated on a GPU of this machine, else 1."""
    parser = argparse.ArgumentParser(prog="doctor", description="What is here and what works, as a page to paste.")
    parser.add_argument("--json", action="store_true", help="print JSON instead, with the numbers behind the page")
    parser.add_argument("--gpu-part", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.gpu_part:
        return gpu.run()
    gpu.progress("looking at the machine")
    findings = [*machine.findings(), *gpu_findings()]
    print((page.as_json if arguments.json else page.text)(findings, machine.pack_version()), flush=True)
    return 0 if page.accelerates(findings) else 1


def gpu_findings() -> Iterator[Finding]:
    """What the other process found, and how it ended if that was not well. What it says on stderr is passed on."""
    command = [sys.executable, str(Path(__file__).parent), "--gpu-part"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, encoding="utf-8", errors="replace") as process:
        try:
            said, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            end = f"no answer in {SECONDS} s"
        else:
            end = f"ended with {diagnose.exit_code(process.returncode)}" if process.returncode else ""
    for line in said.splitlines():
        if line.startswith("{"):  # libraries may print, too
            yield Finding(**json.loads(line))
    if end:
        remedy = f"update NVIDIA's driver, run {launch.rebuild_command()}, and {REPORT} if that does not help"
        yield Finding("PyTorch", "its process", "bad", end, remedy)
