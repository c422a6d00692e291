"""Clips of the trained model, with ComfyUI's steps, and its self-attention as the patch node would compute it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn import functional

from tools.tiny_video import WEIGHTS, autoencoder, flow, wan
from tools.tiny_video.scenes import KINDS, SIZE
from vc_attention.attention import attend
from vc_attention.config import PROFILES, Numerics
from vc_attention.schedule import RENEWING, AfterWindow, Schedule, Step, locate
from vc_attention.session import RowKey, Session

STEPS, CFG = 20, 1.0


class Model:
    """The trained model and its autoencoder on one device."""

    def __init__(self, device: torch.device | str, weights: Path = WEIGHTS):
        self.device = torch.device(device)
        self.wan = wan.load(weights / wan.FILE, device)
        self.autoencoder = autoencoder.load(weights / autoencoder.FILE, device)
        self.context = flow.prompts(device)

    @property
    def layers(self) -> int:
        return len(self.wan.blocks)

    def latents(self, count: int, frames: int, patch=None, *, size=SIZE, steps=STEPS) -> torch.Tensor:
        """Latents `[count, 16, frames, size/8, size/8]`: clip i is of kind i mod 8 and its noise depends on i alone."""
        side = size // autoencoder.SPATIAL
        noise = [
            torch.randn(autoencoder.LATENT_CHANNELS, frames, side, side, generator=torch.Generator().manual_seed(i))
            for i in range(count)
        ]
        kinds = torch.arange(count) % len(KINDS)
        return flow.sample(
            self.wan, torch.stack(noise).to(self.device), self.context[kinds], nothing=self.context[-1:],
            steps=steps, cfg=CFG, on_step=getattr(patch, "on_step", None), attention=patch or wan.exact_attention,
        )  # fmt: skip

    def videos(self, latents: torch.Tensor) -> torch.Tensor:
        """Pictures 0..1, `[B, 3, F, H, W]`, decoded clip by clip."""
        with torch.no_grad():
            return torch.cat([self.autoencoder.decode(latent[None]) for latent in latents]).clamp(0, 1)


class Patch:
    """What the patch node does, without ComfyUI: the session plans, `attend` computes, a renewed grouping is kept."""

    def __init__(self, numerics: Numerics, schedule: Schedule, steps: int = STEPS):
        self.numerics = numerics
        self.session = Session(schedule, budget=1 << 40)
        self.sigmas = flow.schedule(steps)
        self.window_sigma = float(flow.shifted(torch.tensor(1 - schedule.window)))
        self.step = Step(0, True)
        self.actions: list[str] = []

    def on_step(self, index: int, sigma: float) -> None:
        self.step = locate(sigma, self.sigmas, self.window_sigma)

    def __call__(self, layer: int):
        return lambda q, k, v: self.run(layer, q, k, v)

    def run(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        keys = [RowKey(layer, None, row, None, tuple(k.shape[1:]), str(k.device)) for row in range(len(q))]
        action, grouping = self.session.plan(keys, self.step)
        out, left = attend(q, k, v, numerics=self.numerics, action=action, grouping=grouping, backend="reference")
        if action in RENEWING and left is not None:
            self.session.keep(keys, left, self.step)
        if layer == 0:
            self.actions.append(action.value)
        return out


def patch(profile: str, steps: int = STEPS) -> Patch:
    """A named profile with the schedule that the node gives it."""
    after = AfterWindow.PLAIN if profile.startswith("paper") else AfterWindow.ASSIGN
    return Patch(PROFILES[profile], Schedule(after_window=after), steps)


def rounded(layer: int):
    """Exact attention on bf16 operands: as near to stock as any 16-bit kernel can be."""

    def attention(q, k, v):
        q, k, v = (x.bfloat16().float() for x in (q, k, v))
        return functional.scaled_dot_product_attention(q, k, v).bfloat16().float()

    return attention


def widen_chunks(scores: int) -> None:
    """Let the reference hold more scores at a time than its default, which suits CPUs and makes GPUs wait."""
    import sys

    sys.modules["vc_attention.reference.attention"].CHUNK = scores
