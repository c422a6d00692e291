"""Everything that is missing on this machine, all at once, with one remedy each."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass

from .. import driver
from . import cache
from .toolchain import Toolchain


@dataclass(frozen=True)
class Part:
    """One thing to have. `found` is empty when it is missing.

    `needed_by`: "all"; "nvcc" or "nvrtc", of which one whole set is enough; "launcher", without which ctypes launches.
    """

    name: str
    needed_by: str
    found: str
    remedy: str


def parts(tools: Toolchain, gpus: list[driver.Gpu], driver_error: str | None) -> list[Part]:
    """Every part, there or not."""
    pip = f'"{sys.executable}" -m pip install'
    cxx = "open the x64 Native Tools prompt of Visual Studio" if sys.platform == "win32" else "install g++"
    no_gpu = "install NVIDIA's driver, or build for a GPU elsewhere with --arch"
    nvccs = ", ".join(f"{nvcc.release} at {nvcc.path}" for nvcc in tools.nvccs)
    nvrtcs = ", ".join("{}.{} at {}".format(*library.version, library.path) for library in tools.nvrtcs)
    headers = "install Python's development headers (embedded Pythons cannot have them)"
    return [
        Part("GPU", "all", ", ".join(map(str, gpus)), f"{no_gpu} ({driver_error})" if driver_error else no_gpu),
        Part("folder for kernels", "all", _writable(), "make the pack's folder or your home writable"),
        Part("NVRTC", "nvrtc", nvrtcs, f"{pip} nvidia-cuda-nvrtc, or a CUDA build of torch, which brings it"),
        Part("nvcc", "nvcc", nvccs, "install the CUDA toolkit"),
        Part("ninja", "nvcc, launcher", tools.ninja or "", f"{pip} ninja"),
        Part("C++ compiler", "nvcc, launcher", tools.host_compiler or "", cxx),
        Part("pybind11", "launcher", str(tools.pybind11 or ""), f"{pip} pybind11"),
        Part("Python.h", "launcher", str(tools.python_headers or ""), headers),
        Part("temporary folder", "nvcc", _temporary(), "let TEMP or TMPDIR name a folder that can be written"),
    ]


def lines(found: list[Part], notes: list[str]) -> list[str]:
    """The report: what is there, then all that is not, then what is there but does not work."""
    there = [f"found    {part.name}: {part.found}" for part in found if part.found]
    missing = [f"missing  {part.name} (needed by {part.needed_by}): {part.remedy}" for part in found if not part.found]
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
