"""What a sampling run did: counted while it runs, shown on the node and logged once when it ends."""

from __future__ import annotations

import logging
import re
import threading
from collections import Counter

from ..vc_attention.guard import BUDGETS, Measurement
from ..vc_attention.schedule import Step
from ..vc_attention.stopwatch import Stopwatch
from . import events, history
from .kernels import Choice
from .layers import Layer, Layers
from .models import NO_ROW
from .routing import Call

logger = logging.getLogger(__name__)

FORMAT = 1  # of as_dict()
OVER_BUDGET = "over the error budget"
NO_CALLS = (
    "no call arrived: another node after this one took over the model's attention, or this version of ComfyUI does not "
    "let nodes have this model's"
)
NO_FORWARDS = "the model was not evaluated"
# The folders of an absolute path: of one in quotes up to its last name, else up to the first space.
FOLDERS = re.compile(r'(")(?:[A-Za-z]:)?[\\/][^"]*[\\/]|(?<![\w"./\\:])(?:[A-Za-z]:)?[\\/](?:[^\s"\\/]+[\\/])+')
WORDS = {"group": "formed", "assign": "renewed", "reuse": "kept", "plain": "without averages"}  # grouping actions


class Report:
    """Counters of one sampling run. Safe to count from several threads."""

    def __init__(self, profile: str, error_budget: str = "off") -> None:
        self.profile = profile
        self.error_budget = error_budget
        self.sampler: str | None = None  # id of the node that samples
        self.layers = Layers()
        self.model = ""
        self.tokens = ""
        self.forwards = 0
        self.kernels: Counter[str] = Counter()  # kernel -> accelerated calls
        self.widths: Counter[str] = Counter()  # bit width that was chosen, and why -> accelerated calls
        self.actions: Counter[str] = Counter()  # grouping action -> accelerated calls
        self.left_alone: Counter[str] = Counter()  # reason -> calls that stock attention took
        self.declined = 0  # of those, calls of self-attention
        self.state_bytes = 0  # most bytes of grouping state held at once
        self.rows_evicted = 0
        self.rows_unkept = 0
        self.stopped_early = False
        self._lock = threading.Lock()

    def forward(self, model: str, tokens: str, step: Step, sigma: float) -> None:
        """Count one call of the diffusion model."""
        with self._lock:
            self.model, self.tokens = model, tokens
            self.forwards += 1
            self.layers.step(step, sigma)

    def accelerated(self, layer: Layer, call: Call, step: Step, choice: Choice, action: str) -> None:
        """Count one attention call that ran here."""
        with self._lock:
            self.kernels[choice.name] += 1
            if choice.width:
                self.widths[choice.width] += 1
            self.actions[action] += 1
            self.layers.ran(layer, call.shape, step, choice.profile)

    def leave_alone(self, reason: str, layer: Layer | None = None, call: Call | None = None, step=None) -> None:
        """Count one attention call that was passed on; with its layer, call and step when it is self-attention."""
        with self._lock:
            self.left_alone[reason] += 1
            if layer is not None:
                self.declined += 1
                self.layers.ran(layer, call.shape, step, "stock", reason)

    def timed(self, layer: Layer, call: Call, watch: Stopwatch, used: bool) -> None:
        """Keep the laps of one attention call; `used` is False when the guard gave its output up."""
        with self._lock:
            self.layers.timed(layer, call.shape, call.q[0] if used else 0, watch)

    def stock(self, call: Call, watch: Stopwatch, factor: float) -> None:
        """Keep what stock attention takes for calls of this shape: what `stock.timed` returned."""
        with self._lock:
            self.layers.stock[call.shape] = watch, factor

    def measured(self, told: Measurement) -> None:
        """Keep a number of the guard, whose layers are `Forward.watched`."""
        layer, shape, _ = told.layer
        with self._lock:
            self.layers.tell(layer, shape, told)

    def as_dict(self) -> dict:
        """Plain data, for the web interface and for files: docs/report.md."""
        return {
            "format": FORMAT,
            "profile": self.profile,
            "model": self.model,
            "tokens": self.tokens,
            "forwards": self.forwards,
            "calls_accelerated": self.kernels.total(),
            "calls_left_alone": self.left_alone.total(),
            "kernels": dict(self.kernels),
            "widths": dict(self.widths),
            "actions": dict(self.actions),
            "left_alone": dict(self.left_alone),
            "state_bytes": self.state_bytes,
            "rows_evicted": self.rows_evicted,
            "rows_unkept": self.rows_unkept,
            "stopped_early": self.stopped_early,
            "guard": {
                "level": self.error_budget,
                "budget": BUDGETS[self.error_budget],
                "measured": self.layers.measured,
                "worst": self.layers.worst,
                "moved": len(self.layers.moved()),
            },
            "steps": [
                {"index": index, "sigma": sigma, "in_window": in_window}
                for index, (sigma, in_window) in self.layers.steps.items()
            ],
            "layers": self.layers.rows(),
            "time": self.layers.time(),
        }

    def progress(self) -> dict:
        """Plain data about a run that is not over: docs/report.md."""
        with self._lock:
            taken, declined = self.kernels.total(), self.declined
            return {
                "share": taken / (taken + declined) if taken + declined else None,
                "kernel": self.kernels.most_common(1)[0][0] if self.kernels else None,
                "worst": self.layers.worst,
            }

    def text(self) -> str:
        """A few lines for a person."""
        lines = [f"{self.kernels.total()} attention calls taken over, {self.left_alone.total()} left alone"]
        if self.stopped_early:
            lines[0] += " (stopped early)"
        if not self.kernels and not self.left_alone:
            lines.append(NO_CALLS if self.forwards else NO_FORWARDS)
        if self.model.endswith(NO_ROW):
            lines.append(f"{self.model}: calls that look like self-attention were taken over")
        lines += [f"with {kernel}: {count}" for kernel, count in self.kernels.most_common()]
        lines += [f"{width} ({count} calls)" for width, count in self.widths.most_common()]
        if self.actions:
            counts = (f"{word} {self.actions[action]}" for action, word in WORDS.items() if self.actions[action])
            lines.append(f"groups: {', '.join(counts)}")
            lines.append(f"memory for groups: {_memory(self.state_bytes)}")
        lines += self._measured_lines()
        if self.rows_unkept:
            lines.append(f"{self.rows_unkept} times a grouping did not fit in memory: the next call groups anew")
        lines += [f"left alone: {reason}: {count}" for reason, count in self.left_alone.most_common()]
        return "\n".join(lines)

    def _measured_lines(self) -> list[str]:
        worst, time, lines = self.layers.worst, self.layers.time(), []
        if worst is not None:
            allowed = BUDGETS[self.error_budget]
            lines.append(f"largest error: {worst['error']:.1%} in {worst['layer']}; {allowed:.0%} is allowed")
        lines += [f"over the error budget: {layer}, which now runs {ran}" for layer, ran in self.layers.moved()]
        spent = time["grouping"] + time["preparation"]
        if spent:
            share = spent / (spent + time["attention"])
            lines.append(f"grouping and preparation: {spent / 1e3:.1f} s, {share:.0%} of the attention's time")
        if time["saved"] is not None:
            word = "saved" if time["saved"] >= 0 else "lost"
            lines.append(f"{word} about {abs(time['saved']) / 1e3:.1f} s against stock attention")
        return lines


def without_folders(data):
    """A report without the folders of this machine, which remedies name: files that carry it are given to others."""
    if isinstance(data, str):
        return FOLDERS.sub(r"\1", data)
    if isinstance(data, list):
        return [without_folders(entry) for entry in data]
    if isinstance(data, dict):
        return {without_folders(key): without_folders(value) for key, value in data.items()}
    return data


def _memory(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 2**20 else f"{nbytes / 2**10:.1f} KiB"


def show(report: Report, node_id: str | None) -> None:
    """Log the report, send it to web/js/status.js, which puts it on the node, and keep it for the Report node."""
    data, text = report.as_dict(), report.text()
    logger.info("VC-Attention (node %s, %s): %s", node_id, report.profile, text.replace("\n", "; "))
    events.send(events.REPORT, node_id, {"text": text, **data})
    if report.sampler is not None and node_id is not None:
        history.keep(report.sampler, node_id, data, text)
