"""The quality guard: what a measured call costs, and how far its estimate is from the true error."""

from __future__ import annotations

import math
import statistics as summary

import torch

from tests.bench.measure import Subject, measure
from tests.bench.shapes import Shape, tensors
from vc_attention import attention, guard, statistics
from vc_attention.config import PROFILES, Action

UNITS = ()  # what the guard adds is torch's; the call stands beside it for scale
PROFILE_NAMES = ("balanced", "quality")
STEPS = (40, 20, 4)  # calls of a layer in a run
ESTIMATES = 200
HEADS = 4  # whose true error is computed, every row of it
ROWS = 2048  # of them at a time
NOTES = [
    "`measured call` is what the node runs in a guarded step once a layer is proven: the call, the sampled rows "
    "computed exactly, statistics of the groups, the numbers sent to the host.",
    f"The true error is that of every query row of {HEADS} heads (all of the generator's) against guard.exact_rows; "
    f"estimates are {ESTIMATES} draws of rows. `planted`: four channels of K x 50.",
]


def planted(k: torch.Tensor) -> torch.Tensor:
    """K with a few channels x 50."""
    where = torch.randperm(k.shape[-1], generator=torch.Generator().manual_seed(1))[:4].to(k.device)
    return k.index_copy(-1, where, k[..., where] * 50)


def call(q, k, v, profile: str, grouping=None):
    action = Action.GROUP if grouping is None else Action.REUSE
    return attention.attend(q, k, v, numerics=PROFILES[profile], action=action, grouping=grouping, backend="cuda")


def subjects(q, k, v) -> list[Subject]:
    """A plain call, a measured one, and the parts of what measuring adds."""
    out, grouping = call(q, k, v, "balanced")
    watching = guard.Guard(math.inf, lambda told: None)
    turn = iter(range(0, 1 << 30, guard.INTERVAL))

    def attempt(rung: int, qkv: list[torch.Tensor]):
        return call(*qkv, "balanced", grouping)

    def measured():
        return watching.call("layer", next(turn), [q, k, v], attempt, ("balanced",))

    measured()  # proves the layer, and waits
    rows, _ = guard.sample_rows(out, 1)
    few = q.gather(2, rows[..., None].expand(-1, -1, -1, q.shape[-1]))
    return [
        Subject("call", lambda: call(q, k, v, "balanced", grouping)),
        Subject("measured call", measured),
        Subject("squared error of sampled rows", lambda: guard.squared_error(q, k, v, out, 1)),
        Subject("of it: exact rows", lambda: guard.exact_rows(few, k, v)),
        Subject("of it: choosing rows", lambda: guard.sample_rows(out, 1)),
        Subject("block energy", lambda: statistics.block_energy(v, grouping.perm)),
        Subject("cluster shares, in a first call", lambda: statistics.cluster_shares(v, grouping)),
    ]


def shares(rows: list[dict], shape: Shape) -> str:
    """What the guard adds to one call and to all calls of a run."""
    ms = {row["name"]: row["ms"]["median"] for row in rows}
    added = ms["measured call"] - ms["call"]
    runs = (f"{added * -(-n // guard.INTERVAL) / (n * ms['call']):.2%} of {n} steps" for n in STEPS)
    return f"{shape}: measuring adds {added:.2f} ms, {added / ms['call']:.2%} of one call, {', '.join(runs)}"


def true_error(q, k, v, out) -> float:
    """Relative L2 error of out over all rows."""
    squares = norm = 0.0
    for part, made in zip(q.split(ROWS, 2), out.split(ROWS, 2), strict=True):
        exact = guard.exact_rows(part, k, v)
        squares += float((made.float() - exact).square().sum(dtype=torch.float64))
        norm += float(exact.square().sum(dtype=torch.float64))
    return math.sqrt(squares / norm)


def estimates(q, k, v, out) -> list[float]:
    """What the guard finds for the same, for many draws."""
    found = (guard.squared_error(q, k, v, out, 7919 * draw) for draw in range(ESTIMATES))
    return [math.sqrt(float(squares / norm)) for squares, norm in found]


def errors(shape: Shape, q, k, v) -> list[str]:
    notes = []
    for profile in PROFILE_NAMES:
        for name, keys in (("", k), (", planted", planted(k))):
            out, _ = call(q, keys, v, profile)
            true, found = true_error(q, keys, v, out), estimates(q, keys, v, out)
            off = [estimate / true - 1 for estimate in found]
            spread = math.sqrt(summary.fmean(x * x for x in off))
            beyond = sum(abs(x) > 0.15 for x in off)
            notes.append(
                f"{shape}, {profile}{name}: true error {true:.3%}; estimates are off by {spread:.1%} (rms) and "
                f"{max(map(abs, off)):.1%} at most, {beyond} of {ESTIMATES} by more than 15%"
            )
    return notes


def run(shape: Shape, seconds: float) -> tuple[list[dict], list[str]]:
    q, k, v = tensors(shape)
    table = subjects(q, k, v)
    measure(table, seconds)
    rows = [subject.row(str(shape)) for subject in table]
    table.clear()
    few = (x[:, :HEADS] for x in (q, k, v))
    return rows, [shares(rows, shape), *errors(shape, *few)]
