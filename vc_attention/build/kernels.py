"""Compile what is missing with the compilers at hand, and store it."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

from .. import launch
from . import cache, diagnose, ptxas, tasks
from .compilers import Compiler, assign
from .nvrtc import tail
from .tasks import Outcome, Task

Say = Callable[[str], None]


def build(missing: list[Task], usable: list[Compiler], say: Say) -> list[Task]:
    """Compile and store `missing`; what one kind of compiler fails at, the next kind tries. Returns what none could."""
    jobs = tasks.jobs(os.cpu_count() or 1, tasks.free_memory_gb(), _max_jobs())
    failed = missing
    for kind in dict.fromkeys(compiler.kind for compiler in usable):
        failed = _build_with([compiler for compiler in usable if compiler.kind == kind], failed, jobs, say)
        if not failed:
            break
    return failed


def _build_with(usable: list[Compiler], missing: list[Task], jobs: int, say: Say) -> list[Task]:
    given, homeless = assign(missing, usable)
    failed = list(homeless)
    for task, reasons in homeless.items():
        say(f"{task.name}: " + "; ".join(reasons))
    for compiler, share in given.items():
        say(f"{len(share)} to compile with {compiler.id}, {min(jobs, len(share))} at a time")
        compiler.compile(share, jobs, partial(_settle, compiler.id, failed, say))
    return failed


def _settle(compiler: str, failed: list[Task], say: Say, outcome: Outcome) -> None:
    task = outcome.task
    if outcome.cubin is None:
        failed.append(task)
        whole = cache.log(task.name, outcome.log)
        say(f"{task.name}: {diagnose.cause(outcome.log)}\n{tail(outcome.log)}\nwhole log: {whole}")
        return
    resources, warnings = ptxas.parse(outcome.log)
    facts = {"resources": resources, "warnings": warnings, "seconds": round(outcome.seconds, 2)}
    # Not the hash of what lies in csrc/ now: somebody may be editing.
    identity = {**launch.identity(task.unit, task.arch), "source": outcome.source}
    cache.store(task.name, ".cubin", outcome.cubin, {**identity, "compiler": compiler}, facts)
    cache.prune(task.name, **identity)
    say(f"{task.name}: {outcome.seconds:.1f} s, {len(outcome.cubin)} bytes")


def _max_jobs() -> int | None:
    value = os.environ.get("MAX_JOBS", "")
    return int(value) if value.isdigit() and int(value) else None
