"""The kernels of csrc/mma as a Hopper GPU runs them: NVFP4 products by halves, 8-bit ones in both forms of copies.

They are in no table of the pack, so `install.py` does not build them; `build()` does.
"""

from __future__ import annotations

import dataclasses

from vc_attention import dispatch, kernel_table, launch
from vc_attention.build import cache, compilers, kernels, toolchain, units
from vc_attention.build.tasks import Task
from vc_attention.build.units import Unit, attention_mma

TARGET, CAPABILITY = "90a", (9, 0)
SELFTEST = Unit("mma_selftest", "mma/emulated/selftest.cu", (TARGET,), ("vc_mma_selftest",))


def _emulated(spec: kernel_table.KernelSpec) -> list[kernel_table.KernelSpec]:
    forms = ("",) if spec.probability == "nvfp4" else ("", "_async")  # bulk copies, and cp.async
    units = (f"{spec.unit}{form}_emulated" for form in forms)
    return [dataclasses.replace(spec, unit=unit, capabilities=(CAPABILITY,)) for unit in units]


SPECS = tuple(form for spec in kernel_table.KERNELS if spec.arch == "mma" for form in _emulated(spec))
UNITS = {
    unit.name: unit
    for unit in (
        *(
            attention_mma(spec.unit.removeprefix("attention_mma_"), spec.p_scale, (TARGET,), "mma/emulated")
            for spec in SPECS
        ),
        SELFTEST,
    )
}


def install(patch, unit: str | None = None) -> None:
    """Makes `dispatch` know these kernels alone, or those of `unit`, until `patch` (a pytest.MonkeyPatch) undoes it."""
    build()
    patch.setattr(dispatch, "KERNELS", tuple(spec for spec in SPECS if unit in (None, spec.unit)))
    for name, unit in UNITS.items():
        patch.setitem(units.UNITS, name, unit)


def build() -> None:
    """Compiles what is missing in the cache. Raises RuntimeError when something cannot be compiled."""
    missing = [task for task in (Task(unit, TARGET) for unit in UNITS.values()) if not _built(task)]
    if missing and kernels.build(missing, compilers.available(toolchain.probe(), "auto", None)[0], print):
        raise RuntimeError("kernels for tests do not compile, see above")


def _built(task: Task) -> bool:
    try:
        return bool(cache.find(task.name, **launch.identity(task.unit, task.arch)))
    except cache.CacheMiss:
        return False
