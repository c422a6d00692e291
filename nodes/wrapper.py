"""Models of ComfyUI-WanVideoWrapper (LongCat-Video, Wan), which ComfyUI's attention override never reaches.

That pack samples by itself and calls an attention function of its own. Two hooks bring its calls to ours: one on the
model, which gives every model call its Forward, and one around the attention function that the model's module holds.
They are set once, found through the loaded model, and do nothing for models without the key that the node sets.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections import Counter
from dataclasses import replace

import torch

from ..vc_attention.errors import ParameterError
from ..vc_attention.schedule import Step
from .models import WRAPPER
from .override import make_override
from .report import show
from .run import KEY, Forward, Run
from .settings import Settings

# Modes of that pack that compute plain attention; its other modes compute something else.
DENSE = {
    "sdpa", "flash_attn_2", "flash_attn_3", "sageattn", "sageattn_3", "sageattn_compiled", "comfy",
}  # fmt: skip
LONGCAT_CHANNELS = 4096
HOOKED = "vc_attention_hooked"

_override = make_override()


def patched(model, chosen: Settings, node_id: str | None):
    """A clone of the wrapper's ModelPatcher `model` whose self-attention runs here. Raises ParameterError for a model
    that is not the wrapper's."""
    network = model.model.diffusion_model
    _hook(network)
    clone = model.clone()
    clone.model_options.setdefault("transformer_options", {})[KEY] = Ticket(chosen, node_id)
    return clone


class Ticket:
    """What the node leaves in a model's options. Every sampling run copies the options deeply, and so has one of its
    own, which opens a Run at the first model call. The run ends with the ticket: nothing else marks the end."""

    def __init__(self, settings: Settings, node_id: str | None) -> None:
        self.settings, self.node_id = settings, node_id
        self._run: Run | None = None
        self._end = None
        self._last = 0
        self._calls: Counter = Counter()  # (step, condition) -> model calls
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict) -> Ticket:
        return Ticket(self.settings, self.node_id)

    def forward(self, network, options: dict, call: dict) -> Forward:
        """The Forward of a model call with the arguments `call`.

        The grouping window is a share of this sampler's own steps: the wrapper does not tell of another's. Several
        calls of one step and condition are context windows or further conditions, told apart by their order.
        """
        index, condition = call.get("current_step", 0), "uncond" if call.get("is_uncond") else "cond"
        step = Step(index, call.get("current_step_percentage", 0.0) < self.settings.schedule.window)
        with self._lock:
            run = self._open(index)
            again = self._calls[index, condition]
            self._calls[index, condition] += 1
        run.report.stopped_early = not call.get("last_step")
        run.fit_memory(call["x"][0].device)
        name = "LongCat-Video" if getattr(network, "dim", 0) == LONGCAT_CHANNELS else "Wan"
        row = replace(WRAPPER, name=f"{name} ({WRAPPER.name})")
        run.report.forward(row.name, row.tokens, step, float(call["t"].max()) / 1000)
        if share := call.get("current_step_percentage"):
            run.tell_progress(step, round(index / share))
        told = {**options, "uuids": [condition], "context_window": again}
        return Forward(run, step, row, network, told, None)

    def _open(self, index: int) -> Run:
        if self._run is None or index < self._last:  # steps that start over are another run
            if self._end:
                self._end()
            self._run, self._calls = Run(self.settings, 0.0, self.node_id), Counter()
            self._end = weakref.finalize(self, _end, self._run, self.node_id)
            self._end.atexit = False
        self._last = index
        return self._run


def _end(run: Run, node_id: str | None) -> None:
    run.close()
    show(run.report, node_id)


def _hook(network) -> None:
    """Set both hooks, unless an earlier node did."""
    try:
        block = network.blocks[0]
        layer = type(getattr(block, "_orig_mod", block).self_attn)
        module = sys.modules[layer.__module__]
        original = module.attention
    except (AttributeError, IndexError, KeyError, TypeError) as reason:
        rule = "a model of WanVideoModelLoader with self-attention blocks"
        raise ParameterError("model", rule, type(network).__name__, "use VC-Attention Patch for others") from reason
    # Versions of that pack that do not hand on the model's options would never come here, and say nothing.
    if "transformer_options" not in inspect.signature(layer.forward).parameters:
        rule = "a model of a ComfyUI-WanVideoWrapper that hands its options to self-attention"
        raise ParameterError("model", rule, type(network).__name__, "update ComfyUI-WanVideoWrapper")
    if not hasattr(original, HOOKED):
        module.attention = _attention(original)
    if not hasattr(network, HOOKED):
        setattr(network, HOOKED, network.register_forward_pre_hook(_before_model_call, with_kwargs=True))


@torch.compiler.disable
def _before_model_call(network, args, kwargs):
    options = kwargs.get("transformer_options") or {}
    ticket = options.get(KEY)
    if not isinstance(ticket, Ticket):
        return None
    call = {**dict(zip(("x", "t"), args, strict=False)), **kwargs}
    return args, {**kwargs, "transformer_options": {**options, KEY: ticket.forward(network, options, call)}}


def _attention(original):
    """The wrapper's attention function, whose self-attention calls carry the model's options."""

    def attention(q, k, v, *args, **kwargs):
        if isinstance((kwargs.get("transformer_options") or {}).get(KEY), Forward):
            return ours(q, k, v, *args, **kwargs)
        return original(q, k, v, *args, **kwargs)

    @torch.compiler.disable
    def ours(q, k, v, *args, transformer_options, **kwargs):
        """q `[B, Nq, H, D]`, k and v `[B, Nk, H, D]`; out as q."""

        def stock(q, k, v, *_, **__):
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            return original(q, k, v, *args, transformer_options=transformer_options, **kwargs).flatten(2)

        mode = kwargs.get("attention_mode", "sdpa")
        heads = q.shape[2]
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        if mode not in DENSE:
            transformer_options[KEY].run.report.leave_alone(f"attention mode {mode}")
            return stock(q, k, v).unflatten(-1, (heads, -1))
        out = _override(stock, q, k, v, heads, skip_reshape=True, transformer_options=transformer_options)
        return out.unflatten(-1, (heads, -1))

    setattr(attention, HOOKED, True)
    return attention
