"""Results as Markdown and as a picture."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import torch

METRICS = {"psnr": ("PSNR dB", 2), "ssim": ("SSIM", 4), "st_lpips": ("ST-LPIPS", 5)}
TOKENS_PER_FRAME = 256
PAPER = {
    "share_sequence": 0.08,
    "share_cube": 0.12,
    "share_sorted_paper": 0.36,
    "share_sorted_balanced": None,
    "values_share_of_error": 0.82,
}


def suite(result: dict) -> str:
    """All tables of the suite."""
    parts = [_environment(result)]
    for frames, rows in result["fidelity"].items():
        parts += [f"## {int(frames) * TOKENS_PER_FRAME:,} tokens, {result['clips']} clips\n", fidelity(rows)]
    parts += ["## Error of one attention call, by layer, %\n", errors_by_layer(result["layers"])]
    parts += ["## Values and scores, by layer\n", anatomy(result["layers"])]
    return "\n".join(parts)


def _environment(result: dict) -> str:
    machine = result["machine"]
    return f"{machine['device']}, torch {machine['torch']}, Python {machine['python']}, commit {machine['commit']}.\n"


def fidelity(rows: dict[str, dict], reference: str = "paper-8bit") -> str:
    """One line a row: mean of every metric, and PSNR against a reference row clip by clip, with its standard error."""
    known = [name for name in METRICS if name in next(iter(rows.values()))]
    head = ["", *(METRICS[name][0] for name in known), "worst clip dB", f"dB above {reference}"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, values in rows.items():
        cells = [f"{torch.tensor(values[m]).mean():.{METRICS[m][1]}f}" for m in known]
        gain = torch.tensor(values["psnr"]) - torch.tensor(rows[reference]["psnr"])
        spread = gain.std() / len(gain) ** 0.5
        against = "" if name == reference else f"{gain.mean():+.2f} +- {spread:.2f}"
        lines.append(f"| {name} | {' | '.join(cells)} | {min(values['psnr']):.2f} | {against} |")
    return "\n".join(lines) + "\n"


def ablations(result: dict) -> str:
    """All tables of the ablations."""
    tokens = result["latent_frames"] * TOKENS_PER_FRAME
    parts = [_environment(result), f"{tokens:,} tokens, {result['clips']} clips.\n"]
    for heading, rows in result["tables"].items():
        parts += [f"## {heading}\n", fidelity(rows, heading)]
    return "\n".join(parts)


def errors_by_layer(records: list[dict]) -> str:
    """Relative L2 error of the attention output, mean over steps, for every profile and layer."""
    layers = sorted({record["layer"] for record in records})
    lines = ["| | " + " | ".join(f"layer {n}" for n in layers) + " | mean |", "|---" * (len(layers) + 2) + "|"]
    for name in records[0]["errors"]:
        by_layer = _by_layer(records, lambda record, name=name: record["errors"][name])
        cells = " | ".join(f"{by_layer[layer]:.2f}" for layer in layers)
        lines.append(f"| {name} | {cells} | {sum(by_layer.values()) / len(layers):.2f} |")
    return "\n".join(lines) + "\n"


def anatomy(records: list[dict]) -> str:
    """Shares of block energy and of the error, in percent, beside the paper's figures for Wan2.2."""
    layers = sorted({record["layer"] for record in records})
    head = ["", *(f"layer {n}" for n in layers), "mean", "paper"]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for key, paper in PAPER.items():
        by_layer = _by_layer(records, lambda record, key=key: record[key])
        cells = [f"{100 * by_layer[layer]:.0f}" for layer in layers]
        mean = 100 * sum(by_layer.values()) / len(layers)
        lines.append(f"| {key} | {' | '.join(cells)} | {mean:.0f} | {'' if paper is None else f'{100 * paper:.0f}'} |")
    return "\n".join(lines) + "\n"


def _by_layer(records: list[dict], value) -> dict[int, float]:
    found = defaultdict(list)
    for record in records:
        found[record["layer"]].append(value(record))
    return {layer: sum(values) / len(values) for layer, values in found.items()}


def plot(result: dict, path: Path) -> None:
    """PSNR of every row for every length, a point a clip."""
    from matplotlib.figure import Figure

    lengths = result["fidelity"]
    figure = Figure(figsize=(4.5 * len(lengths), 4.5), layout="tight")
    axes = figure.subplots(1, len(lengths), sharey=True, squeeze=False)
    for axis, (frames, rows) in zip(axes[0], lengths.items(), strict=True):
        names = list(rows)[::-1]
        for place, name in enumerate(names):
            values = rows[name]["psnr"]
            axis.plot(values, [place] * len(values), ".", color="tab:blue", alpha=0.4)
            axis.plot(sum(values) / len(values), place, "|", color="black", markersize=16, markeredgewidth=2)
        axis.set_yticks(range(len(names)), names)
        axis.set_xlabel("PSNR against stock attention, dB")
        axis.set_title(f"{int(frames) * TOKENS_PER_FRAME:,} tokens")
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=110)
