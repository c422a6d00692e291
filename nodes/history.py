"""Reports of the newest sampling runs, for the Report node, which executes after them and holds nothing of theirs.

A run is found by the node that sampled and the patch node that it was patched by. A patch node that executes again
forgets its runs: ComfyUI then executes the samplers after it again as well.
"""

from __future__ import annotations

import threading
from collections.abc import Container

LIMIT = 64  # runs; far more than one workflow has samplers

_runs: dict[tuple[str, str], dict] = {}  # (sampler, patch) -> run, the newest last
_lock = threading.Lock()


def keep(sampler: str, patch: str, report: dict, text: str) -> None:
    """Remember a run: docs/report.md's object and the lines that the patch node shows."""
    with _lock:
        _runs.pop((sampler, patch), None)
        _runs[sampler, patch] = {"sampler": sampler, "patch": patch, "report": report, "text": text}
        while len(_runs) > LIMIT:
            _runs.pop(next(iter(_runs)))


def forget(patch: str) -> None:
    """Drop the runs of a patch node."""
    with _lock:
        for key in [key for key in _runs if key[1] == patch]:
            del _runs[key]


def runs_among(nodes: Container[str]) -> list[dict]:
    """Runs whose sampler and patch are both in `nodes`, in the order in which they ended."""
    with _lock:
        return [run for (sampler, patch), run in _runs.items() if sampler in nodes and patch in nodes]


def all_runs() -> list[dict]:
    """Every run that is remembered, the newest last."""
    with _lock:
        return list(_runs.values())
