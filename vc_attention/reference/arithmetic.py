"""Sums, clean inputs and the Hadamard transform, in an order that a GPU can repeat bit for bit."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

MAX_INPUT = 2.0**40
TINY = 2.0**-64  # an amax or rms below this counts as zero, so that no reciprocal overflows


def tree_sum(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Sum over `dim`: zero-pad to a power of two, then add neighbours `x[0::2] + x[1::2]` until one is left.

    A sum over 128-row blocks is thus the tree over the blocks' own sums.
    """
    dim = dim % x.dim()
    length = x.shape[dim]
    missing = (1 << (length - 1).bit_length()) - length
    x = pad(x, (0, 0) * (x.dim() - 1 - dim) + (0, missing))
    while x.shape[dim] > 1:
        even, odd = x.unflatten(dim, (-1, 2)).unbind(dim + 1)
        x = even + odd
    return x.squeeze(dim)


def divide(a: torch.Tensor | float, b: torch.Tensor | float) -> torch.Tensor:
    """IEEE fp32 quotient. The operators are not: torch turns scalar / x, and x / scalar on CUDA, into reciprocals."""
    device = (a if isinstance(a, torch.Tensor) else b).device
    a, b = (torch.as_tensor(x, dtype=torch.float32, device=device) for x in (a, b))
    return torch.div(a, b)


def blocks(x: torch.Tensor, size: int) -> torch.Tensor:
    """`[..., N, D]` -> `[..., ceil(N/size), size, D]`, padded with zero rows."""
    x = pad(x, (0, 0, 0, -x.shape[-2] % size))
    return x.unflatten(-2, (-1, size))


def block_sizes(length: int, size: int, device) -> torch.Tensor:
    """Valid rows of every block, fp32 `[ceil(length/size)]`."""
    starts = torch.arange(0, length, size, device=device)
    return (length - starts).clamp(max=size).float()


def clean(x: torch.Tensor) -> torch.Tensor:
    """A new fp32 copy: fp32 input is rounded to bf16 first, NaN becomes 0, the rest clamps to +-2^40."""
    if x.dtype == torch.float32:
        x = x.bfloat16()
    return torch.nan_to_num(x.float(), nan=0.0, posinf=MAX_INPUT, neginf=-MAX_INPUT).clamp_(-MAX_INPUT, MAX_INPUT)


def hadamard(x: torch.Tensor) -> torch.Tensor:
    """Unnormalised Walsh-Hadamard transform of the last dimension: butterflies (a + b, a - b), stride 1, 2, 4, ..."""
    size, stride = x.shape[-1], 1
    while stride < size:
        a, b = x.unflatten(-1, (size // (2 * stride), 2, stride)).unbind(-2)
        x = torch.stack((a + b, a - b), dim=-2).flatten(-3)
        stride *= 2
    return x
