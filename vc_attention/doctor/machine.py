"""What this machine has: system, driver, GPUs, compilers, built kernels. Needs no PyTorch and starts no GPU work."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from .. import driver, launch, launchers
from ..build import cache, compilers, preflight, toolchain
from ..build.units import UNITS
from .finding import Finding, guarded

SETTINGS = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUDA_PATH", "TORCH_CUDA_ARCH_LIST", "MAX_JOBS")


def findings() -> Iterator[Finding]:
    """Every finding of this room; nothing in it can raise."""
    try:
        gpus, trouble = driver.load().gpus(), None
    except driver.DriverError as error:
        gpus, trouble = [], str(error)
    yield from guarded("Machine", system)
    yield from guarded("Machine", lambda: graphics(gpus, trouble))
    yield from guarded("Compilers", lambda: tools(gpus, trouble))
    yield from guarded("Kernels", lambda: kernels(gpus))


def pack_version() -> str:
    """Version in pyproject.toml."""
    return _version(cache.PACK / "pyproject.toml", r'^version\s*=\s*"([^"]+)"') or "unknown"


def system() -> Iterator[Finding]:
    yield Finding("Machine", "system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    yield Finding("Machine", "Python", "ok", f"{platform.python_version()} at {sys.executable}")
    comfyui = comfyui_version()
    yield Finding("Machine", "ComfyUI", "ok" if comfyui else "note", comfyui or "none around this folder")
    for name in SETTINGS:
        if os.environ.get(name):
            yield Finding("Machine", name, "note", os.environ[name])


def comfyui_version() -> str | None:
    """Version of the ComfyUI whose custom_nodes this pack lies in, read from its file."""
    told = os.environ.get("COMFYUI_PATH")  # by ComfyUI-Manager; a pack may be linked in from elsewhere
    for root in ([Path(told)] if told else []) + [cache.PACK.parents[1]]:
        if found := _version(root / "comfyui_version.py", r'^__version__\s*=\s*"([^"]+)"'):
            return found
    return None


def _version(file: Path, pattern: str) -> str | None:
    try:
        match = re.search(pattern, file.read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError):
        return None
    return match[1] if match else None


def graphics(gpus: list[driver.Gpu], trouble: str | None) -> Iterator[Finding]:
    if trouble:
        remedy = "install or update NVIDIA's driver; without an NVIDIA GPU the model's own attention is used"
        yield Finding("Machine", "NVIDIA driver", "bad", trouble, remedy)
        return
    rows = _smi("name", "driver_version", "memory.total", "power.limit")
    release = rows[0][1] if rows else "release unknown"
    cuda = "{}.{}".format(*driver.load().version())
    yield Finding("Machine", "NVIDIA driver", "ok", f"{release}, runs CUDA {cuda}")
    for gpu in gpus:
        # nvidia-smi lists every GPU of the machine in an order of its own; those of one name are mostly alike.
        facts = sorted({f"{memory}, {power}" for name, _, memory, power in rows if name == gpu.name})
        capability = "compute capability {}.{}".format(*gpu.capability)
        text = ", ".join((gpu.name, capability, *([" or ".join(facts)] if facts else [])))
        if any(unit.name.startswith("attention") and unit.arch_for(gpu.capability) for unit in UNITS.values()):
            yield Finding("Machine", f"GPU {gpu.index}", "ok", text)
        else:
            remedy = "nothing: this GPU has no attention kernels, the model's own attention is used"
            yield Finding("Machine", f"GPU {gpu.index}", "bad", text, remedy)


def _smi(*fields: str) -> list[list[str]]:
    """Rows of nvidia-smi, or none where it does not answer."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    command = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [row for line in said.splitlines() if len(row := line.split(", ")) == len(fields)]


def tools(gpus: list[driver.Gpu], trouble: str | None) -> Iterator[Finding]:
    found = toolchain.probe()
    usable, refused = compilers.available(found, "auto", driver.load().version() if gpus else None)
    for part in preflight.parts(found, gpus, trouble):
        if part.name == "GPU":  # told above
            continue
        needed = part.needed_by == "all" or (not usable and part.needed_by in ("nvrtc", "nvcc"))
        state = "ok" if part.found else "bad" if needed else "note"
        text = part.found or f"missing, needed by {part.needed_by}"
        yield Finding("Compilers", part.name, state, text, "" if part.found else part.remedy)
    for text in (*refused, *found.notes):
        yield Finding("Compilers", "also there", "note", text)


def kernels(gpus: list[driver.Gpu]) -> Iterator[Finding]:
    """One finding for every unit that a GPU here would use, and for what was built beside."""
    told = set()
    for capability in dict.fromkeys(gpu.capability for gpu in gpus):
        for unit in UNITS.values():
            arch = unit.arch_for(capability)
            if arch is None:
                continue
            name = f"{unit.name} sm_{arch}"
            told.add((unit.name, arch))
            try:
                stamp = cache.find(f"{unit.name}-sm_{arch}", **launch.identity(unit, arch)).stamp
            except cache.CacheMiss as miss:
                remedy = f"run {launch.rebuild_command()} and restart ComfyUI"
                yield Finding("Kernels", name, "bad", str(miss), remedy)
                continue
            yield Finding("Kernels", name, "ok", _built(stamp), data={"resources": stamp.get("resources")})
    for stamp in cache.entries():
        unit, arch = stamp.get("unit"), stamp.get("arch")
        if unit and (unit, arch) not in told:
            yield Finding("Kernels", f"{unit} sm_{arch}", "note", f"{_built(stamp)}; for no GPU here")
    if gpus:
        chosen = launchers.choose()
        yield Finding("Kernels", "launcher", "ok", chosen.name + (f" ({chosen.reason})" if chosen.reason else ""))


def _built(stamp: dict) -> str:
    """As in "by nvcc 13.0.88: 8 kernels, at most 168 registers, no spills"."""
    kernels = (stamp.get("resources") or {}).values()
    registers = max((kernel.get("registers", 0) for kernel in kernels), default=0)
    spilled = sum(kernel.get("spill_stores", 0) + kernel.get("spill_loads", 0) for kernel in kernels)
    counted = f"{len(kernels)} kernel" + ("s" if len(kernels) != 1 else "")
    spills = f"{spilled} bytes of spills" if spilled else "no spills"
    return f"by {stamp.get('compiler')}: {counted}, at most {registers} registers, {spills}"
