"""What this machine can compile with: every place is looked at once, and what does not work is noted, not raised."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .nvrtc import CompileError, Nvrtc


@dataclass(frozen=True)
class Nvcc:
    """A toolkit's compiler that ran: `version` as in (13, 0), `release` as in "13.0.88"."""

    path: str
    version: tuple[int, int]
    release: str


@dataclass
class Toolchain:
    """All that was found. `notes` tell what was there but does not work."""

    nvccs: list[Nvcc] = field(default_factory=list)
    nvrtcs: list[Nvrtc] = field(default_factory=list)
    host_compiler: str | None = None
    ninja: str | None = None
    pybind11: Path | None = None
    python_headers: Path | None = None
    notes: list[str] = field(default_factory=list)


def probe(
    env: Mapping[str, str] = os.environ, platform: str = sys.platform, path: list[str] | None = None
) -> Toolchain:
    """Look for everything, on `path` (sys.path) for what comes as a Python package. Takes well under a second."""
    packages = [Path(entry) for entry in (sys.path if path is None else path) if entry]
    found = Toolchain()
    for candidate in _unique(_nvcc_places(env, platform, packages)):
        _try_nvcc(candidate, found)
    for candidate in _unique(_nvrtc_places(env, platform, packages)):
        _try_nvrtc(candidate, found)
    search = env.get("PATH", "")
    found.host_compiler = _first_program(_host_compilers(env, platform), search)
    found.ninja = _first_program(["ninja", *_package_programs("ninja", platform)], search)
    found.pybind11 = next((p for p in (entry / "pybind11" / "include" for entry in packages) if p.is_dir()), None)
    headers = Path(sysconfig.get_paths()["include"])
    found.python_headers = headers if (headers / "Python.h").is_file() else None
    return found


def _nvcc_places(env: Mapping[str, str], platform: str, packages: list[Path]) -> Iterator[tuple[str, Path]]:
    program = "nvcc.exe" if platform == "win32" else "nvcc"
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(variable):
            yield variable, Path(env[variable]) / "bin" / program
    if on_path := shutil.which("nvcc", path=env.get("PATH", "")):
        yield "PATH", Path(on_path)
    for entry in packages:
        # The toolkit's wheels: one tree since CUDA 13, one folder a component before.
        for place in sorted(entry.glob(f"nvidia/*/bin/{program}"), reverse=True):
            yield "", place
    usual = Path(env.get("ProgramFiles", "C:/Program Files")) / "NVIDIA GPU Computing Toolkit" / "CUDA"
    for folder in sorted(usual.glob("v*"), reverse=True) if platform == "win32" else [Path("/usr/local/cuda")]:
        yield "", folder / "bin" / program


def _nvrtc_places(env: Mapping[str, str], platform: str, packages: list[Path]) -> Iterator[tuple[str, Path]]:
    if platform == "win32":
        patterns = ["nvidia/*/bin/**/nvrtc64_*_0.dll", "torch/lib/nvrtc64_*_0.dll"]
        toolkit = "bin/**/nvrtc64_*_0.dll"
    else:
        patterns = ["nvidia/*/lib/libnvrtc.so.*", "torch/lib/libnvrtc*.so*"]
        toolkit = "lib64/libnvrtc.so.*"
    places = [place for entry in packages for pattern in patterns for place in entry.glob(pattern)]
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if env.get(variable):
            places += Path(env[variable]).glob(toolkit)
    if platform != "win32":
        places += Path("/usr/local/cuda").glob(toolkit)
    places = [place for place in places if "builtins" not in place.name]
    for place in sorted(places, key=_nvrtc_number, reverse=True):
        yield "", place


def _nvrtc_number(place: Path) -> int:
    """Orders libnvrtc.so.13 or nvrtc64_130_0.dll by version."""
    match = re.search(r"\.so\.(\d+)|nvrtc64_(\d+)", place.name)
    return int(match[1] or match[2]) if match else 0


def _unique(places: Iterator[tuple[str, Path]]) -> Iterator[tuple[str, Path]]:
    seen = set()
    for origin, place in places:
        real = os.path.realpath(place)
        if real not in seen:
            seen.add(real)
            yield origin, place


def _try_nvcc(candidate: tuple[str, Path], found: Toolchain) -> None:
    origin, place = candidate
    if not place.is_file():
        if origin:
            found.notes.append(f"{origin} points to {place}, which is not there")
        return
    try:
        said = subprocess.run(
            [str(place), "--version"], capture_output=True, text=True, errors="replace", timeout=60
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        found.notes.append(f"{place} does not run: {error}")
        return
    match = re.search(r"release (\d+)\.(\d+)(?:, V([\d.]+))?", said)
    if match is None:
        found.notes.append(f"{place} does not say its version")
        return
    version = int(match[1]), int(match[2])
    found.nvccs.append(Nvcc(str(place), version, match[3] or f"{version[0]}.{version[1]}"))


def _try_nvrtc(candidate: tuple[str, Path], found: Toolchain) -> None:
    if any(library.path.name == candidate[1].name for library in found.nvrtcs):
        return  # torch's and the toolkit's copy of one version
    try:
        found.nvrtcs.append(Nvrtc(candidate[1]))
    except (OSError, AttributeError, CompileError) as error:
        found.notes.append(f"{candidate[1]} does not load: {error}")


def _host_compilers(env: Mapping[str, str], platform: str) -> list[str]:
    # nvcc and a Python module take only cl.exe on Windows, and only from a prompt that set it up.
    if platform == "win32":
        return ["cl"]
    return [*([env["CXX"]] if env.get("CXX") else []), "g++", "c++", "clang++"]


def _package_programs(package: str, platform: str) -> list[str]:
    """A program that a Python package brought: beside the interpreter, which need not be on PATH."""
    suffix = ".exe" if platform == "win32" else ""
    folders = {Path(sys.executable).parent, Path(sysconfig.get_path("scripts"))}
    return [str(folder / f"{package}{suffix}") for folder in sorted(folders)]


def _first_program(names: list[str], search: str) -> str | None:
    return next((place for name in names if (place := shutil.which(name, path=search))), None)
