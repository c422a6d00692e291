"""What the demo leaves behind: a picture of both clips side by side, report.json and index.html."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from safetensors.numpy import load_file

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>VC-Attention demo</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse }} td, th {{ padding: .2rem 1rem .2rem 0; text-align: left; vertical-align: top }}
.clips {{ display: flex; gap: 1rem; flex-wrap: wrap }} figure {{ margin: 0 }} img {{ max-width: 100% }}
pre {{ background: #f4f4f4; padding: 1rem; white-space: pre-wrap }}
</style></head><body>
<h1>VC-Attention demo</h1>
<p>A real ComfyUI made this clip twice from the same seed: {title}, of <i>{prompt}</i>. The model is Wan's in structure
and loads like it, but has 7 million parameters and was trained for minutes on drawn shapes (tools/tiny_video). The
clips tell what the patch changes in a trained model's picture.</p>
<div class="clips">
<figure><img src="stock.webp" alt="stock clip"><figcaption>ComfyUI's own attention</figcaption></figure>
<figure><img src="vc_attention.webp" alt="patched clip"><figcaption>VC-Attention Patch</figcaption></figure>
</div>
<h2>Measured</h2>
<table>{rows}</table>
<p>{time_note}</p>
<h2>What the node reported</h2>
{statuses}
<h2>Side by side</h2>
<p>First row stock, second row patched, third row {gain} times their difference.</p>
<img src="side_by_side.png" alt="frames side by side">
<p>Files: each clip as .mp4, .webp and .latent (from the sampler), side_by_side.png, report.json, server.log.</p>
</body></html>
"""
SLOW = (
    "The reference backend is the executable specification in plain PyTorch: it is slower than ComfyUI's attention and "
    "exists to be checked against. Speed is what the GPU kernels are for."
)


def write(out: Path, run, stock: dict, patched: dict) -> str:
    """Write the three files into `out`; a few lines for the terminal."""
    frames = [_frames(clip["files"][".webp"]) for clip in (stock, patched)]
    picture, gain = _side_by_side(*frames)
    picture.save(out / "side_by_side.png")
    report = _report(run, stock, patched, *frames)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    rows = [
        ("Video tokens in an attention call", f"{report['tokens']:,}"),
        ("Sampling without the patch", f"{report['stock_sampling_s']} s"),
        ("Sampling with the patch", f"{report['patched_sampling_s']} s"),
        ("Difference of the latents (relative L2)", f"{report['latent_relative_l2']:.2%}"),
        ("PSNR between the clips", "identical" if report["psnr_db"] is None else f"{report['psnr_db']:.1f} dB"),
    ]
    cells = "".join(f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>" for name, value in rows)
    texts = [f"{status['title']}: {status['text']}" for status in report["node_reports"]]
    page = PAGE.format(
        title=html.escape(run.title),
        prompt=html.escape(run.positive),
        rows=cells,
        time_note=SLOW if any("reference" in text for text in texts) else "",
        statuses="".join(f"<pre>{html.escape(text)}</pre>" for text in texts),
        gain=gain,
    )
    (out / "index.html").write_text(page, encoding="utf-8")
    return "\n".join([*(f"{name}: {value}" for name, value in rows), *texts])


def _report(run, stock: dict, patched: dict, stock_frames: np.ndarray, patched_frames: np.ndarray) -> dict:
    latents = [load_file(clip["files"][".latent"])["latent_tensor"].astype(np.float64) for clip in (stock, patched)]
    error = float(np.mean((stock_frames - patched_frames) ** 2))
    return {
        "run": run.title,
        "tokens": run.tokens,
        "steps": run.steps,
        "stock_sampling_s": stock["sampling_s"],
        "patched_sampling_s": patched["sampling_s"],
        "latent_relative_l2": float(np.linalg.norm(latents[1] - latents[0]) / np.linalg.norm(latents[0])),
        "psnr_db": 10 * math.log10(255**2 / error) if error else None,
        "node_reports": patched["status"],
    }


def _frames(path: str) -> np.ndarray:
    """[frames, height, width, 3] float64, 0..255, of an animated picture."""
    with Image.open(path) as clip:
        pictures = []
        for index in range(clip.n_frames):
            clip.seek(index)
            pictures.append(np.asarray(clip.convert("RGB"), dtype=np.float64))
    return np.stack(pictures)


def _side_by_side(stock: np.ndarray, patched: np.ndarray) -> tuple[Image.Image, int]:
    """Four frames of each clip and of their difference, brightened until its largest value shows; and by how much."""
    chosen = np.linspace(0, len(stock) - 1, 4).astype(int)
    difference = np.abs(patched - stock)
    gain = int(255 / max(1.0, difference.max()))
    difference = difference * gain
    rows = [np.concatenate([clip[i] for i in chosen], axis=1) for clip in (stock, patched, difference)]
    picture = Image.fromarray(np.concatenate(rows).astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    height = stock.shape[1]
    for row, label in enumerate(("stock", "VC-Attention", f"difference x {gain}")):
        draw.text((8, row * height + 6), label, fill="white", stroke_width=2, stroke_fill="black", font_size=18)
    return picture, gain
