"""Two ways to call cuLaunchKernel with one interface: a small compiled module, and ctypes where it was not built.

Both do only that. What to launch, with which grid and bytes, is decided by their caller.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.machinery
import importlib.util
import sys
from typing import Any, Protocol

from . import driver
from .build import cache, source
from .build.units import INTERFACE

MODULE = "vc_attention_launcher"
SOURCE = "launcher/launcher.cpp"


class Launcher(Protocol):
    """`name` and `reason` are for reports: which one it is, and why not the compiled one."""

    name: str
    reason: str

    def launch(
        self, context: int, function: int, grid: tuple[int, int, int], block: tuple[int, int, int],
        shared_bytes: int, stream: int, params: bytes,
    ) -> int:  # fmt: skip
        """Queue `function` on `stream` in `context`; returns the driver's CUresult."""


class CtypesLauncher:
    name = "ctypes"

    def __init__(self, library: str, reason: str) -> None:
        self.reason = reason
        self._lib = ctypes.CDLL(library)
        self._lib.cuLaunchKernel.argtypes = (
            [ctypes.c_void_p] + [ctypes.c_uint] * 7 + [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        )

    def launch(self, context, function, grid, block, shared_bytes, stream, params) -> int:
        pointer = ctypes.c_char_p(params)
        arguments = (ctypes.c_void_p * 1)(ctypes.cast(pointer, ctypes.c_void_p))
        # Stream 0 means the current context's: it has to be the kernel's own.
        current = ctypes.c_void_p()
        result = self._lib.cuCtxGetCurrent(ctypes.byref(current))
        if result:
            return result
        foreign = (current.value or 0) != context
        if foreign and (result := self._lib.cuCtxPushCurrent_v2(ctypes.c_void_p(context))):
            return result
        result = self._lib.cuLaunchKernel(function, *grid, *block, shared_bytes, stream, arguments, None)
        if foreign:
            self._lib.cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))
        return result


class CompiledLauncher:
    name = "pybind11"
    reason = ""

    def __init__(self, module: Any, library: str) -> None:
        self.launch = module.Launcher(library).launch


def identity() -> dict[str, Any]:
    """What makes a compiled launcher the right one for this Python."""
    return {
        "module": MODULE,
        "source": source.sha256((source.CSRC / SOURCE).read_text(encoding="utf-8")),
        "suffix": suffix(),
        "interface": INTERFACE,
    }


def entry_name() -> str:
    """Its name in the cache: Pythons that share a pack build one each."""
    return f"launcher-{sys.implementation.cache_tag}"


def suffix() -> str:
    """The extension-module suffix of this Python: the name of its ABI."""
    return importlib.machinery.EXTENSION_SUFFIXES[0]


def load_compiled(library: str) -> CompiledLauncher:
    """The compiled launcher. Raises CacheMiss or ImportError with the reason."""
    entry = cache.find(entry_name(), **identity())
    spec = importlib.util.spec_from_file_location(MODULE, entry.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{entry.path} is no extension module of this Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if module.interface() != INTERFACE:
        raise ImportError(f"{entry.path} speaks interface {module.interface()}, the pack {INTERFACE}")
    return CompiledLauncher(module, library)


@functools.cache
def choose(library: str = driver.LIBRARY) -> Launcher:
    """The compiled launcher where it loads, else ctypes with the reason why not."""
    try:
        return load_compiled(library)
    except (cache.CacheMiss, ImportError) as error:
        return CtypesLauncher(library, f"{error}{_other_python()}")


def _other_python() -> str:
    others = sorted(
        {str(stamp.get("python")) for stamp in cache.entries() if stamp.get("module") == MODULE} - {sys.executable}
    )
    return f"; built for {', '.join(others)}, running {sys.executable}" if others else ""
