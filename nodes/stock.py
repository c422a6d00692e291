"""What stock attention would have taken: a slice of one call's queries, timed on that call's own tensors."""

from __future__ import annotations

import torch

from ..vc_attention.stopwatch import Stopwatch
from .routing import Call

PART = 32  # one query in so many; two such slices cost little and still fill a GPU
FEWEST = 2048  # queries of a slice, below which launches would count


def function():
    """ComfyUI's own attention, without the hook that would bring the call back here."""
    from comfy.ldm.modules.attention import optimized_attention

    return getattr(optimized_attention, "__wrapped__", optimized_attention)


def timed(func, call: Call, qkv: list[torch.Tensor]) -> tuple[Stopwatch, float]:
    """(a stopwatch whose lap "stock" may still be running, the factor from that lap to one batch row of `call`).

    func: ComfyUI's attention function, None for its default. qkv: q, k, v `[B, H, N, D]`.
    """
    func = function() if func is None else func
    q, k, v = qkv
    batch, heads, length, _ = q.shape
    queries = min(length, max(length // PART, FEWEST))
    watch = Stopwatch(call.device)
    for lap in ("first call", "stock"):  # the first one may load or tune kernels
        func(q[:, :, :queries], k, v, heads, skip_reshape=True, skip_output_reshape=True)
        watch.lap(lap)
    return watch, length / queries / batch
