"""Small workflows for the interface tests: shipped ones on tiny checkpoints, in seconds."""

from __future__ import annotations

from dataclasses import replace

from tools.graph import build, with_stand_ins
from tools.settings import WAN22_COMPARE, WAN22_T2V, Run, tiny
from tools.workflows import to_ui


def small_workflow(seed: int, steps: int = 4, of: Run = WAN22_T2V, **patch) -> dict:
    """Wan2.2's two experts, half of the steps each, one frame of 256 tokens; as the interface saves it."""
    run = tiny(of, length=1, steps=steps, seed=seed)
    half = steps // 2
    experts = tuple(replace(e, start=half * i, end=half * (i + 1)) for i, e in enumerate(run.experts))
    run = replace(run, experts=experts, patch={**run.patch, "backend": "reference", **patch})
    return to_ui(with_stand_ins(build(run)), run)


def compare_workflow(seed: int) -> dict:
    """The same without and with the patch, and the comparison of both."""
    return small_workflow(seed, of=WAN22_COMPARE)
