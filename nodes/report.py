"""What a sampling run did: counted while it runs, shown on the node and logged once when it ends."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter

logger = logging.getLogger(__name__)

EVENT = "vc_attention.report"
NO_CALLS = "no call arrived: another node after this one took over the model's attention"
NO_FORWARDS = "the model was not evaluated"
WORDS = {"group": "formed", "assign": "renewed", "reuse": "kept", "plain": "without averages"}  # grouping actions


class Report:
    """Counters of one sampling run. Safe to count from several threads."""

    def __init__(self, profile: str) -> None:
        self.profile = profile
        self.model = ""
        self.tokens = ""
        self.forwards = 0
        self.kernels: Counter[str] = Counter()  # kernel -> accelerated calls
        self.widths: Counter[str] = Counter()  # bit width that was chosen, and why -> accelerated calls
        self.actions: Counter[str] = Counter()  # grouping action -> accelerated calls
        self.left_alone: Counter[str] = Counter()  # reason -> calls that stock attention took
        self.state_bytes = 0  # most bytes of grouping state held at once
        self.rows_evicted = 0
        self.rows_unkept = 0
        self.stopped_early = False
        self._lock = threading.Lock()

    def forward(self, model: str, tokens: str) -> None:
        """Count one call of the diffusion model."""
        with self._lock:
            self.model, self.tokens = model, tokens
            self.forwards += 1

    def accelerated(self, kernel: str, action: str, width: str = "") -> None:
        """Count one attention call that ran here. `width`: of kernels.Choice."""
        with self._lock:
            self.kernels[kernel] += 1
            if width:
                self.widths[width] += 1
            self.actions[action] += 1

    def leave_alone(self, reason: str) -> None:
        """Count one attention call that was passed on."""
        with self._lock:
            self.left_alone[reason] += 1

    def as_dict(self) -> dict:
        """Plain data, for the web interface and for files."""
        return {
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
        }

    def text(self) -> str:
        """A few lines for a person."""
        lines = [f"{self.kernels.total()} attention calls accelerated, {self.left_alone.total()} left alone"]
        if self.stopped_early:
            lines[0] += " (stopped early)"
        if not self.kernels and not self.left_alone:
            lines.append(NO_CALLS if self.forwards else NO_FORWARDS)
        lines += [f"with {kernel}: {count}" for kernel, count in self.kernels.most_common()]
        lines += [f"{width}: {count}" for width, count in self.widths.most_common()]
        if self.actions:
            counts = (f"{word} {self.actions[action]}" for action, word in WORDS.items() if self.actions[action])
            lines.append(f"groups: {', '.join(counts)}")
            lines.append(f"memory for groups: {self.state_bytes / 2**20:.1f} MiB")
        if self.rows_unkept:
            lines.append(f"{self.rows_unkept} times a grouping did not fit in memory: the next call groups anew")
        lines += [f"left alone: {reason}: {count}" for reason, count in self.left_alone.most_common()]
        return "\n".join(lines)


def show(report: Report, node_id: str | None) -> None:
    """Log the report and, under a ComfyUI server, send it to web/js/report.js, which puts it on the node."""
    logger.info("VC-Attention (node %s, %s): %s", node_id, report.profile, report.text().replace("\n", "; "))
    server = _server()
    if server is None or node_id is None:
        return
    server.send_sync(EVENT, {"node": node_id, "text": report.text(), **report.as_dict()}, server.client_id)


def _server():
    server = sys.modules.get("server")  # ComfyUI's own; never imported where its samplers are used as a library
    return getattr(getattr(server, "PromptServer", None), "instance", None)
