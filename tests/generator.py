"""Synthetic q, k, v with the structure of a video DiT head: what random normal inputs lack, and V-Smooth lives on.

Tokens of a T x H x W grid (t-major) belong to spatially smooth classes. Values share a class centroid, a few tokens are
outliers in channels of their own; queries and keys attend to their class and, through a rotary embedding, to their
neighbourhood. The constants are calibrated to the figures that the paper publishes for Wan2.2 (`tests/reference/
test_generator.py` measures them), not to any model's data.
"""

from __future__ import annotations

import math

import torch

CLASSES = 48
AXES = (44, 42, 42)  # rotary channels of t, y, x
ROPE_BASE = 1e4
Q_GAIN = 0.95


class Head:
    """Random parts of one head on one grid, all drawn from one generator in a fixed order."""

    def __init__(self, grid: tuple[int, int, int], seed: int):
        self.grid, self.tokens, self.dim = grid, math.prod(grid), sum(AXES)
        self.random = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.random)

    def log_normal(self, sigma: float, *shape: int) -> torch.Tensor:
        return (sigma * self.normal(*shape)).exp()

    def fields(self, count: int, spatial: float, temporal: float) -> torch.Tensor:
        """Smooth unit-variance noise, `[tokens, count]`: white noise low-passed by a Gaussian, widths in tokens."""
        x = self.normal(count, *self.grid)
        for axis, (size, width) in enumerate(zip(self.grid, (temporal, spatial, spatial), strict=True)):
            distance = torch.arange(size)[:, None] - torch.arange(size)
            kernel = (-0.5 * (distance / width) ** 2).exp()
            x = (x.movedim(axis + 1, -1) @ kernel).movedim(-1, axis + 1)
        x = x.flatten(1)
        return (x / x.std(-1, keepdim=True)).T

    def smooth(self) -> torch.Tensor:
        """Slowly varying unit-rms vectors, `[tokens, D]`."""
        return self.fields(16, 2.5, 3.0) @ self.normal(16, self.dim) / 4.0

    def classes(self) -> torch.Tensor:
        score = self.fields(CLASSES, 2.0, 1.8) + self.normal(self.tokens, CLASSES) + 0.5 * self.normal(CLASSES)
        return score.argmax(-1)

    def channel_scale(self, sigma: float) -> torch.Tensor:
        return unit(self.log_normal(sigma, self.dim))

    def values(self, classes: torch.Tensor) -> torch.Tensor:
        centroids = self.normal(CLASSES, self.dim) * self.log_normal(0.4, CLASSES, 1)
        centroid = centroids[classes]
        centroid = unit(centroid - centroid.mean(0))
        v = (
            0.045**0.5 * unit(self.normal(self.dim))
            + 0.42**0.5 * centroid
            + 0.13**0.5 * self.smooth()
            + 0.405**0.5 * self.normal(self.tokens, self.dim)
        ) * self.channel_scale(0.35)
        return v + self.outlier_tokens()

    def outlier_tokens(self) -> torch.Tensor:
        """0.8% of the tokens carry one of three patterns of six channels, several times the rms of the others."""
        patterns = torch.zeros(3, self.dim)
        for pattern in patterns:
            channels = torch.randperm(self.dim, generator=self.random)[:6]
            pattern[channels] = self.normal(6).sign() * self.log_normal(0.3, 6)
        patterns = patterns / patterns.square().mean(-1, keepdim=True).sqrt()
        count = round(0.008 * self.tokens)
        tokens = torch.randperm(self.tokens, generator=self.random)[:count]
        kind = torch.randint(3, (count,), generator=self.random)
        out = torch.zeros(self.tokens, self.dim)
        out[tokens] = 4.0 * self.log_normal(0.35, count, 1) * patterns[kind]
        return out

    def queries_and_keys(self, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        embed, smooth, local, slow = self.normal(CLASSES, self.dim), self.smooth(), self.local_bias(), slow_channels()
        channels = slow[torch.randperm(len(slow), generator=self.random)[:5]]
        signs, scale, angles, result = self.normal(5).sign(), self.channel_scale(0.5), self.angles(), []
        for outlier in (3.5, 4.5):
            x = 1.6 * embed[classes] + 0.8 * smooth + 1.2 * self.normal(self.tokens, self.dim)
            x = unit(x) * scale + local
            x[:, channels] += signs * outlier * self.log_normal(0.3, 5)
            result.append(rotary(x, angles))
        return Q_GAIN * result[0], result[1]

    def local_bias(self) -> torch.Tensor:
        """A constant in the fast rotary pairs: rotated, it makes a query look at nearby keys. rms 0.8 where it is."""
        bias, start = torch.zeros(self.dim), 0
        for size in AXES:
            bias[start + 4 : start + 2 * (size // 3)] = 1.0
            start += size
        where = bias > 0
        bias[where] = 0.8 * unit(self.normal(int(where.sum())))
        return bias

    def angles(self) -> torch.Tensor:
        """Rotary angle of every token and channel pair, `[tokens, D/2]`."""
        positions = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float32) for n in self.grid))
        rates = [ROPE_BASE ** (-torch.arange(0, size, 2) / size) for size in AXES]
        return torch.cat([positions[:, i, None] * rate for i, rate in enumerate(rates)], -1)


def unit(x: torch.Tensor) -> torch.Tensor:
    """x scaled to rms 1."""
    return x / x.square().mean().sqrt()


def slow_channels() -> torch.Tensor:
    """Channels of the slowest third of the rotary pairs of every axis."""
    starts = (0, AXES[0], AXES[0] + AXES[1])
    return torch.cat([torch.arange(s + 2 * (n // 3), s + n) for s, n in zip(starts, AXES, strict=True)])


def rotary(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Rotates neighbouring channel pairs."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2)


def qkv(grid: tuple[int, int, int] = (16, 32, 32), seeds=(10,)) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """bf16 q, k, v `[1, len(seeds), T*H*W, 128]`, one head a seed."""
    heads = []
    for seed in seeds:
        head = Head(grid, seed)
        classes = head.classes()
        v = head.values(classes)
        heads.append((*head.queries_and_keys(classes), v))
    return tuple(torch.stack(x)[None].bfloat16() for x in zip(*heads, strict=True))
