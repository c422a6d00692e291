"""What runs the accelerated calls: kernels on a GPU, or the reference. Decided before a call, never during one."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..vc_attention.config import Numerics, profile
from ..vc_attention.errors import KernelUnavailable
from .settings import PROFILE_OF

REMEDY = "run `python install.py` in the VC-Attention folder and restart ComfyUI, or set backend to auto"


@dataclass(frozen=True)
class Choice:
    """backend for attend() and its name for the report; or the reason why stock attention takes the call."""

    backend: str = ""
    name: str = ""
    reason: str | None = None


def choose(
    backend: str, numerics: Numerics, head_dim: int, device: torch.device, seqlen_k: int | None = None
) -> Choice:
    """The choice for calls of this head size and number of keys on this device.

    backend: "reference" always runs; "auto" runs kernels where they are the faster way, or gives a reason; "cuda" runs
    kernels at any length. Raises KernelUnavailable with every reason when backend is "cuda" and no kernel fits.
    """
    if backend == "reference":
        return Choice("reference", "reference (torch operations)")
    from ..vc_attention import dispatch  # registers torch operators, which a workflow without this node need not have

    found = dispatch.select(device, numerics, head_dim, seqlen_k if backend == "auto" else None)
    if not isinstance(found, list):
        return Choice("cuda", found.unit)
    found = _in_widgets_words(found, numerics)
    if backend == "cuda":
        raise KernelUnavailable(found, REMEDY)
    return Choice(reason="; ".join(found))


def _in_widgets_words(reasons: list[str], numerics: Numerics) -> list[str]:
    """`reasons`, or the settings to choose instead where no kernel was written for these numerics on any GPU."""
    from ..vc_attention.prepare import unsupported

    if not set(unsupported(numerics)) & set(reasons):
        return reasons
    able = [key for key, name in PROFILE_OF.items() if not unsupported(profile(name))]
    choices = " or ".join(f"{smoothing} at {bits} bits" for smoothing, bits in able)
    return [f"no GPU kernel yet for this bit width and smoothing profile, only for {choices}"]
