"""Two compilers with one interface: nvcc run by ninja, and NVRTC inside this process. Both get the same flat text."""

from __future__ import annotations

import shutil
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from . import cache, ninja, source, targets
from .nvrtc import CompileError, Nvrtc
from .tasks import Outcome, Report, Task
from .toolchain import Nvcc, Toolchain


class Compiler(Protocol):
    kind: str  # as `--compiler` names it
    id: str  # with its version, for stamps and reports
    version: tuple[int, int]

    def compile(self, tasks: list[Task], jobs: int, report: Report) -> None:
        """Compile all `tasks`, reporting each outcome as it comes."""


class NvrtcCompiler:
    kind = "nvrtc"

    def __init__(self, library: Nvrtc) -> None:
        self._library, self.version = library, library.version
        self.id = f"nvrtc {library.version[0]}.{library.version[1]}"

    def compile(self, tasks: list[Task], jobs: int, report: Report) -> None:
        texts = _texts(tasks)

        def one(task: Task) -> Outcome:
            started = time.monotonic()
            text = texts[task.unit.name]
            try:
                cubin, log = self._library.compile(text, task.unit.source, task.arch, task.unit.options)
            except CompileError as error:
                cubin, log = None, str(error)
            return Outcome(task, source.sha256(text), cubin, log, time.monotonic() - started)

        pool = ThreadPoolExecutor(jobs)
        try:
            for outcome in pool.map(one, tasks):
                report(outcome)
        finally:
            # Interrupted or out of disk: what runs ends, the rest does not begin.
            pool.shutdown(wait=False, cancel_futures=True)


class NvccCompiler:
    kind = "nvcc"

    def __init__(self, nvcc: Nvcc, host_compiler: str, ninja_path: str) -> None:
        self._nvcc, self._host, self._ninja = nvcc.path, host_compiler, ninja_path
        self.version, self.id = nvcc.version, f"nvcc {nvcc.release}"

    def compile(self, tasks: list[Task], jobs: int, report: Report) -> None:
        with Scratch() as folder:
            texts = _texts(tasks)
            for name, text in texts.items():
                (folder / f"{name}.cu").write_bytes(text.encode())
            edges = {f"{task.name}.cubin": task for task in tasks}

            def done(edge: ninja.Edge, succeeded: bool, log: str, seconds: float) -> None:
                task = edges[edge.output]
                cubin = (folder / edge.output).read_bytes() if succeeded else None
                report(Outcome(task, source.sha256(texts[task.unit.name]), cubin, log, seconds))

            ninja.run(self._ninja, folder, [self._edge(task) for task in tasks], jobs, done)

    def _edge(self, task: Task) -> ninja.Edge:
        text, output = f"{task.unit.name}.cu", f"{task.name}.cubin"
        flags = (f"--gpu-architecture=sm_{task.arch}", "-ccbin", self._host, *task.unit.options)
        return ninja.Edge(output, text, (self._nvcc, "-cubin", *flags, "-o", output, text))


def _texts(tasks: list[Task]) -> dict[str, str]:
    """The flat text of every unit, read once, so that all targets and the stamps speak of the same."""
    return {unit.name: source.flatten(unit.source) for unit in {task.unit for task in tasks}}


class Scratch:
    """A folder of its own inside the cache, which is known to be writable; gone at the end."""

    def __enter__(self) -> Path:
        folder = cache.writable()
        for left in folder.glob(".build-*"):
            if time.time() - left.stat().st_mtime > 24 * 3600:  # by an install that was killed
                shutil.rmtree(left, ignore_errors=True)
        self._folder = Path(tempfile.mkdtemp(prefix=".build-", dir=folder))
        return self._folder

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def available(tools: Toolchain, wanted: str, driver: tuple[int, int] | None) -> tuple[list[Compiler], list[str]]:
    """Compilers of the `wanted` kind ("auto", "nvcc", "nvrtc") in the order to try them, and why others are not in it.

    A cubin of a newer major CUDA than the driver's does not load, so such a compiler is refused before it compiles.
    """
    refused: list[str] = []
    compilers: list[Compiler] = []
    if tools.host_compiler and tools.ninja:
        compilers += [NvccCompiler(nvcc, tools.host_compiler, tools.ninja) for nvcc in tools.nvccs]
    compilers += [NvrtcCompiler(library) for library in tools.nvrtcs]
    usable = []
    for compiler in compilers:
        if wanted not in ("auto", compiler.kind):
            continue
        if driver is not None and compiler.version[0] > driver[0]:
            refused.append(
                f"{compiler.id}: the driver runs CUDA {driver[0]}.{driver[1]}; update it or use CUDA {driver[0]}"
            )
        else:
            usable.append(compiler)
    return usable, refused


def assign(tasks: list[Task], compilers: list[Compiler]) -> tuple[dict[Compiler, list[Task]], dict[Task, list[str]]]:
    """Give every task the first compiler that knows its target, before anything runs; the rest with the reasons."""
    given: dict[Compiler, list[Task]] = {}
    homeless: dict[Task, list[str]] = {}
    for task in tasks:
        reasons = []
        for compiler in compilers:
            refusal = targets.refusal(task.arch, compiler.version)
            if refusal is None:
                given.setdefault(compiler, []).append(task)
                break
            reasons.append(f"{compiler.id}: {refusal}")
        else:
            homeless[task] = reasons
    return given, homeless
