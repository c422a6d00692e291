"""The CUDA driver through ctypes: the same few calls for the installer, which has no torch, and for the launcher.

Device ordinals are the driver's, which are torch's: both follow CUDA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from .errors import VCAttentionError

LIBRARY = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"

_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76
_MAX_DYNAMIC_SHARED_BYTES = 8


class DriverError(VCAttentionError, RuntimeError):
    """A driver call failed, or there is no driver."""


@dataclass(frozen=True)
class Gpu:
    index: int
    name: str
    capability: tuple[int, int]

    def __str__(self) -> str:
        return f"GPU {self.index} ({self.name}, {self.capability[0]}.{self.capability[1]})"


class Driver:
    """One driver library. Every method raises DriverError with the driver's own name for what went wrong."""

    def __init__(self, library: str) -> None:
        self.library = library
        try:
            self._lib = ctypes.CDLL(library)
        except OSError as error:
            raise DriverError(f"the NVIDIA driver library {library} does not load: {error}") from error
        self.call("cuInit", ctypes.c_uint(0))

    def call(self, function: str, *arguments: object) -> None:
        self.check(getattr(self._lib, function)(*arguments), function)

    def check(self, result: int, function: str) -> None:
        """Raise for a CUresult other than success."""
        if result == 0:
            return
        texts = []
        for describe in (self._lib.cuGetErrorName, self._lib.cuGetErrorString):
            text = ctypes.c_char_p()
            describe(ctypes.c_int(result), ctypes.byref(text))
            texts.append((text.value or b"unknown").decode())
        raise DriverError(f"{function}: {texts[0]} ({result}): {texts[1]}")

    def version(self) -> tuple[int, int]:
        """The newest CUDA that this driver runs."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return number.value // 1000, number.value % 1000 // 10

    def gpus(self) -> list[Gpu]:
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return [self.gpu(index) for index in range(count.value)]

    def gpu(self, index: int) -> Gpu:
        device = self._device(index)
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, ctypes.c_int(len(name)), device)
        values = []
        for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
            value = ctypes.c_int()
            self.call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), device)
            values.append(value.value)
        return Gpu(index, name.value.decode(errors="replace"), (values[0], values[1]))

    def context(self, index: int) -> int:
        """The primary context of a device: the one that torch uses too. It is kept for the life of the process."""
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device(index))
        return context.value or 0

    @contextmanager
    def current(self, context: int):
        """Make `context` the calling thread's, then give back the one that was."""
        self.call("cuCtxPushCurrent_v2", ctypes.c_void_p(context))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def load_module(self, cubin: bytes) -> int:
        """Load `cubin` into the current context."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin))
        return module.value or 0

    def function(self, module: int, name: str) -> int:
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), ctypes.c_void_p(module), name.encode())
        return function.value or 0

    def allow_shared(self, function: int, size: int) -> None:
        """Let `function` be launched with up to `size` bytes of dynamic shared memory."""
        self.call(
            "cuFuncSetAttribute", ctypes.c_void_p(function), ctypes.c_int(_MAX_DYNAMIC_SHARED_BYTES), ctypes.c_int(size)
        )

    def parameter_bytes(self, function: int) -> int | None:
        """Size of the kernel's one parameter, or None where the driver is too old to tell (before CUDA 12.4)."""
        describe = getattr(self._lib, "cuFuncGetParamInfo", None)
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        if describe is None or describe(
            ctypes.c_void_p(function), ctypes.c_size_t(0), ctypes.byref(offset), ctypes.byref(size)
        ):
            return None
        return size.value

    def _device(self, index: int) -> ctypes.c_int:
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(index))
        return device


@cache
def load(library: str = LIBRARY) -> Driver:
    """The driver of this machine, opened once. Raises DriverError when there is none or it has no GPU."""
    return Driver(library)
