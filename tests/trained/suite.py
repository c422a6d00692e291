"""Fidelity on the trained model: `python -m tests.trained.suite --out FOLDER` leaves suite.json, .md and .png there.

The same clips from the same noise, once with stock attention and once with each profile's arithmetic in every
self-attention of every step, on the node's schedule. Runs on a GPU where there is one, always with the reference.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from vc_attention import config

from . import anatomy, clips, metrics, tables

PROFILES = (
    "paper-8bit", "balanced", "quality", "sage2-like", "fp8-naive", "4bit", "int8-nvfp4", "paper-4bit", "sage3-like",
)  # fmt: skip
FLOOR = "bf16 attention"  # what rounding q, k, v and the result to 16 bits does, with exact attention between


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the results")
    parser.add_argument("--clips", type=positive, default=16)
    parser.add_argument("--latent-frames", type=positive, nargs="+", default=[5, 16], help="lengths of the clips")
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        clips.widen_chunks(1 << 28)
    model = clips.Model(device)
    rows: dict[str, Callable] = {name: (lambda name=name: clips.patch(name)) for name in PROFILES}
    rows[FLOOR] = lambda: clips.rounded
    profiles = {name: config.PROFILES[name] for name in PROFILES} | anatomy.PLAIN
    layers = anatomy.measure(model, min(4, options.clips), max(options.latent_frames), profiles)
    result = {"machine": machine(device), "clips": options.clips, "layers": layers, "fidelity": {}}
    for frames in options.latent_frames:
        found = result["fidelity"][str(frames)] = {}
        for name, values in compare(model, rows, options.clips, frames):
            found[name] = values
            save(result, tables.suite(result), options.out / "suite")
    tables.plot(result, options.out / "suite.png")
    print(tables.suite(result))


def positive(text: str) -> int:
    """A number on the command line that is at least 1."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def save(result: dict, text: str, path: Path) -> None:
    """`result` beside its tables."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def compare(model: clips.Model, rows: dict[str, Callable], count: int, frames: int, all_metrics=True) -> Iterator:
    """(row, {metric: one number a clip}), one by one; every row's function gives a fresh attention."""
    stock = model.videos(model.latents(count, frames))
    for name, make in rows.items():
        started = time.monotonic()
        values = metrics.compare(model.videos(model.latents(count, frames, make())), stock, all_metrics)
        psnr = sum(values["psnr"]) / count
        print(f"{frames} latent frames, {name}: {psnr:.2f} dB, {time.monotonic() - started:.1f} s", flush=True)
        yield name, values


def machine(device: str) -> dict[str, str]:
    """What the figures were measured on."""
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    root = Path(__file__).parent
    try:
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=root, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return {"device": name, "torch": torch.__version__, "python": platform.python_version(), "commit": commit}


if __name__ == "__main__":
    main()
