"""What both trainings share: a clock that decides the learning rate, a log, and pictures of clips."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from PIL import Image


class Clock:
    """Progress 0..1 of a training, by steps where their number is given, else by the seconds it may take.

    A run by the clock logs how many steps it made; the same number of steps from the same seed repeats it.
    Raises ValueError where it would never end.
    """

    def __init__(self, out: Path, seconds: float, steps: int | None):
        if seconds <= 0 or (steps is not None and steps <= 0):
            raise ValueError(f"seconds and steps must be positive, got {seconds} and {steps}: give one of them")
        out.mkdir(parents=True, exist_ok=True)
        self.out, self.seconds, self.steps = out, seconds, steps
        self.started = self.logged = self.saved = time.monotonic()
        self.step, self.since = 0, 0
        self.log_file = out / "log.txt"

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.started

    @property
    def progress(self) -> float:
        return self.step / self.steps if self.steps else self.elapsed / self.seconds

    def rate(self, peak: float) -> float:
        """Learning rate: a short rise, a plateau, a straight fall over the last 40%."""
        return peak * min(1.0, (self.step + 1) / 100, max(0.0, (1 - self.progress) / 0.4))

    def tick(self) -> bool:
        """Count a step; whether more are due."""
        self.step, self.since = self.step + 1, self.since + 1
        return self.progress < 1

    def log(self, text: str) -> None:
        line = f"{self.elapsed:6.1f} s  step {self.step:5d}  {text}"
        print(line, flush=True)
        with self.log_file.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def report(self, every: float, **values: torch.Tensor) -> None:
        """Log values and the speed, at most once in `every` seconds."""
        now = time.monotonic()
        if now - self.logged < every:
            return
        words = "  ".join(f"{name} {float(value):.4f}" for name, value in values.items())
        self.log(f"{words}  {self.since / (now - self.logged):.1f} steps/s")
        self.logged, self.since = time.monotonic(), 0

    def save_due(self, every: float) -> bool:
        """True once in `every` seconds."""
        if time.monotonic() - self.saved < every:
            return False
        self.saved = time.monotonic()
        return True


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """One learning rate for every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def picture(videos: torch.Tensor, path: Path, columns: int = 6, scale: float = 0.5) -> None:
    """Frames of videos `[B, 3, T, H, W]`, 0..1, a clip a row."""
    frames = torch.linspace(0, videos.shape[2] - 1, min(columns, videos.shape[2])).long()
    sheet = videos.float().clamp(0, 1)[:, :, frames.to(videos.device)]
    sheet = sheet.permute(0, 3, 2, 4, 1).flatten(2, 3).flatten(0, 1)
    image = Image.fromarray((255 * sheet).round().byte().cpu().numpy())
    image.resize((int(image.width * scale), int(image.height * scale)), Image.Resampling.BOX).save(path)


def psnr(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Peak signal-to-noise ratio in dB of videos 0..1, over everything."""
    return -10 * (a.float().clamp(0, 1) - b.float().clamp(0, 1)).square().mean().log10()
