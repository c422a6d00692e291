"""The quality guard: a few query rows of a call computed exactly beside a kernel, and what a layer does about it.

A ladder's rungs are ways to compute a call, the one asked for first and more exact ones above it; beyond the last one
stock attention takes the layer. A layer climbs when its error exceeds the budget, never descends, and starts anew with
the next run.

A rung is proven by its first measured call. That call waits for its number, once a layer and run, so that a bad output
never leaves it: it is computed again one rung up. From then on a measured call only sends its number to the host, and
the layer reads it when it is called in a later step, where it has long arrived. What is measured, and when a number
counts, thus depends on steps alone and not on how fast anything ran: runs of one seed take the same decisions.
"""

from __future__ import annotations

import math
import threading
import zlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from . import statistics
from .config import Grouping

# Largest relative L2 error of a layer's output, by level; docs/guard.md says how they were chosen.
BUDGETS: dict[str, float | None] = {"off": None, "fast": 0.20, "balanced": 0.06, "quality": 0.02}

# Profile -> profiles above it in its ladder: its own numerics with the better smoothing, 8 bits, INT8 values.
ABOVE: dict[str, tuple[str, ...]] = {
    "paper-4bit": ("4bit", "int8-nvfp4", "balanced", "quality"),
    "4bit": ("int8-nvfp4", "balanced", "quality"),
    "int8-nvfp4": ("balanced", "quality"),
    "paper-8bit": ("balanced", "quality"),
    "balanced": ("quality",),
    "quality": (),
}

INTERVAL = 7  # steps; no multiple of the usual refresh interval, so that old groupings are measured, too

# The estimate stays within 15% of the true error with these (docs/guard.md).
ROWS = 512  # query rows of a call to compute exactly, all heads together,
ROWS_OF_A_HEAD = 16  # and of one head, at least
CANDIDATES = 1024  # rows of a head among which those are chosen
EVENNESS = 0.25  # part of the mean weight that every candidate has at least
SCORES = 1 << 24  # computed at a time
ONE = 2.0**15  # what stands for the probability 1, so that small ones stay inside fp16's range


