"""How alike two clips are, by well-kept libraries: kornia, which ComfyUI brings, and lpips where it is installed."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from ..vc_attention.errors import ParameterError

SSIM_WINDOW = 11  # pixels, Gaussian with sigma 1.5: Wang et al., who defined SSIM
LPIPS_SMALLEST = 32  # pixels that AlexNet's strides need


@dataclass
class Comparison:
    """What was measured of each frame; `missing` says what was not measured and what to do about it.

    psnr: dB, infinite where a frame is identical. ssim: 1 is identical. lpips: 0 is identical. largest: of the
    differences of a frame's channel values, which lie in 0..1.
    """

    size: tuple[int, int]
    psnr: list[float] = field(default_factory=list)
    ssim: list[float] = field(default_factory=list)
    lpips: list[float] = field(default_factory=list)
    largest: list[float] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @property
    def identical(self) -> bool:
        return max(self.largest) == 0.0

    @property
    def worst_frame(self) -> int:
        """The frame that differs most: lowest PSNR, or largest difference where PSNR was not measured."""
        closeness = self.psnr or [-value for value in self.largest]
        return closeness.index(min(closeness))

    @property
    def clip_psnr(self) -> float:
        """PSNR of the whole clip in dB: of the squared error averaged over all frames, as the libraries pool it."""
        mean_square = sum(10 ** (-value / 10) for value in self.psnr) / len(self.psnr)
        return -10 * math.log10(mean_square) if mean_square else math.inf

    def text(self) -> str:
        """A few lines for a person."""
        width, height = self.size
        count = len(self.largest)
        lines = [f"{count} frame{'s'[: count != 1]} of {width} x {height}"]
        if self.identical:
            lines.append("identical: not one pixel differs (PSNR infinite)")
            return "\n".join(lines)
        if self.psnr:
            lines.append(f"PSNR {self.clip_psnr:.2f} dB{_worst(self.psnr, min, '.2f')}")
        if self.ssim:
            lines.append(f"SSIM {sum(self.ssim) / count:.4f}{_worst(self.ssim, min, '.4f')}")
        if self.lpips:
            lines.append(f"LPIPS {sum(self.lpips) / count:.4f}{_worst(self.lpips, max, '.4f')}")
        lines.append(f"largest difference of a pixel {max(self.largest):.3f} of 1")
        return "\n".join(lines + self.missing)


def compare(a: torch.Tensor, b: torch.Tensor, device: torch.device) -> Comparison:
    """Measure two clips against each other, frame by frame on `device`.

    a, b: [frames, height, width, channels] as `check` lets through.
    """
    found = Comparison(size=(a.shape[2], a.shape[1]))
    measures = _available(found, min(a.shape[1:3]))
    for one, other in zip(a, b, strict=True):
        one, other = (pixels(frame).to(device).movedim(-1, 0)[None] for frame in (one, other))
        found.largest.append(float((one - other).abs().max()))
        for name, measure in measures.items():
            getattr(found, name).append(float(measure(one, other)))
    return found


def check(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise ParameterError unless a and b are clips with as many frames of the same size.

    [frames, height, width, 1, 3 or 4 channels] of floats in 0..1 or uint8 in 0..255.
    """
    for name, clip in (("stock", a), ("patched", b)):
        known = clip.dtype == torch.uint8 or clip.is_floating_point()
        if clip.dim() != 4 or 0 in clip.shape or clip.shape[-1] not in (1, 3, 4) or not known:
            rule = "frames [frames, height, width, 1, 3 or 4 channels] of floats or uint8"
            raise ParameterError(name, rule, (tuple(clip.shape), clip.dtype), "connect an IMAGE output")
    shapes = [f"{clip.shape[0]} frames of {clip.shape[2]} x {clip.shape[1]} pixels" for clip in (a, b)]
    if shapes[0] != shapes[1]:
        remedy = "make both clips with the same length and size, or cut the longer one"
        raise ParameterError("patched", f"like stock, {shapes[0]}", shapes[1], remedy)


def pixels(frame: torch.Tensor) -> torch.Tensor:
    """Frames as a saved file shows them: [..., 3] fp32 in 0..1, transparency dropped, not-a-number black."""
    frame = frame / 255.0 if frame.dtype == torch.uint8 else frame.float().nan_to_num(0.0).clamp(0.0, 1.0)
    return frame.expand(*frame.shape[:-1], 3) if frame.shape[-1] == 1 else frame[..., :3]


def _available(found: Comparison, smallest_side: int) -> dict:
    """The measures that can be taken here, by name; what is missing goes into `found`."""
    measures = {}
    try:
        from kornia.metrics import psnr, ssim
    except ImportError:
        found.missing.append(f"PSNR and SSIM not measured: {_install('kornia')}")
    else:
        measures["psnr"] = lambda a, b: psnr(a, b, 1.0)
        if smallest_side >= SSIM_WINDOW:
            measures["ssim"] = lambda a, b: ssim(a, b, SSIM_WINDOW, eps=0.0, padding="valid").mean()
        else:
            found.missing.append(f"SSIM not measured: frames are smaller than {SSIM_WINDOW} pixels")
    network, reason = _lpips_network(smallest_side)
    if reason:
        found.missing.append(f"LPIPS not measured: {reason}")
    else:
        measures["lpips"] = lambda a, b: network.to(a.device)(a, b, normalize=True)
    return measures


def _lpips_network(smallest_side: int):
    """(network, None), or (None, what is missing). Nothing is downloaded from here."""
    if smallest_side < LPIPS_SMALLEST:
        return None, f"frames are smaller than {LPIPS_SMALLEST} pixels"
    try:
        import lpips
        from torchvision.models import AlexNet_Weights
    except ImportError:
        return None, _install("lpips")
    weights = Path(torch.hub.get_dir()) / "checkpoints" / AlexNet_Weights.IMAGENET1K_V1.url.rpartition("/")[2]
    if not weights.exists():
        fetch = "import lpips; lpips.LPIPS(net='alex')"
        return None, f"{weights.name} is missing: with ComfyUI's Python, run {fetch} once, which fetches it"
    return lpips.LPIPS(net="alex", verbose=False).requires_grad_(False), None


def _install(package: str) -> str:
    return f"{package} is missing: install it with {sys.executable} -m pip install {package}"


def _worst(values: list[float], pick, form: str) -> str:
    """The frame that is furthest from identical, where there are several."""
    value = pick(values)
    return f", worst {value:{form}} in frame {values.index(value)}" if len(values) > 1 else ""
