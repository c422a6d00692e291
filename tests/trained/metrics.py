"""How alike two clips are: PSNR, SSIM and, where its package is there, a learned distance."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from skimage.metrics import structural_similarity

FRAMES = 4  # of every clip, evenly spaced, for what is slow


def compare(videos: torch.Tensor, stock: torch.Tensor, all_of_them: bool = True) -> dict[str, list[float]]:
    """{metric: one number a clip} for videos `[B, 3, F, H, W]`, 0..1; the quick one alone unless `all_of_them`."""
    if not all_of_them:
        return {"psnr": psnr(videos, stock)}
    values = {"psnr": psnr(videos, stock), "ssim": ssim(videos, stock)}
    distance = learned_distance(videos, stock)
    return values if distance is None else {**values, "st_lpips": distance}


def psnr(videos: torch.Tensor, stock: torch.Tensor) -> list[float]:
    """dB, over all frames of a clip."""
    error = (videos - stock).double().square().flatten(1).mean(1)
    return (-10 * error.clamp(min=1e-12).log10()).tolist()


def ssim(videos: torch.Tensor, stock: torch.Tensor) -> list[float]:
    """scikit-image's structural similarity with its default window, mean over frames."""

    def frame(pair) -> float:
        return structural_similarity(*pair, channel_axis=-1, data_range=1.0)

    pairs = [np.asarray(_frames(x).movedim(1, -1).cpu()) for x in (videos, stock)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        values = list(pool.map(frame, zip(*pairs, strict=True)))
    return np.reshape(values, (len(videos), -1)).mean(1).tolist()


def learned_distance(videos: torch.Tensor, stock: torch.Tensor) -> list[float] | None:
    """Shift-tolerant LPIPS on AlexNet features (Ghildyal and Liu, 2022), mean over frames; None without its package.

    Of all LPIPS packages it is the one whose wheel holds the features' weights, not only those of the last layer:
    `pip install stlpips-pytorch torchsummary ipython`.
    """
    try:
        from stlpips_pytorch.stlpips import LPIPS
    except ImportError:
        return None
    metric = LPIPS(net="alex", variant="shift_tolerant", verbose=False).to(videos.device)
    with torch.no_grad():
        pairs = zip(_frames(videos).split(16), _frames(stock).split(16), strict=True)
        parts = [metric(a, b, normalize=True).flatten() for a, b in pairs]
    return torch.cat(parts).view(len(videos), -1).mean(1).tolist()


def _frames(videos: torch.Tensor) -> torch.Tensor:
    """Some frames of every clip, `[B * FRAMES, 3, H, W]`."""
    chosen = torch.linspace(0, videos.shape[2] - 1, min(FRAMES, videos.shape[2])).round().long()
    return videos[:, :, chosen.to(videos.device)].movedim(2, 1).flatten(0, 1).float()
