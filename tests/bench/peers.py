"""Other people's attention on the same tensors: what torch brings and whatever else can be imported here."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

Peer = Callable[[], torch.Tensor]  # queues one call, gives [B, H, N, D]


def _sdpa(backend: SDPBackend):
    def prepare(q, k, v) -> Peer:
        def call():
            with sdpa_kernel(backend):
                return sdpa(q, k, v)

        return call

    return prepare


def _flash3(q, k, v) -> Peer:
    flash_attn_func = importlib.import_module("fa3_fwd_interface").flash_attn_func
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))

    def call():
        out = flash_attn_func(q, k, v)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call


def _flash3_fp8(q, k, v) -> Peer:
    """Its 8-bit forward, the cast to E4M3 with one scale per head not counted."""
    flash_attn_func = importlib.import_module("fa3_fwd_interface").flash_attn_func
    tensors, scales = [], {}
    for name, x in (("q", q), ("k", k), ("v", v)):
        scale = x.abs().amax((2, 3), keepdim=True).float().clamp(min=1e-12) / 448.0
        tensors.append((x / scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn).transpose(1, 2).contiguous())
        scales[f"{name}_descale"] = scale[:, :, 0, 0].contiguous()

    def call():
        out = flash_attn_func(*tensors, **scales)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return call


def _flash4(q, k, v) -> Peer:
    flash_attn_func = importlib.import_module("flash_attn.cute.interface").flash_attn_func
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    return lambda: flash_attn_func(q, k, v)[0].transpose(1, 2)


def _sage(q, k, v) -> Peer:
    sageattn = importlib.import_module("sageattention").sageattn
    return lambda: sageattn(q, k, v, tensor_layout="HND", is_causal=False)


def _comfy_kitchen(q, k, v) -> Peer:
    int8_attention = importlib.import_module("comfy_kitchen").int8_attention
    return lambda: int8_attention(q, k, v)


PEERS = {
    "SDPA flash": _sdpa(SDPBackend.FLASH_ATTENTION),
    "SDPA cuDNN": _sdpa(SDPBackend.CUDNN_ATTENTION),
    "FlashAttention-3": _flash3,
    "FlashAttention-3 FP8": _flash3_fp8,
    "FlashAttention-4": _flash4,
    "SageAttention": _sage,
    "comfy-kitchen INT8": _comfy_kitchen,
}


def available(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[dict[str, Peer], dict[str, str]]:
    """(peers that ran once on these tensors, why the others did not)."""
    running, absent = {}, {}
    for name, prepare in PEERS.items():
        try:
            peer = prepare(q, k, v)
            peer()
            torch.cuda.synchronize()
            running[name] = peer
        except (ImportError, RuntimeError, AttributeError, TypeError) as reason:
            absent[name] = f"{type(reason).__name__}: {str(reason).splitlines()[0] if str(reason) else ''}"
    return running, absent
