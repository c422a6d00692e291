"""`install.py`'s work: find out what is to be built, build it, test it, say what was done."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

from .. import driver, launch
from ..errors import VCAttentionError
from . import cache, compilers, diagnose, extension, kernels, preflight, selftest, targets, toolchain
from .tasks import Task
from .units import UNITS

PREFIX = "[VC-Attention] "


def say(text: str) -> None:
    """Whole ASCII lines at once: ComfyUI-Manager passes them on line by line, on Windows in an old code page."""
    for line in text.splitlines():
        prefix = "" if line.startswith(PREFIX) else PREFIX  # a self-test's process has said it already
        print(prefix + line.encode("ascii", "backslashreplace").decode(), flush=True)


def main(argv: list[str]) -> int:
    """The command line of install.py. Returns the exit code: 0 also when there is nothing to build for or with."""
    arguments = _parse(argv)
    if arguments.self_test is not None:
        return _self_test_here(arguments.self_test)
    try:
        if arguments.clean:
            say("removed " + (", ".join(map(str, cache.clean())) or "nothing: no kernels were built"))
            return 0
        gpus, driver_error = _gpus()
        wanted = _wanted(arguments.arch, gpus)
        if arguments.check:
            return _check(wanted, gpus, driver_error)
        return _install(wanted, gpus, driver_error, arguments.compiler, arguments.arch)
    except (VCAttentionError, ValueError, OSError) as error:
        say(f"{type(error).__name__}: {error}")
        return 1


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="install.py", description="Compile the kernels for the GPUs of this machine.")
    parser.add_argument("--arch", help="compile for these GPUs instead, present or not: 90a,120a or 8.9;12.0")
    parser.add_argument("--check", action="store_true", help="only say what is built and what is missing here")
    parser.add_argument("--clean", action="store_true", help="delete everything that was built")
    parser.add_argument("--compiler", choices=("auto", "nvcc", "nvrtc"), default="auto")
    parser.add_argument(
        "--self-test", type=int, metavar="GPU", help="run the self-test kernel on one GPU in this process"
    )
    return parser.parse_args(argv)


def _gpus() -> tuple[list[driver.Gpu], str | None]:
    try:
        return driver.load().gpus(), None
    except driver.DriverError as error:
        return [], str(error)


def _wanted(arch: str | None, gpus: list[driver.Gpu]) -> list[Task]:
    """What should exist: for --arch, else the GPUs present, else (an image is built without) TORCH_CUDA_ARCH_LIST."""
    if arch:
        capabilities = targets.parse(arch)
    elif gpus:
        capabilities = list(dict.fromkeys(gpu.capability for gpu in gpus))
    else:
        capabilities = _listed()
    wanted: list[Task] = []
    for gpu in capabilities:
        fitting = [Task(unit, target) for unit in UNITS.values() if (target := unit.arch_for(gpu))]
        if not fitting:
            say(f"compute capability {gpu[0]}.{gpu[1]}: there are no kernels for it; the model's own attention is used")
        wanted += [task for task in fitting if task not in wanted]
    return wanted


def _listed() -> list[tuple[int, int]]:
    """The targets in TORCH_CUDA_ARCH_LIST; names, which torch takes too, are told and no reason to fail."""
    try:
        return targets.parse(os.environ.get("TORCH_CUDA_ARCH_LIST", ""))
    except ValueError as error:
        say(f"TORCH_CUDA_ARCH_LIST is not used: {error}")
        return []


def _state(task: Task, kind: str = "auto") -> str | None:
    """Why a task has to be compiled, or None. Only `--compiler nvcc` and `nvrtc` mind who compiled it last."""
    try:
        stamp = cache.find(task.name, **launch.identity(task.unit, task.arch)).stamp
    except cache.CacheMiss as miss:
        return str(miss)
    if kind != "auto" and not str(stamp.get("compiler")).startswith(kind):
        return f"it was built by {stamp.get('compiler')}"
    return None


def _check(wanted: list[Task], gpus: list[driver.Gpu], driver_error: str | None) -> int:
    tools = toolchain.probe()
    for line in preflight.lines(preflight.parts(tools, gpus, driver_error), tools.notes):
        say(line)
    states = {task: _state(task) for task in wanted}
    for task, state in states.items():
        say(f"{'built   ' if state is None else 'to build'} {task.name}" + (f": {state}" if state else ""))
    say(f"launcher {'pybind11' if extension.built() else 'ctypes'}")
    if any(states.values()):
        return 1
    return 0 if _self_test(gpus) else 1


def _install(wanted: list[Task], gpus: list[driver.Gpu], driver_error: str | None, kind: str, arch: str | None) -> int:
    started = time.monotonic()
    if not wanted:
        reason = "" if gpus else f": {driver_error or 'no GPU'}"
        say(f"no kernels to build{reason}; the pack loads and uses the model's own attention")
        return 0
    missing = [task for task in wanted if _state(task, kind)]
    tools = None if extension.built() and not missing else toolchain.probe()
    if not missing and (tools is None or extension.lacking(tools)):
        say(f"all {len(wanted)} kernel files are up to date ({time.monotonic() - started:.1f} s)")
        return 0
    failed: list[Task] = []
    if missing:
        usable, refused = compilers.available(tools, kind, driver.load().version() if gpus else None)
        for reason in refused:
            say(reason)
        if not usable:
            return _no_compiler(tools, gpus, driver_error, arch)
        failed = kernels.build(missing, usable, say)
    _build_launcher(tools)
    seconds = time.monotonic() - started
    say(f"{len(missing) - len(failed)} of {len(missing)} missing kernel files built in {seconds:.1f} s")
    return 0 if not failed and _self_test(gpus) else 1


def _no_compiler(tools: toolchain.Toolchain, gpus: list[driver.Gpu], driver_error: str | None, arch: str | None) -> int:
    for line in preflight.lines(preflight.parts(tools, gpus, driver_error), tools.notes):
        say(line)
    say("no kernels were built: there is no compiler that this machine can use. Do one of the above, then run")
    say(f"    {launch.rebuild_command(arch)}")
    say("Until then the pack loads and uses the model's own attention.")
    return 0


def _build_launcher(tools: toolchain.Toolchain) -> None:
    if extension.built():
        return
    lacking = extension.lacking(tools)
    if lacking:
        say(f"launcher: ctypes (a compiled one would need {', '.join(lacking)})")
        return
    say("launcher: compiling")
    failure = extension.build(tools)
    say(f"launcher: ctypes, since it does not compile: {failure}" if failure else "launcher: compiled")


def _self_test_here(index: int) -> int:
    try:
        say(selftest.run(index))
    except VCAttentionError as error:
        say(str(error))
        return 1
    return 0


def _self_test(gpus: list[driver.Gpu]) -> bool:
    """Test every GPU that has kernels."""
    return all([_self_test_child(gpu) for gpu in gpus if UNITS["selftest"].arch_for(gpu.capability)])


def _self_test_child(gpu: driver.Gpu) -> bool:
    """Run the self-test in a process of its own, so that a crash is reported instead of suffered."""
    command = [sys.executable, str(cache.PACK / "install.py"), "--self-test", str(gpu.index)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60)
    except subprocess.TimeoutExpired:
        say(f"self-test on {gpu}: no answer in 60 s")
        return False
    say(child.stdout + child.stderr)
    if child.returncode:
        say(f"self-test on {gpu} failed with exit code {diagnose.exit_code(child.returncode)}")
    return child.returncode == 0
