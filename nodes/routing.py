"""Which attention calls are ours: a decision taken from shapes and options alone, before anything runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..vc_attention.attention import DTYPES, HEAD_DIMS

# Options that do not change the result, or that describe() reads. Any other may mean another kind of attention.
KNOWN_OPTIONS = {"transformer_options", "_inside_attn_wrapper", "low_precision_attention", "scale", "enable_gqa"}


@dataclass(frozen=True)
class Call:
    """One attention call as ComfyUI makes it, without its tensors.

    q, k, v: shapes [B, H, N, D], () for a tensor of another rank; k and v keep their own head counts.
    layout: "BHND" or "BNC" (heads inside channels).
    """

    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    layout: str
    skip_output_reshape: bool
    dtypes: frozenset[torch.dtype]
    devices: frozenset[torch.device]
    masked: bool
    needs_grad: bool
    full_precision: bool
    scale: float | None
    unknown_options: tuple[str, ...]

    @property
    def device(self) -> torch.device:
        return next(iter(self.devices))

    @property
    def shape(self) -> tuple[int, ...]:
        """What kept groupings depend on: heads, keys, head size."""
        return self.k[1:]


def describe(
    q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs
) -> Call:
    """Read a call with the signature that ComfyUI gives its attention functions."""
    dim = q.shape[-1] if skip_reshape else q.shape[-1] // heads

    def shape(t: torch.Tensor) -> tuple[int, ...]:
        if t.dim() != (4 if skip_reshape else 3):
            return ()
        if skip_reshape:
            return tuple(t.shape)
        own = heads if t.shape[-1] == q.shape[-1] else max(1, t.shape[-1] // max(1, dim))
        return (t.shape[0], own, t.shape[1], t.shape[-1] // own)

    scale = kwargs.get("scale")
    return Call(
        q=shape(q),
        k=shape(k),
        v=shape(v),
        layout="BHND" if skip_reshape else "BNC",
        skip_output_reshape=bool(skip_output_reshape),
        dtypes=frozenset(t.dtype for t in (q, k, v)),
        devices=frozenset(t.device for t in (q, k, v)),
        masked=mask is not None,
        needs_grad=torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v)),
        full_precision=kwargs.get("low_precision_attention") is False or attn_precision == torch.float32,
        scale=None if scale is None or abs(scale * dim**0.5 - 1.0) < 1e-6 else float(scale),
        unknown_options=tuple(sorted(set(kwargs) - KNOWN_OPTIONS)),
    )


def why_not_dense(
    call: Call, text_length: int | None = None, text_calls: str = "cross-attention", fewer_queries: bool = False
) -> str | None:
    """Why a call is not the plain dense self-attention that this pack accelerates, or None.

    text_length: number of tokens of the prompt; calls of that length attend to text, and are what `text_calls` says.
    fewer_queries: whether self-attention may have fewer queries than keys (see models.ModelRow).
    """
    if () in (call.q, call.k, call.v):
        return "tensors of unusual rank"
    if call.k[2] == text_length:
        return text_calls
    if call.masked:
        return "masked"
    if call.q[2] > call.k[2] or (call.q[2] < call.k[2] and not fewer_queries):
        return "cross-attention"
    if call.q[1] != call.k[1] or call.k[1] != call.v[1]:
        return "grouped-query heads"
    if (*call.q[:2], call.k[2], call.q[3]) != call.k or call.k != call.v:
        return "q, k and v of different shapes"
    if 0 in call.q[:3]:
        return "no tokens"
    if call.q[3] not in HEAD_DIMS:
        return f"head size {call.q[3]} ({' and '.join(map(str, HEAD_DIMS))} are supported)"
    if call.full_precision:
        return "full precision asked for"
    if call.scale is not None:
        return "custom softmax scale"
    if call.unknown_options:
        return f"unknown option {', '.join(call.unknown_options)}"
    if len(call.dtypes) > 1 or len(call.devices) > 1:
        return "q, k and v of different types or devices"
    if not call.dtypes <= set(DTYPES):
        return f"data type {next(iter(call.dtypes))}"
    if call.needs_grad:
        return "gradients needed"
    return None


def to_heads(t: torch.Tensor, call: Call) -> torch.Tensor:
    """q, k or v of `call` as [B, H, N, D], a view."""
    if call.layout == "BHND":
        return t
    heads, dim = call.q[1], call.q[3]
    return t.unflatten(-1, (heads, dim)).transpose(1, 2)


def from_heads(out: torch.Tensor, call: Call) -> torch.Tensor:
    """[B, H, N, D] in the layout that the caller of `call` expects."""
    return out if call.skip_output_reshape else out.transpose(1, 2).flatten(2)
