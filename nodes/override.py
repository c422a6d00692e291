"""The attention override: decides, runs the call here or passes it on to whoever was there before."""

from __future__ import annotations

import contextlib

import torch

from ..vc_attention.attention import attend
from ..vc_attention.schedule import RENEWING
from .compat import outside_allocation_graph
from .routing import Call, describe, from_heads, to_heads
from .run import KEY, Forward, Run


def make_override(previous=None):
    """An override for transformer_options["optimized_attention_override"].

    previous: the override that was there before; it gets every call that is not ours, so that nodes compose. The result
    is a function, which ComfyUI copies by reference wherever it copies options. It is kept out of torch.compile, whose
    guards know nothing of sampling steps (a model compiled with fullgraph=True therefore refuses the patch).
    """

    @torch.compiler.disable
    def override(func, q, k, v, *args, **kwargs):
        plan = _plan((q, k, v, *args), kwargs)
        if plan is None:
            with _passing_on(kwargs):
                return previous(func, q, k, v, *args, **kwargs) if previous else func(q, k, v, *args, **kwargs)
        return _run(*plan, [to_heads(t, plan[1]) for t in (q, k, v)])

    @torch.compiler.disable
    def override_containers(q, k, v, *args, **kwargs):
        # Since 0.38 models hand over boxes that hold the only reference to q, k and v, so that each is freed as soon as
        # it is quantized.
        plan = _plan((q.peek(), k.peek(), v.peek(), *args), kwargs)
        if plan is None:
            with _passing_on(kwargs):
                return _pass_on_containers(previous, (q, k, v, *args), kwargs)
        return _run(*plan, [to_heads(box.take(), plan[1]) for box in (q, k, v)])

    override.container_function = override_containers
    override.vc_attention_previous = previous
    return override


def _plan(args: tuple, kwargs: dict) -> tuple[Forward, Call, object] | None:
    """(forward, call, layer) of a call that runs here, or None; counts the calls that do not by reason."""
    options = kwargs.get("transformer_options") or {}
    forward = options.get(KEY)
    if isinstance(forward, Run):
        forward.report.leave_alone("not in a step of the model that was patched")
    if not isinstance(forward, Forward) or forward.passing_on:
        return None
    call = describe(*args, **kwargs)
    layer, reason = forward.route(call, options)
    if reason is not None:
        forward.run.report.leave_alone(reason)
        return None
    return forward, call, layer


@contextlib.contextmanager
def _passing_on(kwargs: dict):
    """While the override underneath has a call, a patch further below leaves it alone: it was judged and counted here.

    That happens where another node's override lies between two patches of one model.
    """
    forward = (kwargs.get("transformer_options") or {}).get(KEY)
    if not isinstance(forward, Forward) or forward.passing_on:
        yield
        return
    forward.passing_on = True
    try:
        yield
    finally:
        forward.passing_on = False


def _run(forward: Forward, call: Call, layer: object, qkv: list[torch.Tensor]) -> torch.Tensor:
    """One accelerated call; empties `qkv`, so that attend() holds the last references."""
    run, step = forward.run, forward.step
    keys = forward.rows(call, layer)
    action, grouping = run.session.plan(keys, step)
    chosen = run.kernel(call)
    with outside_allocation_graph():
        out, left_behind = attend(
            qkv.pop(0), qkv.pop(0), qkv.pop(0),
            numerics=chosen.numerics, action=action, grouping=grouping, backend=chosen.backend,
        )  # fmt: skip
    if action in RENEWING and left_behind is not None:
        run.session.keep(keys, left_behind, step)
    run.report.accelerated(chosen.name, action.value, chosen.width)
    return from_heads(out, call)


def _pass_on_containers(previous, args: tuple, kwargs: dict) -> torch.Tensor:
    """Hand a call in boxes to the previous override, or to ComfyUI's own attention.

    No function comes with such a call. `_inside_attn_wrapper` is among the options, so ComfyUI's attention does not
    come back here.
    """
    from comfy.ldm.modules.attention import optimized_attention

    if previous is None:
        return optimized_attention(*args, **kwargs)
    if hasattr(previous, "container_function"):
        return previous.container_function(*args, **kwargs)
    tensors = tuple(box.take() for box in args[:3])
    return previous(getattr(optimized_attention, "__wrapped__", optimized_attention), *tensors, *args[3:], **kwargs)
