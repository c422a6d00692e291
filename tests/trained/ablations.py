"""What each choice is worth on the trained model: `python -m tests.trained.ablations --out FOLDER` leaves
ablations.json and ablations.md there.

Every row changes one thing of the profile that heads its table, and is compared with it clip by clip.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vc_attention.config import PROFILES, Action, Numerics
from vc_attention.schedule import AfterWindow, Schedule, Step

from . import clips, suite, tables


@dataclass(frozen=True)
class Uniform(Schedule):
    """The paper's Table 3 counts the same number of grouping steps, spread over the schedule: every `refresh`-th step
    groups and subtracts means, the others do neither."""

    def decide(self, step: Step, last: int | None) -> Action:
        return Action.GROUP if last is None or step.index % self.refresh == 0 else Action.PLAIN


BALANCED, FOUR_BITS, PAPER = (PROFILES[name] for name in ("balanced", "4bit", "paper-8bit"))
ASSIGN, REUSE, PLAIN = (Schedule(after_window=after) for after in AfterWindow)
WINDOWS = {
    "means and grouping never": (dict(cluster_order="none", mean="none"), ASSIGN),
    "means in sequence order, no grouping": (dict(cluster_order="none"), ASSIGN),
    "window 0, grouped once, then assigned": ({}, replace(ASSIGN, window=0.0)),
    "window all steps": ({}, replace(ASSIGN, window=1.0)),
    "after the window: order kept": ({}, REUSE),
    "after the window: order kept, no means": ({}, PLAIN),
    "refresh every step": ({}, replace(ASSIGN, refresh=1)),
    "refresh every 2 steps": ({}, replace(ASSIGN, refresh=2)),
    "refresh every 8 steps": ({}, replace(ASSIGN, refresh=8)),
}
CHOICES = {
    "8 clusters": (dict(clusters=8), ASSIGN),
    "16 clusters": (dict(clusters=16), ASSIGN),
    "48 clusters": (dict(clusters=48), ASSIGN),
    "96 clusters": (dict(clusters=96), ASSIGN),
    "1 iteration": (dict(iterations=1), ASSIGN),
    "2 iterations": (dict(iterations=2), ASSIGN),
    "8 iterations": (dict(iterations=8), ASSIGN),
    "iterations see every token": (dict(sample_stride=1), ASSIGN),
    "clusters in order of label": (dict(cluster_order="label"), ASSIGN),
    "plain means": (dict(mean="plain"), ASSIGN),
    "no Hadamard": (dict(hadamard=False), ASSIGN),
}
EIGHT_BITS = {
    "running maximum": (dict(p_scale="running"), ASSIGN),
    "exact exponential": (dict(probability="exact"), ASSIGN),
    "running maximum, exact exponential": (dict(p_scale="running", probability="exact"), ASSIGN),
    "blocks share scales of q and k": (dict(q_granularity="block", k_granularity="block"), ASSIGN),
    "INT8 values (quality)": (dict(pv="int8", probability="u8"), ASSIGN),
}
TABLE_3 = {
    "all steps": ({}, replace(PLAIN, window=1.0)),
    "uniform quarter": ({}, Uniform(after_window=AfterWindow.PLAIN)),
    "no steps": (dict(cluster_order="none", mean="none"), PLAIN),
}
# heading: (base numerics, base schedule, {row: (changes, schedule)})
TABLES: dict[str, tuple[Numerics, Schedule, dict]] = {
    "balanced": (BALANCED, ASSIGN, {**WINDOWS, **CHOICES, **EIGHT_BITS}),
    "4bit": (FOUR_BITS, ASSIGN, {**WINDOWS, "plain means": CHOICES["plain means"]}),
    "Table 3 of the paper: paper-8bit, first quarter": (PAPER, PLAIN, TABLE_3),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--latent-frames", type=int, default=9)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        clips.widen_chunks(1 << 28)
    model = clips.Model(device)
    result = {"machine": suite.machine(device), "clips": options.clips, "latent_frames": options.latent_frames}
    result["tables"] = {}
    for heading, (numerics, schedule, changes) in TABLES.items():
        rows = {heading: (numerics, schedule)}
        rows |= {name: (replace(numerics, **fields), when) for name, (fields, when) in changes.items()}
        make = {name: (lambda row=row: clips.Patch(*row)) for name, row in rows.items()}
        result["tables"][heading] = suite.compare(model, make, options.clips, options.latent_frames)
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "ablations.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        (options.out / "ablations.md").write_text(tables.ablations(result), encoding="utf-8")
    print(tables.ablations(result))


if __name__ == "__main__":
    main()
