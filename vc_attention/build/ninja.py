"""ninja: runs compilers as processes, side by side.

All happens inside one scratch folder with relative names, so that a pack's folder may be called anything.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .nvrtc import CompileError

_MARK = "@@vc "


@dataclass(frozen=True)
class Edge:
    """One command that makes `output` of `source`, both names inside the scratch folder."""

    output: str
    source: str
    command: tuple[str, ...]


# Called as each edge ends: the edge, whether it succeeded, its log, seconds since the start.
Done = Callable[[Edge, bool, str, float], None]


def render(edges: list[Edge], platform: str = sys.platform) -> str:
    """The text of build.ninja."""
    quote = subprocess.list2cmdline if platform == "win32" else shlex.join
    lines = ["ninja_required_version = 1.5", "rule run", "  command = $line", "  description = $out"]
    for edge in edges:
        line = quote(edge.command).replace("$", "$$")
        if "\n" in line:
            raise CompileError(f"{edge.output}: a folder name with a line break cannot be used: {line!r}")
        lines += [f"build {edge.output}: run {edge.source}", f"  line = {line}"]
    return "\n".join(lines) + "\n"


def run(ninja: str, folder: Path, edges: list[Edge], jobs: int, done: Done) -> None:
    """Run all edges in `folder`, `jobs` at a time; when one fails the rest go on."""
    (folder / "build.ninja").write_text(render(edges), encoding="utf-8")
    (folder / "tmp").mkdir(exist_ok=True)
    pending = {edge.output: edge for edge in edges}
    started = time.monotonic()

    def finish(name: str, log: list[str], seconds: float) -> None:
        edge = pending.pop(name, None)
        if edge is not None:
            failed = any(line.startswith("FAILED: ") for line in log)
            done(edge, not failed, "\n".join(log), seconds)

    command = [ninja, "-k", "0", "-j", str(jobs)]
    with subprocess.Popen(
        command, cwd=folder, env=_environment(folder), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            name, log, ended = "", [], 0.0
            for line in process.stdout:
                if line.startswith(_MARK):  # an edge ended; what it said follows
                    finish(name, log, ended)
                    name, log, ended = line[len(_MARK) :].strip(), [], time.monotonic() - started
                else:
                    log.append(line.rstrip())
            finish(name, log, ended)
        except BaseException:
            process.terminate()
            raise
    for edge in list(pending.values()):
        done(edge, False, "ninja ended before it ran:\n" + "\n".join(log), time.monotonic() - started)


def _environment(folder: Path) -> dict[str, str]:
    # The system's folder for temporary files may not exist, or carry a name that nvcc's own shell lines break on.
    temporary = str(folder / "tmp") if sys.platform == "win32" else "tmp"
    return {**os.environ, "NINJA_STATUS": _MARK, "TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}
