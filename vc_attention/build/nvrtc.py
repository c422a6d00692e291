"""NVRTC through ctypes: CUDA text to cubin, with no compiler, header or process beside the library."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from ..errors import VCAttentionError


class CompileError(VCAttentionError, RuntimeError):
    """A source was refused; carries the compiler's log."""


class Nvrtc:
    """One NVRTC library. Calls hold no lock of Python's, so units compile side by side in threads."""

    def __init__(self, path: Path | str) -> None:
        """Load the library at `path`. Raises OSError when it does not load."""
        self.path = Path(path)
        if hasattr(os, "add_dll_directory") and self.path.is_absolute():
            # nvrtc-builtins lies beside it, where Windows does not look by itself.
            os.add_dll_directory(str(self.path.parent))
        self._lib = ctypes.CDLL(str(path))
        if self.path.is_absolute():
            # NVRTC asks for it by name alone when it compiles, and the 12 and 13.0 wheels do not say where it lies:
            # one that this process holds already is found.
            self._builtins = [ctypes.CDLL(str(file)) for file in self.path.parent.glob("libnvrtc-builtins.so*")]
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        self.version = (major.value, minor.value)

    def compile(self, text: str, name: str, arch: str, options: tuple[str, ...]) -> tuple[bytes, str]:
        """CUDA `text` -> (cubin, log). `name` stands in messages; `arch` as in "90a". Raises CompileError."""
        program = ctypes.c_void_p()
        self._check(self._lib.nvrtcCreateProgram(ctypes.byref(program), text.encode(), name.encode(), 0, None, None))
        try:
            flags = [flag.encode() for flag in (f"--gpu-architecture=sm_{arch}", *options)]
            result = self._lib.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*flags))
            log = self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            if result:
                raise CompileError(f"{name} for sm_{arch}: NVRTC {self.version}: {self._error(result)}\n{log}")
            return self._read(program, "CUBIN"), log
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._lib, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._lib, f"nvrtcGet{what}")(program, buffer))
        return buffer.raw

    def _check(self, result: int) -> None:
        if result:
            raise CompileError(f"NVRTC at {self.path}: {self._error(result)}")

    def _error(self, result: int) -> str:
        return self._lib.nvrtcGetErrorString(result).decode()


def tail(log: str, lines: int = 30) -> str:
    """The end of a log, where the reason stands."""
    return "\n".join(log.strip().splitlines()[-lines:])
