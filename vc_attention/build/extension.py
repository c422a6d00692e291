"""Building the compiled launcher: one C++ file, pybind11, no torch and no CUDA headers."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from .. import launchers
from . import cache, diagnose, ninja, nvrtc
from .compilers import Scratch
from .source import CSRC
from .toolchain import Toolchain
from .units import INTERFACE


def built() -> bool:
    """Whether this Python has its launcher already."""
    try:
        cache.find(launchers.entry_name(), **launchers.identity())
    except cache.CacheMiss:
        return False
    return True


def lacking(tools: Toolchain) -> list[str]:
    """What stands in the way of building it; ctypes launches then."""
    needed = {
        "a C++ compiler": tools.host_compiler,
        "ninja": tools.ninja,
        "pybind11": tools.pybind11,
        "Python.h": tools.python_headers,
    }
    return [name for name, found in needed.items() if not found]


def build(tools: Toolchain) -> str | None:
    """Build and store it; returns the reason when the compiler refuses."""
    output = f"launcher{launchers.suffix()}"
    failure: list[str] = []
    with Scratch() as folder:
        (folder / "launcher.cpp").write_bytes((CSRC / launchers.SOURCE).read_bytes())
        includes = [str(tools.pybind11), str(tools.python_headers)]
        command = _msvc(tools, includes, output) if sys.platform == "win32" else _unix(tools, includes, output)

        def done(_: ninja.Edge, succeeded: bool, log: str, __: float) -> None:
            if not succeeded:
                failure.append(f"{diagnose.cause(log)}\n{nvrtc.tail(log)}")

        ninja.run(str(tools.ninja), folder, [ninja.Edge(output, "launcher.cpp", command)], 1, done)
        if failure:
            return failure[0]
        data = (folder / output).read_bytes()
    cache.store(launchers.entry_name(), launchers.suffix(), data, launchers.identity(), {"python": sys.executable})
    cache.prune(launchers.entry_name(), **launchers.identity())
    return None


def _unix(tools: Toolchain, includes: list[str], output: str) -> tuple[str, ...]:
    flags = ("-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", f"-DVC_INTERFACE={INTERFACE}")
    return (
        str(tools.host_compiler),
        *flags,
        *(f"-I{folder}" for folder in includes),
        "-o",
        output,
        "launcher.cpp",
        "-ldl",
    )


def _msvc(tools: Toolchain, includes: list[str], output: str) -> tuple[str, ...]:
    flags = ("/nologo", "/std:c++17", "/O1", "/EHsc", "/MD", "/LD", f"/DVC_INTERFACE={INTERFACE}")
    libraries = Path(sysconfig.get_config_var("installed_base") or sys.base_prefix) / "libs"
    return (
        str(tools.host_compiler), *flags, *(f"/I{folder}" for folder in includes), "launcher.cpp", f"/Fe:{output}",
        "/link", f"/LIBPATH:{libraries}",
    )  # fmt: skip
