"""What one sampling run did in every self-attention layer and step; docs/report.md has the form."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from ..vc_attention.guard import Measurement
from ..vc_attention.schedule import Step
from ..vc_attention.stopwatch import Stopwatch

STAGES = ("grouping", "preparation", "attention", "guard")


class Layer(NamedTuple):
    """A self-attention layer: where its model calls it, and the number an artist gives its block, or None."""

    block_type: str | None
    block_index: int | None
    ordinal: int
    number: int | None

    def __str__(self) -> str:
        if self.number is None:
            return f"{self.block_type or 'layer'} {self.ordinal}"
        again = f" ({self.ordinal + 1})" if self.block_index is not None and self.ordinal else ""
        return f"block {self.number}{again}"


@dataclass
class _Row:
    layer: Layer
    shape: tuple[int, ...]
    ran: dict[int, str] = field(default_factory=dict)  # step -> profile or "stock"
    errors: dict[int, float] = field(default_factory=dict)
    energy: dict[int, float] = field(default_factory=dict)
    tried: list[dict] = field(default_factory=list)
    reason: str = ""
    clusters: dict | None = None
    milliseconds: Counter[str] = field(default_factory=Counter)
    accelerated: int = 0  # batch rows of accelerated calls


class Layers:
    """Rows are layers of one shape, columns steps. Not safe for threads: the report that owns it locks."""

    def __init__(self) -> None:
        self.steps: dict[int, tuple[float, bool]] = {}  # index -> sigma, in the grouping window
        self.measured = 0
        self.worst: dict | None = None
        self.stock: dict[Hashable, tuple[Stopwatch, float]] = {}  # shape -> what stock.timed returned
        self._rows: dict[Hashable, _Row] = {}
        self._running: list[tuple[_Row, Stopwatch]] = []

    def step(self, step: Step, sigma: float) -> None:
        """A step begins, or goes on. Reads those stopwatches that have stopped."""
        self.steps.setdefault(step.index, (sigma, step.in_window))
        self.read(waiting=False)

    def ran(self, layer: Layer, shape: tuple[int, ...], step: Step, profile: str, reason: str = "") -> None:
        """A call of `layer` ran `profile`, or "stock" for the given reason."""
        row = self._row(layer, shape)
        row.ran[step.index], row.reason = profile, reason

    def timed(self, layer: Layer, shape: tuple[int, ...], batch: int, watch: Stopwatch) -> None:
        """Laps of a call of `batch` rows that may still be running; 0 rows where its output was given up."""
        row = self._row(layer, shape)
        row.accelerated += batch
        self._running.append((row, watch))

    def tell(self, layer: Layer, shape: tuple[int, ...], told: Measurement) -> None:
        """A number of the guard has arrived."""
        row = self._row(layer, shape)
        self.measured += 1
        if not told.used or not math.isfinite(told.error):
            row.tried.append({"step": told.step, "profile": told.profile, "error": _plain(told.error)})
            return
        row.errors[told.step], row.energy[told.step] = told.error, told.block_energy
        if told.cluster_shares:
            shares = map(_plain, told.cluster_shares)
            row.clusters = {"count": told.clusters, **dict(zip(("smallest", "median", "largest"), shares, strict=True))}
        if self.worst is None or told.error > self.worst["error"]:
            self.worst = {"layer": str(layer), "step": told.step, "error": told.error}

    def read(self, waiting: bool) -> None:
        """Add up the stopwatches, those that still run only when `waiting`."""
        running = []
        for row, watch in self._running:
            if waiting or watch.finished():
                row.milliseconds.update(watch.milliseconds())
            else:
                running.append((row, watch))
        self._running = running

    def moved(self) -> list[tuple[str, str]]:
        """(layer, what it ran last) of the layers that left the profile that was asked for."""
        rows = (row for row in self._rows.values() if row.tried or len(set(row.ran.values())) > 1)
        return [(str(row.layer), list(row.ran.values())[-1]) for row in rows]

    def rows(self) -> list[dict]:
        """`layers` of docs/report.md."""
        return [self._plain_row(row) for row in self._rows.values()]

    def time(self) -> dict:
        """`time` of docs/report.md."""
        rows = [row for row in self._rows.values() if row.milliseconds]
        total = {stage: sum(row.milliseconds[stage] for row in rows) for stage in STAGES}
        calls = {shape: watch.milliseconds()["stock"] * factor for shape, (watch, factor) in self.stock.items()}
        known = [row for row in rows if row.shape in calls]
        stock = sum(calls[row.shape] for row in known) / len(known) if known else None
        complete = bool(known) and len(known) == len(rows)
        saved = sum(calls[row.shape] * row.accelerated for row in rows) - sum(total.values()) if complete else None
        return {name: _plain(value, 3) for name, value in {**total, "stock_call": stock, "saved": saved}.items()}

    def _row(self, layer: Layer, shape: tuple[int, ...]) -> _Row:
        return self._rows.setdefault((layer, shape), _Row(layer, shape))

    def _plain_row(self, row: _Row) -> dict:
        heads, seqlen, head_dim = row.shape
        return {
            "name": str(row.layer),
            "block": row.layer.number,
            "seqlen": seqlen,
            "heads": heads,
            "head_dim": head_dim,
            "ran": [row.ran.get(index) for index in self.steps],
            "errors": [_plain(row.errors.get(index)) for index in self.steps],
            "tried": row.tried,
            "reason": row.reason,
            "clusters": row.clusters,
            "block_energy": [_plain(row.energy.get(index)) for index in self.steps],
            "ms": {stage: _plain(row.milliseconds[stage], 3) for stage in STAGES},
        }


def _plain(number: float | None, digits: int = 5) -> float | None:
    """A number as JSON takes it."""
    return round(number, digits) if number is not None and math.isfinite(number) else None
