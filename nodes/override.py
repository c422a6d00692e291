"""The attention override: decides, runs the call here or passes it on to whoever was there before."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable
from dataclasses import dataclass

import torch

from ..vc_attention.attention import attend
from ..vc_attention.config import Action, Grouping
from ..vc_attention.schedule import RENEWING
from ..vc_attention.stopwatch import Stopwatch
from . import stock
from .compat import outside_allocation_graph
from .layers import Layer
from .report import OVER_BUDGET
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
        out = plan and _run(plan, [to_heads(t, plan.call) for t in (q, k, v)], func)
        if out is None:
            with _passing_on(kwargs):
                return previous(func, q, k, v, *args, **kwargs) if previous else func(q, k, v, *args, **kwargs)
        return out

    @torch.compiler.disable
    def override_containers(q, k, v, *args, **kwargs):
        # Since 0.38 models hand over boxes that hold the only reference to q, k and v, so that each is freed as soon as
        # it is quantized. A measured call needs them longer, and stock attention may get them after all.
        plan = _plan((q.peek(), k.peek(), v.peek(), *args), kwargs)
        out = plan and _run(plan, [to_heads(_open(box, plan), plan.call) for box in (q, k, v)])
        if out is None:
            with _passing_on(kwargs):
                return _pass_on_containers(previous, (q, k, v, *args), kwargs)
        return out

    override.container_function = override_containers
    override.vc_attention_previous = previous
    return override


@dataclass(frozen=True)
class _Plan:
    """A call that runs here. watched: what the guard calls the layer. measured: whether the guard measures the call."""

    forward: Forward
    call: Call
    layer: Layer
    watched: Hashable
    measured: bool


def _plan(args: tuple, kwargs: dict) -> _Plan | None:
    """The plan of a call that runs here, or None; counts the calls that do not by reason."""
    options = kwargs.get("transformer_options") or {}
    forward = options.get(KEY)
    if isinstance(forward, Run):
        forward.report.leave_alone("not in a step of the model that was patched")
    if not isinstance(forward, Forward) or forward.passing_on:
        return None
    call = describe(*args, **kwargs)
    layer, reason = forward.route(call, options)
    if reason is not None:
        forward.run.report.leave_alone(reason, layer, call, forward.step)
        return None
    watched = forward.watched(call, layer)
    return _Plan(forward, call, layer, watched, forward.run.guard.due(watched, forward.step.index))


def _open(box, plan: _Plan) -> torch.Tensor:
    return box.peek() if plan.measured else box.take()


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


def _run(plan: _Plan, qkv: list[torch.Tensor], func=None) -> torch.Tensor | None:
    """One accelerated call; None when it is too inexact on every rung, and stock attention has to take it.

    Empties `qkv`, so that attend() holds the last references, unless the call is measured. func: the attention function
    that ComfyUI chose; None for its default.
    """
    forward, call, layer = plan.forward, plan.call, plan.layer
    run, step = forward.run, forward.step
    keys, ladder = forward.rows(call, layer), run.ladder(call)
    planned, grouping = run.session.plan(keys, step)
    action = planned
    watch = Stopwatch(call.device)

    def attempt(rung: int, qkv: list[torch.Tensor]) -> tuple[torch.Tensor, Grouping | None]:
        nonlocal action, grouping
        watch.lap("guard")
        with outside_allocation_graph():
            out, left_behind = attend(
                qkv.pop(0), qkv.pop(0), qkv.pop(0),
                numerics=ladder[rung].numerics, action=action, grouping=grouping, backend=ladder[rung].backend,
                lap=watch.lap,
            )  # fmt: skip
        if action in RENEWING and left_behind is not None:
            run.session.keep(keys, left_behind, step)
            action, grouping = Action.REUSE, left_behind  # what a second attempt finds
        return out, grouping

    out = run.guard.call(plan.watched, step.index, qkv, attempt, [rung.profile for rung in ladder])
    watch.lap("guard")
    run.report.timed(layer, call, watch, out is not None)
    if plan.measured and call.shape not in run.report.layers.stock:
        run.report.stock(call, *stock.timed(func, call, qkv))
    if out is None:
        run.report.leave_alone(OVER_BUDGET, layer, call, step)
        return None
    ran = ladder[run.guard.rung(plan.watched, step.index)]
    run.report.accelerated(layer, call, step, ran, planned.value)
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
