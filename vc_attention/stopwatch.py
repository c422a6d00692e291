"""Times the stages of a call on the clock of its own device, without ever waiting for it."""

from __future__ import annotations

import time

import torch


class Stopwatch:
    """Laps between points of one device's current stream.

    On a GPU a lap is a pair of events, whose distance is known once the device got there; elsewhere the host's clock is
    read, which is right where operations finish before they return.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._names: list[str] = []
        self._points = [self._now()]

    def lap(self, name: str) -> None:
        """What was queued since the last point belongs to `name`; laps of one name add up."""
        self._names.append(name)
        self._points.append(self._now())

    def finished(self) -> bool:
        """Whether `milliseconds` would answer without waiting."""
        return self._device.type != "cuda" or self._points[-1].query()

    def milliseconds(self) -> dict[str, float]:
        """Time of every lap; waits for the last point."""
        if self._device.type == "cuda":
            self._points[-1].synchronize()
        total = dict.fromkeys(self._names, 0.0)
        for name, start, end in zip(self._names, self._points, self._points[1:], strict=False):
            total[name] += start.elapsed_time(end) if self._device.type == "cuda" else 1e3 * (end - start)
        return total

    def _now(self):
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event
