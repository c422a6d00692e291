"""What each choice is worth on the trained model: `python -m tests.trained.ablations --out FOLDER` leaves
ablations.json and ablations.md there.

Every row changes one thing of the profile that heads its table, and is compared with it clip by clip.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vc_attention.config import PROFILES, Action, Numerics
from vc_attention.schedule import AfterWindow, Schedule, Step

from . import clips, suite, tables


@dataclass(frozen=True)
class Uniform(Schedule):
    """Table 3's third row: as many grouping steps, but spread over the schedule. Every `refresh`-th step groups and
    subtracts means, the others do neither."""

    def decide(self, step: Step, last: int | None) -> Action:
        return Action.GROUP if last is None or step.index % self.refresh == 0 else Action.PLAIN


BALANCED, FOUR_BITS, PAPER = (PROFILES[name] for name in ("balanced", "4bit", "paper-8bit"))
ASSIGN, REUSE, PLAIN = (Schedule(after_window=after) for after in AfterWindow)
WINDOWS = {
    "no means, no grouping": (dict(cluster_order="none", mean="none"), ASSIGN),
    "means in sequence order, no grouping": (dict(cluster_order="none"), ASSIGN),
    "grouped once, then assigned": ({}, replace(ASSIGN, window=0.0)),
    "window: all steps": ({}, replace(ASSIGN, window=1.0)),
    "after the window: order kept": ({}, REUSE),
    "after the window: order kept, no means": ({}, PLAIN),
    "refresh every step": ({}, replace(ASSIGN, refresh=1)),
    "refresh every 10 steps": ({}, replace(ASSIGN, refresh=10)),
}
CHOICES = {
    "8 clusters": (dict(clusters=8), ASSIGN),
    "half as many clusters": (dict(tokens_per_cluster=192), ASSIGN),
    "twice as many clusters": (dict(tokens_per_cluster=48), ASSIGN),
    "1 iteration": (dict(iterations=1), ASSIGN),
    "8 iterations, all tokens": (dict(iterations=8, sample_stride=1), ASSIGN),
    "plain means": (dict(mean="plain"), ASSIGN),
    "running maximum": (dict(p_scale="running"), ASSIGN),
    "exact exponential": (dict(probability="exact"), ASSIGN),
    "no balance of q and k, keys not sorted": (dict(balance_qk=False, sort_keys=False), ASSIGN),
    "INT8 values (quality)": (dict(pv="int8", probability="u8"), ASSIGN),
}
TABLE_3 = {
    "all steps": ({}, replace(PLAIN, window=1.0)),
    "uniform quarter": ({}, Uniform(after_window=AfterWindow.PLAIN)),
    "no steps": (dict(cluster_order="none", mean="none"), PLAIN),
}
# heading: (base numerics, base schedule, {row: (changes, schedule)})
TABLES: dict[str, tuple[Numerics, Schedule, dict]] = {
    "paper-8bit": (PAPER, PLAIN, TABLE_3),
    "balanced": (BALANCED, ASSIGN, {**WINDOWS, **CHOICES}),
    "4bit": (FOUR_BITS, ASSIGN, WINDOWS),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--clips", type=suite.positive, default=16)
    parser.add_argument("--latent-frames", type=suite.positive, default=9)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        clips.widen_chunks(1 << 28)
    model = clips.Model(device)
    size = {"clips": options.clips, "latent_frames": options.latent_frames}
    result = {"machine": suite.machine(device), **size, "tables": {}}
    for heading in options.tables:
        numerics, schedule, changes = TABLES[heading]
        rows = {heading: (numerics, schedule)}
        rows |= {name: (replace(numerics, **fields), when) for name, (fields, when) in changes.items()}
        make = {name: (lambda row=row: clips.Patch(*row)) for name, row in rows.items()}
        found = result["tables"][heading] = {}
        for name, values in suite.compare(model, make, options.clips, options.latent_frames, all_metrics=False):
            found[name] = values
            suite.save(result, tables.ablations(result), options.out / "ablations")
    print(tables.ablations(result))


if __name__ == "__main__":
    main()
