"""Flow matching as ComfyUI's ModelSamplingDiscreteFlow defines it, prompts, and a sampler equal to its euler."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tools.stand_ins import StandInTextEncoder

from .scenes import KINDS
from .wan import TEXT_WIDTH, Attention, TinyWan, exact_attention

SHIFT = 3.0
TEXT_TOKENS = 64
NOTHING = ""  # the prompt of clips of any kind


def shifted(u: torch.Tensor, shift: float = SHIFT) -> torch.Tensor:
    """Noise level sigma of a share u of the schedule, both 0..1."""
    return shift * u / (1 + (shift - 1) * u)


def prompts(device="cpu") -> torch.Tensor:
    """Embeddings `[kinds + 1, 64, 4096]` from the stand-in encoder: every kind of scene and, last, no prompt."""
    encode = StandInTextEncoder().encode
    texts = [encode(text, TEXT_TOKENS, TEXT_WIDTH)[0][0][0] for text in (*KINDS, NOTHING)]
    return torch.cat(texts).to(device)


def schedule(steps: int, shift: float = SHIFT) -> list[float]:
    """steps + 1 sigmas, as the "simple" scheduler of ComfyUI picks them from its 1000."""
    sigmas = shifted(torch.arange(1, 1001) / 1000, shift)
    return [float(sigmas[-(1 + int(i * 1000 / steps))]) for i in range(steps)] + [0.0]


@torch.no_grad()
def sample(
    model: TinyWan,
    noise: torch.Tensor,
    context: torch.Tensor,
    *,
    steps: int = 20,
    cfg: float = 1.0,
    nothing: torch.Tensor | None = None,
    shift: float = SHIFT,
    on_step=None,
    attention: Callable[[int], Attention] = exact_attention,
) -> torch.Tensor:
    """Latents of clips from noise `[B, 16, T, h, w]`; `on_step(index, sigma)` is called before every step.

    With cfg above 1 the batch is doubled: first the rows with `context`, then those with `nothing`.
    """
    x, sigmas = noise, schedule(steps, shift)
    if cfg != 1.0:
        context = torch.cat([context, nothing.expand_as(context)])
    for index, (sigma, following) in enumerate(zip(sigmas, sigmas[1:], strict=False)):
        if on_step:
            on_step(index, sigma)
        copies = torch.cat([x, x]) if cfg != 1.0 else x
        level = torch.full((len(copies),), 1000 * sigma, device=x.device)
        velocity = model(copies.to(context.dtype), level, context, attention)
        if cfg != 1.0:
            wanted, unwanted = velocity.chunk(2)
            velocity = unwanted + cfg * (wanted - unwanted)
        x = x + (following - sigma) * velocity
    return x
