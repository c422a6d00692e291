"""Timing with device events, and what the card's clock and power were meanwhile."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

ROUNDS = 2
SHORTEST = 1.0  # ms; shorter calls are timed several at a time
LONG = 50.0  # ms; a call that takes longer needs no call before it to warm up


class Telemetry:
    """Samples SM clock (MHz) and power (W) every 20 ms through NVML; without NVML the samples stay empty."""

    def __init__(self):
        self.samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
        except Exception as reason:  # any of NVML's errors means the same here: no telemetry
            print(f"no clocks or power in this run: {reason}")
            return

        def sample():
            while not self._stop.wait(0.02):
                mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
                self.samples.append((mhz, pynvml.nvmlDeviceGetPowerUsage(handle) / 1000))

        threading.Thread(target=sample, daemon=True).start()

    def close(self) -> None:
        self._stop.set()


@dataclass
class Subject:
    """One thing to time: `call` queues it once; every subject of a table works on the same tensors."""

    name: str
    call: Callable[[], object]
    flops: float = 0.0
    bytes: float = 0.0
    judge: Callable[[torch.Tensor], dict] | None = None  # finds the errors of what one call gives
    accuracy: dict = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    telemetry: list[tuple[float, float]] = field(default_factory=list)

    def row(self, shape: str) -> dict:
        """The result of this subject as results.py stores it."""
        median = statistics.median(self.times)
        row = {"name": self.name, "shape": shape, "calls": len(self.times)}
        row["ms"] = {"median": median, "min": min(self.times), "max": max(self.times)}
        if self.flops:
            row["tflops"] = self.flops / median / 1e9
        if self.bytes:
            row["gb_per_s"] = self.bytes / median / 1e6
        for name, values in zip(("sm_mhz", "watts"), zip(*self.telemetry, strict=True), strict=False):
            row[name] = round(statistics.mean(values))
        return row | self.accuracy


def _timed(call: Callable[[], object], repeats: int) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeats


def measure(subjects: list[Subject], seconds: float) -> None:
    """Fills times, telemetry and, where there is a judge, accuracy.

    Subjects take turns, in reverse in the second round, so that a card that warms up or is throttled treats all alike;
    each gets about `seconds` in all and at least two samples a round.
    """
    telemetry = Telemetry()
    repeats, once = {}, {}
    for subject in subjects:
        out = subject.call()
        if subject.judge is not None:
            subject.accuracy = subject.judge(out)
        del out
        once[subject.name] = _timed(subject.call, 1)
        repeats[subject.name] = max(1, min(20, round(SHORTEST / max(once[subject.name], 1e-3))))
    for turn in range(ROUNDS):
        for subject in subjects if turn % 2 == 0 else subjects[::-1]:
            if once[subject.name] < LONG:
                subject.call()
            torch.cuda.synchronize()
            first, end = len(telemetry.samples), time.monotonic() + seconds / ROUNDS
            taken = 0
            while taken < 2 or time.monotonic() < end:
                subject.times.append(_timed(subject.call, repeats[subject.name]))
                taken += 1
            subject.telemetry += telemetry.samples[first:]
    telemetry.close()
