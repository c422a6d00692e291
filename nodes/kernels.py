"""What runs the accelerated calls: kernels on a GPU, or the reference. Decided before a call, never during one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..vc_attention.config import Numerics
from ..vc_attention.errors import KernelUnavailable

BUILD_HINT = "run `python install.py` in the VC-Attention folder, then restart ComfyUI"


@dataclass(frozen=True)
class Choice:
    """backend for attend() and its name for the report; or the reason why stock attention takes the call."""

    backend: str = ""
    name: str = ""
    reason: str | None = None


def choose(backend: str, numerics: Numerics, head_dim: int, device: torch.device) -> Choice:
    """The choice for calls of this head size on this device.

    backend: "reference" always runs; "auto" runs kernels or gives a reason; "cuda" runs kernels or raises.
    Raises KernelUnavailable with every reason when backend is "cuda" and no kernel fits.
    """
    if backend == "reference":
        return Choice("reference", "reference (torch operations)")
    reasons = _kernel_reasons(numerics, head_dim, device)
    if reasons and backend == "cuda":
        raise KernelUnavailable(reasons, BUILD_HINT)
    return Choice(reason="; ".join(reasons))


def _kernel_reasons(numerics: Numerics, head_dim: int, device: torch.device) -> list[str]:
    if device.type != "cuda":
        return [f"the model runs on {device.type}, kernels need an NVIDIA GPU (backend reference runs anywhere)"]
    return [f"kernels are not built ({BUILD_HINT})"]