def sample_rows(out: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows to compute exactly, what each stands for): int64 and fp32 `[B, H, R]`, of out `[B, H, N, D]`.

    A few rows hold much of the error of a head, mostly those of large output. So rows are drawn with a chance in
    proportion to the squared norm of the output at hand, and weigh its inverse, which keeps the estimate unbiased. The
    candidates are one row from each of as many equal strata, at a hash's place in it: a constant stride would meet the
    same column of every picture. Integers make the draw the same in every run.
    """
    batch, heads, length, _ = out.shape
    count, unit = max(ROWS_OF_A_HEAD, -(-ROWS // (batch * heads))), 1 << 16
    candidates = min(CANDIDATES, length)
    stratum = torch.arange(candidates, device=out.device)
    place = (stratum * unit + (stratum * 40503 + seed) % unit) * length // (candidates * unit)
    # A row that is not finite must not spoil the draw; `squared_error` sees it whether it is drawn or not.
    size = out[:, :, place].float().square().sum(-1).nan_to_num(1e30, 1e30).clamp(1e-30, 1e30)
    size += EVENNESS * size.mean(-1, keepdim=True)
    weight = (size * ((1 << 24) / size.sum(-1, keepdim=True))).long()
    sums = weight.cumsum(-1)
    ticks = torch.arange(count, device=out.device) * unit + seed % unit
    drawn = torch.searchsorted(sums, ticks * sums[..., -1:] // (count * unit), right=True)
    return place[drawn], sums[..., -1:] / weight.gather(-1, drawn)


def exact_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v, fp32 `[B, H, R, D]`, of a few query rows q `[B, H, R, D]`, k and v `[B, H, Nk, D]`.

    Exact but for fp32 sums: products of 16-bit inputs are exact, and probabilities enter the second product as the
    difference of two numbers of v's type, themselves rounded and the excess. A few heads at a time bound the memory.
    """
    out = torch.empty(q.shape, dtype=torch.float32, device=q.device)
    heads = max(1, SCORES // (q.shape[2] * k.shape[2]))
    for batch in range(q.shape[0]):
        for first in range(0, q.shape[1], heads):
            few = (batch, slice(first, first + heads))
            p = _product(q[few], k[few].mT).mul_(q.shape[-1] ** -0.5).softmax(-1)
            parts = torch.empty(p.shape[0], 2 * p.shape[1], p.shape[2], dtype=v.dtype, device=v.device)
            high, excess = parts.chunk(2, 1)
            torch.mul(p, ONE, out=high)
            torch.sub(high, p, alpha=ONE, out=excess)
            rounded, too_much = _product(parts, v[few]).chunk(2, 1)
            out[few] = (rounded - too_much) / ONE
    return out


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b, batched, accumulated and returned in fp32."""
    if a.is_cuda and a.dtype != torch.float32 and torch.__version__ >= "2.8":
        return torch.bmm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def squared_error(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Estimates of (|out - exact|^2, |exact|^2), fp32 scalars on the device of `out`, up to a common factor.

    q and out `[B, H, Nq, D]`, k and v `[B, H, Nk, D]`. `seed` decides which rows are computed exactly. The first is NaN
    where any value of `out` is not finite.
    """
    rows, weight = sample_rows(out, seed)
    rows = rows[..., None].expand(-1, -1, -1, out.shape[-1])
    exact = exact_rows(q.gather(2, rows), k, v)
    error = out.gather(2, rows).float() - exact
    finite = out.sum(dtype=torch.float32) * 0.0  # 0, or NaN; sums what the few rows say nothing about
    return (error.square().sum(-1) * weight).sum() + finite, (exact.square().sum(-1) * weight).sum()


@dataclass(frozen=True)
class Measurement:
    """What one measured call of a layer said.

    error: relative L2 error over the sampled rows of all heads; NaN where one output was not finite. used: whether the
    output went on to the model. block_energy and cluster_shares: see `statistics`; the latter, and the number of
    `clusters`, come with a rung's first measurement alone, else 0 and None.
    """

    layer: Hashable
    step: int
    profile: str
    error: float
    used: bool
    block_energy: float
    clusters: int
    cluster_shares: tuple[float, ...] | None


class _Numbers:
    """A few numbers of one device on their way to the host, which does not wait for them."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._host, self._arrived = numbers, None
        if numbers.is_cuda:
            self._host = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._host.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record(torch.cuda.current_stream(numbers.device))

    def read(self) -> list[float]:
        """The numbers; waits where they are not there yet."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._host.tolist()


@dataclass
class _Layer:
    """rung: what its calls run. proven: a measured call of this rung kept the budget, the last in step `measured`.
    waiting: (numbers of that call, profile, clusters) until they are read."""

    rung: int = 0
    proven: bool = False
    measured: int = 0
    waiting: tuple[_Numbers, str, int] | None = None


class Guard:
    """The rungs of all layers of one run.

    Args:
        budget: largest relative error a layer may have; None measures nothing and leaves every layer on its first rung.
        tell: called with every Measurement, once its numbers are read.

    A layer is any key whose `repr` is the same in every process; it must hold the device where several run the model.
    Steps are indices, see `schedule.step_index`.
    """

    def __init__(self, budget: float | None, tell: Callable[[Measurement], None]) -> None:
        self.budget = budget
        self._tell = tell
        self._layers: dict[Hashable, _Layer] = {}
        self._lock = threading.Lock()

    def rung(self, layer: Hashable, step: int) -> int:
        """The rung that calls of `layer` take in `step`, after reading what an earlier step measured."""
        state = self._state(layer)
        if state.waiting is not None and state.measured != step:
            self._settle(layer, state)
        return state.rung

    def due(self, layer: Hashable, step: int) -> bool:
        """Whether the next call of `layer` is measured."""
        state = self._state(layer)
        return self.budget is not None and (not state.proven or abs(step - state.measured) >= INTERVAL)

    def call(
        self,
        layer: Hashable,
        step: int,
        qkv: list[torch.Tensor],
        attempt: Callable[[int, list[torch.Tensor]], tuple[torch.Tensor, Grouping | None]],
        ladder: Sequence[str],
    ) -> torch.Tensor | None:
        """The output of one call, measured if that is due; None when no rung is exact enough.

        qkv      q, k, v `[B, H, N, D]`; a call that is not measured empties the list
        attempt  (rung, [q, k, v]) -> (out `[B, H, Nq, D]`, grouping); may empty its list
        ladder   profile of every rung, for the Measurement
        """
        rung = self.rung(layer, step)
        if not self.due(layer, step):
            return attempt(rung, qkv)[0]
        q, k, v = qkv
        seed, state = zlib.crc32(repr((layer, step)).encode()), self._state(layer)
        while state.rung < len(ladder):
            out, grouping = attempt(state.rung, [q, k, v])
            clusters = 0 if grouping is None or state.proven else grouping.rank.shape[-1]
            numbers = [*squared_error(q, k, v, out, seed)]
            numbers.append(statistics.block_energy(v, None if grouping is None else grouping.perm))
            numbers += statistics.cluster_shares(v, grouping) if clusters else ()
            state.waiting = (_Numbers(torch.stack(numbers)), ladder[state.rung], clusters)
            state.measured = step
            if state.proven or self._settle(layer, state):
                return out
        return None

    def close(self) -> None:
        """Tell what has not been read yet."""
        for layer, state in self._layers.items():
            if state.waiting is not None:
                self._settle(layer, state)

    def _state(self, layer: Hashable) -> _Layer:
        with self._lock:
            return self._layers.setdefault(layer, _Layer())

    def _settle(self, layer: Hashable, state: _Layer) -> bool:
        """Read the number that waits; whether it keeps the budget. If not, the layer climbs and has to prove itself."""
        (numbers, profile, clusters), state.waiting = state.waiting, None
        squares, norm, energy, *shares = numbers.read()
        error = math.sqrt(squares / norm) if norm > 0 else 0.0 if squares == 0 else math.inf
        used, state.proven = state.proven, error <= self.budget
        state.rung += not state.proven
        told = (profile, error, used or state.proven, energy, clusters, tuple(shares) or None)
        self._tell(Measurement(layer, state.measured, *told))
        return state.proven
