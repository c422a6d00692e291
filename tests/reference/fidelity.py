"""Error of every profile on the calibrated generator; `python -m tests.reference.fidelity [--out FILE]` prints it.

Relative L2 error of the output against fp64 attention on the same bf16 inputs, in percent, per head; 1,024 random query
rows a head over all keys. Levels move with the seed, so ratios are what counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from tests.generator import qkv
from vc_attention import reference
from vc_attention.config import PROFILES, Action, Numerics
from vc_attention.kernel_table import KERNELS

SEEDS = (10, 11, 12)
GRID = (16, 32, 32)
QUERIES = 1024
HOPPER = ", Hopper kernel"  # takes 256 keys at a time: more probabilities share a maximum, of ExpCast keys a scale
PAPER = {
    "balanced": "paper-8bit",
    "quality": "paper-8bit",
    "balanced" + HOPPER: "paper-8bit",
    "quality" + HOPPER: "paper-8bit",
    "4bit": "paper-4bit",
    "int8-nvfp4": "paper-4bit",
}
# Of the paper profile's error.
BOUNDS = {
    "balanced": 0.70,
    "quality": 0.36,
    "balanced" + HOPPER: 0.70,
    "quality" + HOPPER: 0.38,
    "4bit": 0.80,
    "int8-nvfp4": 0.58,
}


class Heads:
    """Inputs, sampled query rows and their exact output."""

    def __init__(self, grid=GRID, seeds=SEEDS):
        self.q, self.k, self.v = qkv(grid, seeds)
        self.rows = torch.randperm(self.q.shape[-2], generator=torch.Generator().manual_seed(0))[:QUERIES]
        self.exact = exact_attention(self.q[:, :, self.rows], self.k, self.v)
        self.groupings: dict[tuple, object] = {}

    def error(self, numerics: Numerics, **tiling) -> torch.Tensor:
        """Relative L2 error in percent, one a head; `tiling` as of `output`."""
        return relative_error(self.output(numerics, **tiling), self.exact)

    def output(self, numerics: Numerics, block_n: int = 128, packed: bool = False) -> torch.Tensor:
        grouping = self.grouping(numerics)
        perm = None if grouping is None else grouping.perm
        operands = reference.prepare(self.q, self.k, self.v, numerics, perm, True, block_n, packed)
        return reference.attention(operands, numerics, block_n, rows=self.rows, packed=packed)

    def grouping(self, numerics: Numerics):
        """The permutation of these numerics, computed once for all numerics that group alike."""
        key = tuple(getattr(numerics, n) for n in GROUPING_FIELDS)
        if key not in self.groupings:
            self.groupings[key] = reference.group(self.v, numerics, Action.GROUP)
        return self.groupings[key]


GROUPING_FIELDS = ("cluster_order", "clusters", "tokens_per_cluster", "iterations", "sample_stride")


def exact_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T / sqrt(D)) v in fp64."""
    q, k, v = (x.double() for x in (q, k, v))
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def relative_error(out: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """100 ||out - exact|| / ||exact|| of every head."""
    norm = torch.linalg.vector_norm
    return (100 * norm(out.double() - exact, dim=(-2, -1)) / norm(exact, dim=(-2, -1))).flatten()


def measure(heads: Heads) -> dict[str, torch.Tensor]:
    """{row: error of every head}: all named profiles, and the 8-bit ones again as the Hopper kernel tiles them."""
    errors = {name: heads.error(numerics) for name, numerics in PROFILES.items()}
    for name in ("balanced", "quality"):
        spec = next(s for s in KERNELS if s.arch == "sm90" and not s.misfits(PROFILES[name], 128))
        errors[name + HOPPER] = heads.error(PROFILES[name], block_n=spec.block_n, packed=spec.packed)
    return errors


def table(errors: dict[str, torch.Tensor], seeds=SEEDS) -> str:
    """The errors as Markdown, with the ratio to the paper's profile where there is one and its bound."""
    lines = [
        "| profile | " + " | ".join(f"seed {s}" for s in seeds) + " | mean % | of the paper's | bound |",
        "|---|" + "---|" * (len(seeds) + 3),
    ]
    for name, error in errors.items():
        ratio = bound = ""
        if name in PAPER:
            ratio = f"{error.mean() / errors[PAPER[name]].mean():.3f} x {PAPER[name]}"
            bound = f"{BOUNDS[name]:.2f}"
        cells = " | ".join(f"{e:.3f}" for e in error.tolist())
        lines.append(f"| {name} | {cells} | {error.mean():.3f} | {ratio} | {bound} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the table to this file")
    text = table(measure(Heads()))
    print(text)
    arguments = parser.parse_args()
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
