"""The life of a sampling run: opened before the first step, closed after the last one or an interruption.

Two wrappers around ComfyUI's own functions carry it. `outer_sample` puts one Run into the options of this run alone
(the guider has copied them by then); `apply_model` puts one Forward into the options of each call of the diffusion
model. The attention override finds the Forward there. Nothing is kept on the node, the model or the module, so clones,
two branches of one model and several GPUs cannot meet each other's state.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable

import torch

from ..vc_attention.guard import BUDGETS, Guard
from ..vc_attention.schedule import Step, locate
from ..vc_attention.session import RowKey, Session
from . import kernels
from .compat import executing_node, free_bytes
from .events import Progress
from .layers import Layer
from .models import GENERIC, ModelRow, row_for
from .report import OVER_BUDGET, Report, show
from .routing import Call, why_not_dense
from .settings import Settings

KEY = "vc_attention"
# Share of the memory that is free at a run's first model call which grouping state may take: ComfyUI has made room for
# activations by then and does not know of the state.
STATE_SHARE = 4
SENSITIVE = "sensitive block of this model"


class Run:
    """One sampling run of one patched model."""

    def __init__(self, settings: Settings, window_sigma: float, node_id: str | None = None) -> None:
        self.settings = settings
        self.progress = Progress(node_id)
        self.window_sigma = window_sigma
        self.session = Session(settings.schedule)
        self.report = Report(str(settings), settings.error_budget)
        self.report.sampler = executing_node()
        self.guard = Guard(BUDGETS[settings.error_budget], self.report.measured)
        self._sigmas: tuple[torch.Tensor | None, list[float]] = (None, [])
        self._kernels: dict[Hashable, tuple[kernels.Choice, ...]] = {}
        self._fitted: set[torch.device] = set()
        self._lock = threading.Lock()

    def __deepcopy__(self, memo: dict) -> Run:
        return self  # copies of the options still belong to this run

    def sigmas(self, sample_sigmas: torch.Tensor) -> list[float]:
        """The running sampler's sigmas as numbers, read from the device once."""
        with self._lock:
            if self._sigmas[0] is not sample_sigmas:
                self._sigmas = (sample_sigmas, sample_sigmas.tolist())
            return self._sigmas[1]

    def fit_memory(self, device: torch.device) -> None:
        """Bound the grouping state by what is free on `device`, at the first model call there."""
        with self._lock:
            if device in self._fitted:
                return
            self._fitted.add(device)
            free = free_bytes(device)
            if free is not None:
                self.session.budget = min(self.session.budget, free // STATE_SHARE)

    def ladder(self, call: Call) -> tuple[kernels.Choice, ...]:
        """What may run calls of this length, head size and device, decided once per run; `guard` chooses among them."""
        key = (call.device, call.q[3], call.k[2])
        with self._lock:
            if key not in self._kernels:
                self._kernels[key] = kernels.ladder(self.settings, call.q[3], call.device, call.k[2])
                # Worth a notice is what no other length of clip would change.
                if self._kernels[key][0].reason and (
                    always := kernels.choose(self.settings, call.q[3], call.device).reason
                ):
                    self.progress.notice(always)
            return self._kernels[key]

    def tell_progress(self, step: Step, steps: int) -> None:
        """Tell the browser that a model call of `step`, one of `steps`, is about to be made."""
        self.progress.tell({**self.report.progress(), "step": step.index + 1, "steps": steps})

    def close(self) -> None:
        """Free the grouping state and finish the report."""
        session, report = self.session, self.report
        self.guard.close()
        report.layers.read(waiting=True)
        report.state_bytes, report.rows_evicted, report.rows_unkept = (
            session.peak_nbytes,
            session.evicted,
            session.unkept,
        )
        session.close()


class Forward:
    """One call of the diffusion model within a run: its step, and whose rows its batch holds.

    conditions: one id per chunk of the batch, in order. window: id of the context window, or None. passing_on: whether
    a call of this forward is with the override underneath.
    """

    def __init__(self, run: Run, step: Step, model: ModelRow, transformer: object, options: dict, text_length) -> None:
        self.run = run
        self.step = step
        self.model = model
        self.transformer = transformer
        self.text_length = text_length
        self.conditions = _distinct(options.get("uuids") or ())
        window = options.get("context_window")
        frames = getattr(window, "index_list", None)
        if frames is not None:
            window = (getattr(window, "dim", None), str(frames))
        self.window = window if isinstance(window, Hashable) else str(window)  # other packs may put lists there
        self.passing_on = False
        self._ordinals: Counter[Hashable] = Counter()

    def __deepcopy__(self, memo: dict) -> Forward:
        return self

    def route(self, call: Call, options: dict) -> tuple[Layer | None, str | None]:
        """(layer, reason): the self-attention layer that calls, and why stock attention takes the call, or None."""
        reason = why_not_dense(call, self.text_length, self.model.text_calls, self.model.fewer_queries)
        if reason:
            return None, reason
        place = (options.get("block_type"), options.get("block_index"))
        ordinal = self._ordinals[place, call.q]
        self._ordinals[place, call.q] += 1
        layer = Layer(*place, ordinal, self.model.block_number(*place, ordinal, self.transformer))
        return layer, self._why_not(call, layer)

    def _why_not(self, call: Call, layer: Layer) -> str | None:
        """Why stock attention takes a dense call of `layer`, or None."""
        run = self.run
        if call.q[2] < run.settings.min_tokens:
            return f"fewer than {run.settings.min_tokens} tokens"
        if layer.number in run.settings.blocks_left_alone:
            return "block left alone"
        if not run.settings.blocks_left_alone and layer.number in self.model.sensitive_blocks(self.transformer):
            return SENSITIVE
        ladder = run.ladder(call)
        if ladder[0].reason is None and run.guard.rung(self.watched(call, layer), self.step.index) == len(ladder):
            return OVER_BUDGET
        return ladder[0].reason

    def watched(self, call: Call, layer: Layer) -> tuple[Layer, tuple[int, ...], str]:
        """What the guard calls a layer: the same layer may see other lengths, and several devices may run it."""
        return layer, call.shape, str(call.device)

    def rows(self, call: Call, layer: Layer) -> list[RowKey]:
        """Whose grouping each batch row of `call` uses."""
        batch, chunks = call.q[0], len(self.conditions)
        per_chunk = batch // chunks if chunks and batch % chunks == 0 else 0
        keys = []
        for row in range(batch):
            # A model that folds something else into its batch has rows that no condition owns alone.
            condition, row = divmod(row, per_chunk) if per_chunk else (None, row)
            owner = self.conditions if condition is None else self.conditions[condition]
            keys.append(RowKey(layer, owner, row, self.window, call.shape, str(call.device)))
        return keys


def outer_sample_wrapper(settings: Settings, node_id: str | None):
    """A wrapper for ComfyUI's OUTER_SAMPLE that gives the run its state and reports when it ends."""

    def outer_sample(executor, *args, **kwargs):
        guider = executor.class_obj
        sampling = guider.model_patcher.get_model_object("model_sampling")
        run = Run(settings, float(sampling.percent_to_sigma(settings.schedule.window)), node_id)
        options = guider.model_options["transformer_options"]
        options[KEY] = run
        run.report.stopped_early = True
        try:
            result = executor(*args, **kwargs)
            run.report.stopped_early = False
            return result
        finally:
            options.pop(KEY, None)
            run.close()
            show(run.report, node_id)

    return outer_sample


def apply_model(executor, x, t, c_concat=None, c_crossattn=None, control=None, transformer_options=None, **kwargs):
    """A wrapper for ComfyUI's APPLY_MODEL that gives each call of the diffusion model its Forward.

    The sigma is read here, once: reading it from the device is a synchronisation, and there are tens of layers.
    """
    options = transformer_options or {}
    run = options.get(KEY)
    schedule = options.get("sample_sigmas")  # absent where something other than a sampler evaluates the model
    if isinstance(run, Run) and schedule is not None:
        sigma = float((options["sigmas"] if "sigmas" in options else t).flatten()[0])
        step = locate(sigma, run.sigmas(schedule), run.window_sigma)
        transformer = getattr(executor.class_obj, "diffusion_model", None)
        model = row_for(transformer) if transformer is not None else GENERIC
        text_length = None if c_crossattn is None else c_crossattn.shape[1]
        run.fit_memory(x.device)
        run.report.forward(model.name, model.tokens, step, sigma)
        run.tell_progress(step, len(run.sigmas(schedule)) - 1)
        options = {**options, KEY: Forward(run, step, model, transformer, options, text_length)}
    return executor(x, t, c_concat, c_crossattn, control, options, **kwargs)


def _distinct(uuids) -> tuple[Hashable, ...]:
    """The ids of the chunks, told apart where one condition fills several chunks."""
    seen: Counter[Hashable] = Counter()
    ids = []
    for uuid in uuids:
        ids.append((uuid, seen[uuid]))
        seen[uuid] += 1
    return tuple(ids)
