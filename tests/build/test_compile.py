"""The compile gate: every unit for every target it is written for, with nvcc and with NVRTC, no GPU needed.

What was compiled from the same sources is not compiled again: this is the installer's cache in a folder of its own.
"""

import os
import shutil
import sys
from functools import cache as once

import pytest

from tests.absent import absent
from vc_attention import launch
from vc_attention.build import cache, compilers, kernels, targets, toolchain
from vc_attention.build.tasks import Task
from vc_attention.build.units import UNITS

KINDS = ("nvcc", "nvrtc")
TASKS = [Task(unit, arch) for unit in UNITS.values() for arch in unit.arches]


@once
def usable(kind):
    return compilers.available(toolchain.probe(), kind, None)[0]


@pytest.fixture(scope="module", params=KINDS)
def compiled(request):
    """All units of one compiler: compiled(task) -> the stamp, whose failure is the compiler's log."""
    kind = request.param
    if not usable(kind):
        if kind == "nvrtc" and sys.platform != "darwin":
            pytest.fail(f"the tests' environment lacks {kind}")
        absent(f"no {kind} here: nvcc wants ninja and a C++ compiler, NVRTC does not exist for macOS")
    folder = cache.PACK / ".cache" / f"compile-gate-{kind}"
    # Taken once: a source that is edited meanwhile is the next run's business.
    wanted = {task: launch.identity(task.unit, task.arch) for task in TASKS}
    said = []

    def found(task):
        try:
            return cache.find(task.name, **wanted[task])
        except cache.CacheMiss:
            return None

    def stamp(task):
        assert found(task), "\n".join(said)
        return found(task).stamp

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "folders", lambda: [folder])
        missing = [task for task in TASKS if not found(task)]
        if missing:
            kernels.build(missing, usable(kind), said.append)
        yield stamp


@pytest.mark.slow
@pytest.mark.timeout(3000)  # the first one waits for all compilations
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_compiles_without_spills_or_serialized_tensor_code(compiled, task):
    stamp = compiled(task)
    assert sorted(stamp["resources"]) == sorted(task.unit.kernels), "the row in units.py lists what the source exports"
    for name, used in stamp["resources"].items():
        assert used["registers"] > 0, f"{name}: the log was not understood"
        memory = {key: value for key, value in used.items() if key != "registers" and value}
        assert not memory, f"{name} for sm_{task.arch} uses local memory: {memory}"
    assert stamp["warnings"] == []


def test_the_gate_sees_a_spill_and_a_serialized_wgmma(nvrtc):
    from vc_attention.build import ptxas

    spilling = 'extern "C" __global__ void k(float* p) { float a[128]; for (int i = 0; i < 128; i++) a[i] = p[i];'
    spilling += " for (int i = 0; i < 128; i++) p[(int)a[i]] = a[(int)p[i] & 127]; }"
    _, log = nvrtc.compile(spilling, "k.cu", "90a", ("--ptxas-options=-v", "--maxrregcount=32"))
    resources, warnings = ptxas.parse(log)
    assert resources["k"]["stack"] >= 512 and warnings == []
    log = "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in function 'k'"
    assert ptxas.parse(log)[1] == [log]


def test_ci_has_both_compilers_and_they_know_every_target():
    assert shutil.which("nvcc") or not os.environ.get("CI")
    for kind in KINDS:
        for compiler in usable(kind)[:1]:
            assert [targets.refusal(arch, compiler.version) for arch in targets.ANY_ARCH] == [None] * len(
                targets.ANY_ARCH
            )
