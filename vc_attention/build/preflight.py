"""Everything that is missing on this machine, all at once, with one remedy each."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass

from . import cache
from .toolchain import Toolchain


@dataclass(frozen=True)
class Part:
    """`needed` groups parts: kernels need one whole group of `nvcc` or `nvrtc`; `launcher` is only faster than ctypes."""

    name: str
    needed: str
    found: str
    remedy: str


def parts(tools: Toolchain, gpus: list[str], driver_error: str | None) -> list[Part]:
    """All parts; `found` is empty where one is missing."""
    cxx = "open the x64 Native Tools prompt of Visual Studio" if sys.platform == "win32" else "install g++"
    pip = f'"{sys.executable}" -m pip install'
    nvccs = ", ".join(f"{nvcc.release} at {nvcc.path}" for nvcc in tools.nvccs)
    nvrtcs = ", ".join(f"{library.version[0]}.{library.version[1]} at {library.path}" for library in tools.nvrtcs)
    return [
        Part("GPU", "running", ", ".join(gpus), f"install NVIDIA's driver, or build for a GPU elsewhere with --arch ({driver_error or 'no GPU found'})"),
        Part("folder for kernels", "running", _writable(), "make the pack's folder or your home writable"),
        Part("NVRTC", "nvrtc", nvrtcs, f"{pip} nvidia-cuda-nvrtc (or install a CUDA build of torch, which brings it)"),
        Part("nvcc", "nvcc", nvccs, "install the CUDA toolkit; not needed where NVRTC is"),
        Part("ninja", "nvcc", tools.ninja or "", f"{pip} ninja"),
        Part("C++ compiler", "nvcc, launcher", tools.host_compiler or "", cxx),
        Part("pybind11", "launcher", str(tools.pybind11 or ""), f"{pip} pybind11"),
        Part("Python.h", "launcher", str(tools.python_headers or ""), "install Python's development headers; embedded Pythons have none"),
        Part("temporary folder", "nvcc", _temporary(), "let TEMP or TMPDIR name a folder that exists and can be written"),
    ]  # fmt: skip


def lines(found: list[Part], notes: list[str]) -> list[str]:
    """The report: what is there, then all that is not."""
    there = [f"found    {part.name}: {part.found}" for part in found if part.found]
    missing = [f"missing  {part.name} (for {part.needed}): {part.remedy}" for part in found if not part.found]
    return there + missing + [f"note     {note}" for note in notes]


def _writable() -> str:
    try:
        return str(cache.writable())
    except OSError:
        return ""


def _temporary() -> str:
    try:
        return tempfile.gettempdir()
    except OSError:
        return ""
