"""The bit width widget: which widths a call may get, the best first."""

from __future__ import annotations

from collections.abc import Container

import torch

from ..vc_attention.kernel_table import KERNELS

BITS = ("auto", "8", "4")
# RTX 50 and RTX PRO Blackwell: their tensor cores multiply NVFP4.
FP4_CAPABILITIES = {gpu for spec in KERNELS if spec.probability == "nvfp4" for gpu in spec.capabilities}


def widths(asked: str, computable: Container[str], device: torch.device) -> tuple[tuple[str, ...], str]:
    """(bit widths in the order to try them, what auto chose and why, or "" where a width was asked for).

    asked: value of the widget. computable: widths that the other widgets allow. 8 bits serve where 4 cannot.
    """
    if asked != "auto":
        return ("4", "8") if asked == "4" else ("8",), ""
    if not _multiplies_fp4(device):
        return ("8",), "auto chose 8 bits: 4 is for RTX 50 and RTX PRO Blackwell"
    if "4" not in computable:
        return ("8",), "auto chose 8 bits: this probability format has no 4-bit form"
    return ("4", "8"), "auto chose 4 bits: this GPU multiplies them fastest"


def _multiplies_fp4(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip:  # AMD's GPUs are "cuda" too, with capabilities of their own
        return False
    return torch.cuda.get_device_capability(device) in FP4_CAPABILITIES
