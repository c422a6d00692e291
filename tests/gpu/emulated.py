"""The kernels of csrc/mma as a Hopper GPU runs them: NVFP4 products by halves, 8-bit stages filled as on sm_80.

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


def _emulated(spec: kernel_table.KernelSpec) -> kernel_table.KernelSpec:
    return dataclasses.replace(spec, unit=f"{spec.unit}_emulated", capabilities=(CAPABILITY,))


SPECS = tuple(_emulated(spec) for spec in kernel_table.KERNELS if spec.arch == "mma")
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


def install(patch) -> None:
    """Makes `dispatch` know these kernels and no others, until `patch` (a pytest.MonkeyPatch) undoes it."""
    build()
    patch.setattr(dispatch, "KERNELS", SPECS)
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
