"""One attention call, end to end, on either backend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from . import reference
from .config import Action, Grouping, Numerics
from .errors import KernelUnavailable, ParameterError

if TYPE_CHECKING:
    from .dispatch import KernelSpec

HEAD_DIMS = (64, 128)
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BACKENDS = ("auto", "cuda", "reference")


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    numerics: Numerics,
    action: Action,
    grouping: Grouping | None = None,
    backend: str = "auto",
    lap: Callable[[str], None] = lambda stage: None,
) -> tuple[torch.Tensor, Grouping | None]:
    """Non-causal attention softmax(q k^T / sqrt(D)) v with low-bit operands.

    q         [B, H, Nq, D], k and v [B, H, Nk, D]; D 64 or 128; fp16, bf16 or fp32; any strides; never written
    numerics  formats and smoothing; see `config.profile`
    action    what to do about grouping; a cold ASSIGN or REUSE groups
    grouping  what an earlier call on the same shape returned
    backend   "cuda" runs kernels, "reference" torch operations, "auto" kernels where they are the faster way
    lap       called with "grouping", "preparation" and "attention" when that stage's work is queued, to time it

    Returns (out [B, H, Nq, D] in q's dtype, grouping for the next call or None when nothing was grouped).
    Raises ParameterError for what cannot be right, KernelUnavailable when backend is "cuda" and no kernel fits.
    """
    check(q, k, v, numerics, action, grouping, backend)
    dtype, means = q.dtype, action is not Action.PLAIN
    spec = kernel_for(q, k, numerics, backend)
    if spec is not None:
        from . import dispatch, prepare  # they register torch operators, which the reference does not need

        grouping = prepare.group(v, numerics, action, grouping)
        lap("grouping")
        perm = None if grouping is None else grouping.perm
        operands = prepare.prepare(q, k, v, numerics, perm, means, spec.block_n, spec.packed)
        lap("preparation")
        del q, k, v  # the caller may have handed over its last references
        out = dispatch.run(operands, numerics, dtype)
        lap("attention")
        return out, grouping
    grouping = reference.group(v, numerics, action, grouping)
    lap("grouping")
    operands = reference.prepare(q, k, v, numerics, None if grouping is None else grouping.perm, means)
    lap("preparation")
    # Rounding errors must not turn values at the end of fp16's range into infinity.
    limit = torch.finfo(dtype).max
    out = reference.attention(operands, numerics).clamp_(-limit, limit).to(dtype)
    lap("attention")
    return out, grouping


def kernel_for(q: torch.Tensor, k: torch.Tensor, numerics: Numerics, backend: str) -> KernelSpec | None:
    """The kernel that takes the call, or None; raises KernelUnavailable when one was asked for and none fits."""
    if backend == "reference" or (backend == "auto" and not q.is_cuda):
        return None
    from . import dispatch

    found = dispatch.select(q.device, numerics, q.shape[-1], k.shape[-2] if backend == "auto" else None)
    if backend == "cuda" and isinstance(found, list):
        raise KernelUnavailable(found)
    return None if isinstance(found, list) else found


def check(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, numerics: Numerics, action: Action,
    grouping: Grouping | None, backend: str,
) -> None:  # fmt: skip
    """Raises ParameterError unless the call is well formed."""
    if not isinstance(numerics, Numerics):
        raise ParameterError("numerics", "a Numerics", numerics, "take one from config.profile")
    if not isinstance(action, Action):
        raise ParameterError("action", "an Action", action, f"pass one of {', '.join(map(str, Action))}")
    if backend not in BACKENDS:
        raise ParameterError("backend", f"one of {', '.join(BACKENDS)}", backend, "choose one of these")
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise ParameterError(name, "a torch.Tensor", type(x), "convert it")
        if x.dim() != 4 or 0 in x.shape:
            raise ParameterError(name, "a non-empty [B, H, N, D] tensor", tuple(x.shape), "reshape it")
        if x.dtype not in DTYPES or x.dtype != q.dtype:
            raise ParameterError(f"{name}.dtype", f"q's, one of {DTYPES}", x.dtype, "cast q, k and v alike")
        if x.device != q.device:
            raise ParameterError(f"{name}.device", f"q's, {q.device}", x.device, "move q, k and v to one device")
        if x.shape[-1] not in HEAD_DIMS:
            rule = " or ".join(map(str, HEAD_DIMS))
            raise ParameterError(f"{name}.shape[-1] (head_dim)", rule, x.shape[-1], "use the model's own attention")
    if k.shape != v.shape or k.shape[:2] != q.shape[:2] or k.shape[-1] != q.shape[-1]:
        shapes = tuple(tuple(x.shape) for x in (q, k, v))
        raise ParameterError(
            "q, k, v", "[B,H,Nq,D], [B,H,Nk,D], [B,H,Nk,D]", shapes, "repeat grouped heads, align batches"
        )
    if q.is_meta:
        raise ParameterError("q, k, v", "tensors with values", "meta tensors", "pass them on a CPU or GPU")
    if grouping is not None:
        made_for = (*grouping.perm.shape, grouping.centroids.shape[-1], grouping.perm.device)
        if made_for != (*k.shape, k.device):
            raise ParameterError("grouping", f"made for {(*k.shape, k.device)}", made_for, "group again for this shape")
