"""What is to be compiled, what came of it, and how much at once."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .units import Unit

# A unit of raw PTX takes well under this; a template-heavy one of another project took 7.
GB_PER_JOB = 2.0


@dataclass(frozen=True)
class Task:
    unit: Unit
    arch: str

    @property
    def name(self) -> str:
        return f"{self.unit.name}-sm_{self.arch}"


@dataclass(frozen=True)
class Outcome:
    """`source` is the hash of what was compiled; `cubin` is None when it was refused; `log` is there either way."""

    task: Task
    source: str
    cubin: bytes | None
    log: str
    seconds: float


Report = Callable[[Outcome], None]


def jobs(cores: int, free_gb: float | None, max_jobs: int | None) -> int:
    """How many compilations run side by side: never more than the cores, the memory or MAX_JOBS allow, at least one."""
    limits = [cores, max_jobs or cores, int(free_gb / GB_PER_JOB) if free_gb is not None else 4]
    return max(1, min(limits))


def free_memory_gb() -> float | None:
    """Memory that can be had without swapping, or None where the system does not tell."""
    if sys.platform == "win32":
        return _windows_free_gb()
    try:
        for line in Path("/proc/meminfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) / 2**20
    except (OSError, ValueError):
        return None
    return None


def _windows_free_gb() -> float | None:
    class MemoryStatus(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ulong), ("load", ctypes.c_ulong)] + [
            (name, ctypes.c_ulonglong)
            for name in ("total", "available", "page_total", "page_free", "virtual", "virtual_free", "extended")
        ]

    status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
        return None
    return status.available / 2**30
