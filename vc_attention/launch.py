"""Loading and launching kernels: the only run-time code that meets cubins and the driver. It never compiles.

`Params(...)` declares a kernel's struct, `kernel(unit, name, device)` finds the kernel and `.launch(...)` queues it;
build/selftest.py is a whole example.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from . import driver
from .build import cache, source
from .build.units import INTERFACE, UNITS, Unit
from .errors import KernelUnavailable, ParameterError, VCAttentionError
from .launchers import Launcher, choose
from .params import Params

__all__ = ["Kernel", "LaunchError", "Params", "kernel", "launcher", "missing"]


class LaunchError(VCAttentionError, RuntimeError):
    """The driver refused to load or to launch a kernel."""


@dataclass(frozen=True)
class _Module:
    handle: int
    context: int
    arch: str
    gpu: driver.Gpu


class Kernel:
    """One kernel on one device. Safe to launch from several threads."""

    def __init__(self, name: str, module: _Module, launcher: Launcher) -> None:
        self.name, self.arch, self.gpu = name, module.arch, module.gpu
        self._driver, self._launcher, self._context = driver.load(), launcher, module.context
        with self._driver.current(module.context):
            self._function = self._driver.function(module.handle, name)
            self._parameter_bytes = self._driver.parameter_bytes(self._function)
        self._shared_bytes = 48 * 1024  # what a kernel may use without asking

    def launch(
        self, grid: tuple[int, int, int], block: tuple[int, int, int], shared_bytes: int, stream: int, params: bytes
    ) -> None:
        """Queue the kernel on `stream` (the driver's handle) with its one struct `params`. Raises LaunchError."""
        if self._parameter_bytes not in (None, len(params)):
            # A shorter struct would be read past its end, silently.
            raise ParameterError(
                "params",
                f"{self._parameter_bytes} bytes for {self.name}",
                len(params),
                "declare the struct as in csrc/",
            )
        try:
            if shared_bytes > self._shared_bytes:
                self._allow_shared(shared_bytes)
            result = self._launcher.launch(self._context, self._function, grid, block, shared_bytes, stream, params)
            self._driver.check(result, "cuLaunchKernel")
        except driver.DriverError as error:
            shape = f"grid {grid}, block {block}, {shared_bytes} bytes of shared memory"
            raise LaunchError(f"kernel {self.name} (sm_{self.arch}) on {self.gpu} with {shape}: {error}") from error

    def _allow_shared(self, shared_bytes: int) -> None:
        with _lock, self._driver.current(self._context):
            if shared_bytes > self._shared_bytes:  # else another thread just allowed more
                self._driver.allow_shared(self._function, shared_bytes)
                self._shared_bytes = shared_bytes


_lock = threading.Lock()
_modules: dict[tuple[str, int], _Module] = {}
_kernels: dict[tuple[str, str, int], Kernel] = {}


def kernel(unit: str, name: str, device: int) -> Kernel:
    """The kernel `name` of `unit` on CUDA device `device`, loaded once.

    Raises KernelUnavailable when nothing fitting was built, with the command that builds it, and LaunchError when the
    driver does not take what was built.
    """
    found = _kernels.get((unit, name, device))
    if found is None:
        with _lock:
            found = _kernels.get((unit, name, device))
            if found is None:
                found = _kernels[unit, name, device] = _load(UNITS[unit], name, device)
    return found


@functools.cache
def missing(unit: str, device: int) -> str | None:
    """Why kernels of `unit` cannot run on `device`, with the command that helps; None when they can.

    Asked once a process, so that routing may ask at every call: what is installed meanwhile is found after a restart.
    """
    try:
        gpu = driver.load().gpu(device)
        cubin(UNITS[unit], gpu)
    except VCAttentionError as error:
        return str(error)
    return None


def launcher() -> Launcher:
    """What launches kernels in this process: the compiled module, or ctypes with the reason in `.reason`."""
    return choose()


def cubin(unit: Unit, gpu: driver.Gpu) -> cache.Entry:
    """The cubin of `unit` for `gpu`, verified. Raises KernelUnavailable."""
    arch = unit.arch_for(gpu.capability)
    if arch is None:
        raise KernelUnavailable([f"{unit.name} is written for {_list(unit.arches)}, not for {gpu}"])
    try:
        return cache.find(f"{unit.name}-sm_{arch}", **identity(unit, arch))
    except cache.CacheMiss as miss:
        built = {stamp["arch"] for stamp in cache.entries() if stamp.get("unit") == unit.name}
        reason = f"{unit.name} is built for {_list(built) or 'no GPU'}, {gpu} needs sm_{arch}: {miss}"
        raise KernelUnavailable([reason], remedy=f"run {rebuild_command(arch)} and restart ComfyUI") from miss


def identity(unit: Unit, arch: str) -> dict[str, Any]:
    """What makes a cubin the right one. Not the compiler: which one built it is no reason to build it again."""
    return {
        "unit": unit.name,
        "arch": arch,
        "source": source.sha256(source.flatten(unit.source)),
        "options": list(unit.options),
        "interface": INTERFACE,
    }


def _list(arches: Iterable[str]) -> str:
    return ", ".join(f"sm_{arch}" for arch in sorted(arches, key=lambda arch: int(arch.rstrip("a"))))


def rebuild_command(arch: str | None = None) -> str:
    """What a user types to build for the GPUs present or for `arch`, with the Python that runs now."""
    return f'"{sys.executable}" "{cache.PACK / "install.py"}"' + (f' --arch "{arch}"' if arch else "")


def doctor_command() -> str:
    """What a user types for a page to report, with the Python that runs now."""
    return f'"{sys.executable}" "{cache.PACK / "vc_attention" / "doctor"}"'


def _load(unit: Unit, name: str, device: int) -> Kernel:
    if name not in unit.kernels:
        raise ParameterError(
            "name", f"one of {', '.join(unit.kernels)}", name, f"see the row {unit.name} in build/units.py"
        )
    try:
        module = _modules.get((unit.name, device))
        if module is None:
            cuda = driver.load()
            gpu = cuda.gpu(device)
            entry, context = cubin(unit, gpu), cuda.context(device)
            with cuda.current(context):
                handle = cuda.load_module(entry.data)
            module = _modules[unit.name, device] = _Module(handle, context, entry.stamp["arch"], gpu)
        return Kernel(name, module, choose())
    except driver.DriverError as error:
        raise LaunchError(f"kernel {name} of unit {unit.name} does not load on device {device}: {error}") from error
