"""A small attention call on a GPU against the reference with the same operands: what `dispatch` trusts kernels by."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from . import layout, prepare, reference
from .config import Numerics

if TYPE_CHECKING:
    from .dispatch import KernelSpec

QUERIES, KEYS = 150, 700  # a ragged last tile on both sides, an odd number of key tiles


def numerics_of(spec: KernelSpec) -> Numerics:
    """The default numerics with what the kernel computes."""
    pv = "int8" if spec.probability == "u8" else "e4m3"
    return Numerics(pv=pv, probability=spec.probability, p_scale=spec.p_scale)


def operands_on(device: torch.device, made: reference.Operands, means: bool) -> prepare.Operands:
    """Operands of the reference in the kernels' form, on `device`."""
    images = {name: tensor.contiguous().to(device) for name, tensor in layout.images(made).items()}
    if not means:
        images["v_mean"] = images["v_mean"][:, :, :0].contiguous()
    return prepare.Operands(**images, seqlen_q=made.q_codes.shape[-2], seqlen_k=made.k_codes.shape[-2])


def error(spec: KernelSpec, device: torch.device, means: bool) -> float:
    """Relative error of the kernel, ||out - reference|| / ||reference||; NaN when it is not finite."""
    from . import dispatch  # which asks this question

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, spec.head_dim, generator=random) for n in (QUERIES, KEYS, KEYS))
    numerics = numerics_of(spec)
    made = reference.prepare(2.0 * q, k, v + 1.0, numerics, None, means, spec.block_n)
    made = dataclasses.replace(made, v_mean=layout.tf32(made.v_mean))
    expected = reference.attention(made, numerics, spec.block_n).double()
    out = dispatch.run(operands_on(device, made, means), numerics, torch.bfloat16)
    torch.cuda.synchronize(device)
    return float((out.double().cpu() - expected).norm() / expected.norm())
