"""Grouping state of one sampling run: which permutation a layer left behind, for whom, and how many bytes it holds.

A session lives exactly as long as its sampling run. It is one opaque object, so that ComfyUI, which copies dictionaries
and lists of options freely, passes it on by reference; several threads (one per GPU) may use it at once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch

from .config import Action, Grouping
from .schedule import Schedule, Step

# Wan2.2 14B, 720p, 81 frames needs 0.6 GiB per condition (int32 permutations, 40 layers); cond and uncond fit.
DEFAULT_BUDGET = 2 << 30


class RowKey(NamedTuple):
    """Whose grouping it is: one batch row of one attention layer.

    `condition` tells the conditions of a run apart and `row` the rows of one condition's chunk, because ComfyUI may run
    cond and uncond in one batch or one after the other, changing its mind from step to step with free memory.
    """

    layer: Hashable
    condition: Hashable
    row: int
    window: Hashable
    shape: tuple[int, ...]
    device: str


class _Holding:
    """A batched grouping and the number of rows that still point into it."""

    def __init__(self, grouping: Grouping, rows: int) -> None:
        self.grouping = grouping
        self.rows = rows
        self.nbytes = grouping.nbytes


@dataclass
class _Entry:
    holding: _Holding
    row: int
    renewed: int  # step index of the last GROUP or ASSIGN
    used: int  # step index of the last call


class Session:
    """Groupings of one sampling run.

    Args:
        schedule: when to group, assign, reuse.
        budget: bytes that the kept groupings may hold together. When a new one does not fit, groupings that the current
            and the previous step did not touch are dropped; if it still does not fit it is not kept, so
            that layer groups anew at its next call. Both are counted (`evicted`, `unkept`, in rows).
    """

    def __init__(self, schedule: Schedule, budget: int = DEFAULT_BUDGET) -> None:
        self.schedule = schedule
        self.budget = budget
        self.nbytes = 0
        self.peak_nbytes = 0
        self.evicted = 0
        self.unkept = 0
        self._entries: dict[RowKey, _Entry] = {}
        self._lock = threading.Lock()

    def plan(self, keys: Sequence[RowKey], step: Step) -> tuple[Action, Grouping | None]:
        """The action of a batched call whose rows are `keys`, and the grouping it starts from (None when cold).

        All rows of a call take one action. They differ only where batching changed in between; then the row that needs
        most decides: renewing a row too early costs time, using a stale one costs quality.
        """
        with self._lock:
            entries = [self._entries.get(key) for key in keys]
            actions = {self.schedule.decide(step, entry.renewed if entry else None) for entry in entries}
            action = next(a for a in Action if a in actions)  # Action is declared in order of need
            if action is Action.GROUP:
                return action, None
            for entry in entries:
                entry.used = step.index
            return action, _gather(entries)

    def keep(self, keys: Sequence[RowKey], grouping: Grouping, step: Step) -> bool:
        """Keep what a renewing call returned, one batch row per key; False if it did not fit into the budget."""
        holding = _Holding(grouping, len(keys))
        with self._lock:
            for key in keys:
                self._drop(key)
            if self.nbytes + holding.nbytes > self.budget:
                self._evict_stale(step)
            if self.nbytes + holding.nbytes > self.budget:
                self.unkept += len(keys)
                return False
            self.nbytes += holding.nbytes
            self.peak_nbytes = max(self.peak_nbytes, self.nbytes)
            for row, key in enumerate(keys):
                self._entries[key] = _Entry(holding, row, step.index, step.index)
            return True

    def close(self) -> None:
        """Free everything; the session can be used again and starts cold."""
        with self._lock:
            self._entries.clear()
            self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __deepcopy__(self, memo: dict) -> Session:
        return self  # a copy of the options that carry a session still belongs to the same run

    def _drop(self, key: RowKey) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        entry.holding.rows -= 1
        if entry.holding.rows == 0:
            self.nbytes -= entry.holding.nbytes

    def _evict_stale(self, step: Step) -> None:
        stale = [key for key, entry in self._entries.items() if abs(step.index - entry.used) > 1]
        for key in stale:
            self._drop(key)
        self.evicted += len(stale)


def _tensors(grouping: Grouping) -> dict[str, torch.Tensor]:
    return {f.name: getattr(grouping, f.name) for f in fields(grouping)}


def _gather(entries: Sequence[_Entry]) -> Grouping:
    """One batched grouping out of the rows of several; the very object when the batch is the one that was kept."""
    first = entries[0].holding
    whole = first.grouping
    batch = next(iter(_tensors(whole).values())).shape[0]
    if all(e.holding is first and e.row == i for i, e in enumerate(entries)) and len(entries) == batch:
        return whole
    rows = [{name: t[e.row : e.row + 1] for name, t in _tensors(e.holding.grouping).items()} for e in entries]
    return type(whole)(**{name: torch.cat([row[name] for row in rows]) for name in rows[0]})
