"""What the pack's pictures share: colours, letters, and the way from Pillow to ComfyUI's images."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

# A dark card with light letters reads well on ComfyUI's dark and light themes alike.
BACKGROUND, PANEL, FAINT, TEXT = "#1b1f27", "#262b36", "#8b94a6", "#e8ebf1"
# From nothing to much: rises early, so that small values show, and differs in lightness, so that it reads in grey too.
RAMP = (0x10131A, 0x2B3A8F, 0x8A2FA8, 0xE0483E, 0xFBA636, 0xFFFBD6)


def font(size: int) -> ImageFont.ImageFont:
    """Pillow's own letters, which need no font file; of one small size where Pillow is older than 10.1."""
    try:
        return ImageFont.load_default(size)
    except TypeError:
        return ImageFont.load_default()


def ramp(values: torch.Tensor) -> torch.Tensor:
    """Colours [..., 3] fp32 in 0..1 of `values` [...] in 0..1."""
    channels = [[(colour >> shift & 255) / 255 for shift in (16, 8, 0)] for colour in RAMP]
    table = torch.tensor(channels, dtype=torch.float32, device=values.device)
    place = values.float().clamp(0.0, 1.0) * (len(RAMP) - 1)
    below = place.long().clamp(max=len(RAMP) - 2)
    return torch.lerp(table[below], table[below + 1], (place - below)[..., None])


def to_pil(frame: torch.Tensor) -> Image.Image:
    """A picture of [height, width, 3] fp32 in 0..1."""
    return Image.fromarray((frame.cpu().numpy() * 255.0 + 0.5).astype(np.uint8))


def to_image(picture: Image.Image) -> torch.Tensor:
    """A ComfyUI IMAGE [1, height, width, 3] fp32 in 0..1."""
    return torch.from_numpy(np.asarray(picture.convert("RGB"), dtype=np.float32) / 255.0)[None]


def label(draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, size: int, fill: str = TEXT, anchor="la"):
    """Write `text` at `at`; anchor as Pillow has it ("la": left, at the ascender)."""
    letters = font(size)
    if not isinstance(letters, ImageFont.FreeTypeFont):
        anchor = None  # the small letters of an old Pillow know no anchors
    draw.text(at, text, fill=fill, font=letters, anchor=anchor)
