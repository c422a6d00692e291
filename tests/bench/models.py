"""Model calls of ComfyUI's own video models at full size: stock attention beside ours, and what a whole clip takes.

Weights are random, made on the device; ComfyUI's sampler runs the steps. ComfyUI is the one of tools/environment.py
(the variable VC_ATTENTION_ENV names another folder).
"""

from __future__ import annotations

import gc
import importlib.util
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace

import torch

from tests.bench.measure import Subject
from tests.bench.shapes import Shape
from tools import environment, settings
from tools.checkpoints import randomize
from tools.graph import PATCH_DEFAULTS
from vc_attention.schedule import RENEWING, Schedule, Step

UNITS = ("prepare", "group", "attention_sm90_expcast")
STOCK = "stock attention"
BASELINES = (STOCK,)
NOTES = [
    "A row is one call of the whole model for one condition; a step with guidance makes two. `plain` is the default "
    "profile with block means off, to show what they cost: no setting of the node does that.",
    "peak GiB: the most that PyTorch had allocated in a run, weights included.",
    "Random weights: time and memory are the model's, pictures are not, and attention is nearly uniform. The quality "
    "guard measures as by default, within the budget `fast`. rel. L2: a model call's output against stock attention's.",
]


@dataclass(frozen=True)
class Model:
    """config: class in comfy.supported_models; unet: what ComfyUI reads from such a checkpoint; latent: its shape
    without the batch; few: frames of a warm-up, enough for the kernels; text: (tokens, width) of a prompt; clip: the
    shipped workflow whose schedule counts."""

    config: str
    unet: dict
    latent: tuple[int, ...]
    text: tuple[int, int]
    clip: settings.Run
    few: int = 5


MODELS = {
    "Wan2.2": Model(
        "WAN21_T2V",
        dict(
            image_model="wan2.1", model_type="t2v", dim=5120, out_dim=16, num_heads=40, ffn_dim=13824, num_layers=40,
            patch_size=(1, 2, 2), freq_dim=256, window_size=(-1, -1), qk_norm=True, cross_attn_norm=True, eps=1e-6,
            in_dim=16,
        ),
        (16, 21, 90, 160),
        (512, 4096),
        settings.WAN22_T2V,
    ),
    "HunyuanVideo-1.5": Model(
        "HunyuanVideo15",
        dict(
            image_model="hunyuan_video", in_channels=65, patch_size=[1, 1, 1], out_channels=32, vec_in_dim=None,
            axes_dim=[16, 56, 56], meanflow=False, context_in_dim=3584, hidden_size=2048, mlp_ratio=4.0, num_heads=16,
            depth=54, depth_single_blocks=0, theta=256, qkv_bias=True, byt5=True, guidance_embed=False,
            use_cond_type_embedding=True, vision_in_dim=1152,
        ),
        (32, 31, 45, 80),
        (256, 3584),
        settings.HUNYUAN15_T2V,
    ),
}  # fmt: skip


def pack(module: str):
    """A module of this repository, loaded as ComfyUI loads the pack."""
    name = "vc_attention_pack"
    if name not in sys.modules:
        where = {"submodule_search_locations": [str(environment.ROOT)]}
        spec = importlib.util.spec_from_file_location(name, environment.ROOT / "__init__.py", **where)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return importlib.import_module(f"{name}.{module}")


def add_comfyui() -> None:
    """Make ComfyUI importable, which is run in place and never installed."""
    if str(environment.COMFYUI) not in sys.path:
        sys.path.insert(0, str(environment.COMFYUI))


def load(model: Model, device: str, dtype: torch.dtype):
    """ComfyUI's ModelPatcher around the model with random weights."""
    add_comfyui()
    import comfy.model_patcher
    import comfy.supported_models

    config = getattr(comfy.supported_models, model.config)(model.unet)
    config.set_inference_dtype(dtype, None)
    network = config.get_model({}, device=device)
    randomize(network.diffusion_model.to(device), seed=1)
    return comfy.model_patcher.ModelPatcher(network, torch.device(device), torch.device("cpu"))


@dataclass
class Recorder:
    """Outermost wrapper of a run's model calls. calls: (grouping action or STOCK, ms); report: of a patched run; first:
    output of the first call, which every run computes from the same noise."""

    calls: list[tuple[str, float]]
    report: object = None
    first: torch.Tensor | None = None
    peak_gib: float = 0.0

    def __call__(self, executor, x, t, c_concat, c_crossattn, control, options, **kwargs):
        run = options.get(pack("nodes.run").KEY)
        self.report = run and run.report
        before = Counter(run.report.actions) if run else Counter()
        start = _now(x)
        out = executor(x, t, c_concat, c_crossattn, control, options, **kwargs)
        ms = 1e3 * (_now(x) - start)
        done = Counter(run.report.actions) - before if run else Counter()
        self.calls.append(("+".join(done) or STOCK, ms))
        told = f"{self.calls[-1][0]}: {ms:.0f} ms, {done.total()} attention calls taken over"
        print(told, file=sys.stderr, flush=True)
        self.first = out.float() if self.first is None else self.first
        return out


def _now(x: torch.Tensor) -> float:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
    return time.perf_counter()


def sample(latent: tuple[int, ...], text: tuple[int, int], patcher, steps: int, conditioning=None) -> Recorder:
    """Euler steps for one condition from pure noise; all but the first lie past a grouping window of 0.1.

    latent: shape without the batch. text: (tokens, width) of the prompt. conditioning: more of what nodes add to it.
    """
    import comfy.samplers
    from comfy.patcher_extension import WrappersMP

    patcher, recorder = patcher.clone(), Recorder([])
    inner = patcher.wrappers.get(WrappersMP.APPLY_MODEL, {})
    patcher.wrappers[WrappersMP.APPLY_MODEL] = {"recorder": [recorder], **inner}
    generator = torch.Generator().manual_seed(2)
    noise, prompt = (torch.randn(1, *shape, generator=generator) for shape in (latent, text))
    guider = comfy.samplers.CFGGuider(patcher)
    given = [[prompt, {"pooled_output": torch.zeros(1, 768), **(conditioning or {})}]]
    guider.set_conds(given, given)
    guider.set_cfg(1.0)
    sigmas = torch.cat([torch.ones(1), torch.linspace(0.5, 0.0, steps)])
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    guider.sample(noise, torch.zeros_like(noise), comfy.samplers.sampler_object("euler"), sigmas, seed=0)
    if torch.cuda.is_available():
        recorder.peak_gib = torch.cuda.max_memory_allocated() / 2**30
    return recorder


def one_of_each(chosen):
    """`chosen`, settings of the patch node, with a schedule of four steps: group, reuse, assign, plain."""
    actions = pack("vc_attention.config").Action
    order = (actions.GROUP, actions.REUSE, actions.ASSIGN, actions.PLAIN)

    class Each(type(chosen.schedule)):
        def decide(self, step, last):
            return order[step.index]

    return replace(chosen, schedule=Each())


def measured(shape: Shape, model: Model, device: str, dtype: torch.dtype, **widgets) -> tuple[list[dict], list[str]]:
    """Rows and notes of one model; widgets of the patch node that differ from its defaults."""
    patcher = load(model, device, dtype)
    widgets = {**PATCH_DEFAULTS, "error_budget": "fast", **widgets}
    widgets.pop("enabled")
    patched = pack("nodes.apply").patched(patcher, one_of_each(pack("nodes.settings").settings(**widgets)), None)
    few = (model.latent[0], model.few, *model.latent[2:])
    sample(few, model.text, patcher, 1)
    warm = sample(few, model.text, patched, 1)
    if not warm.report.actions:
        raise SystemExit(f"{shape}: nothing to measure: {warm.report.text()}")
    stock = sample(model.latent, model.text, patcher, 1)
    ours = sample(model.latent, model.text, patched, 4)
    print(ours.report.text(), flush=True)
    error = float((ours.first - stock.first).norm() / stock.first.norm())
    rows = [Subject(STOCK, call=None, times=[stock.calls[0][1]]).row(str(shape)) | {"peak_gib": stock.peak_gib}]
    for action, ms in ours.calls:
        accuracy = {"rel_l2": error} if action == ours.calls[0][0] else {}
        row = Subject(f"ours, {action}", call=None, times=[ms], accuracy=accuracy).row(str(shape))
        rows.append(row | {"peak_gib": ours.peak_gib})
    version = importlib.import_module("comfyui_version").__version__
    calls = sum(ours.report.kernels.values()) // len(ours.calls)
    note = f"{shape}: ComfyUI {version}, {dtype}; {calls} attention calls of a model call taken over"
    return rows, [note, clip(shape, model.clip, rows)]


def clip_actions(run: settings.Run) -> Counter[str]:
    """How often each grouping action comes in a workflow: every expert's sampler counts steps of its own and starts
    cold, the window is a share of all steps."""
    schedule, counts = Schedule(), Counter()
    for expert in run.experts:
        last = None
        for index, step in enumerate(range(expert.start, expert.end)):
            action = schedule.decide(Step(index, step < schedule.window * run.steps), last)
            last = index if action in RENEWING else last
            counts[action.value] += 1
    return counts


def clip(shape: Shape, run: settings.Run, rows: list[dict]) -> str:
    """What sampling the workflow takes, from the measured model calls."""
    ms = {row["name"]: row["ms"]["median"] for row in rows}
    calls, actions = 1 if run.cfg == 1.0 else 2, clip_actions(run)
    stock = calls * actions.total() * ms[STOCK] / 1e3
    ours = calls * sum(count * ms[f"ours, {action}"] for action, count in actions.items()) / 1e3
    taken = ", ".join(f"{count} x {action}" for action, count in actions.items())
    return (
        f"{shape}: sampling `{run.title}` at {run.width}x{run.height}, {run.length} frames ({taken}; {calls} calls a "
        f"step) takes {stock:.0f} s with stock attention, {ours:.0f} s with ours: {stock / ours:.2f} times as fast"
    )


def run(shape: Shape, seconds: float) -> tuple[list[dict], list[str]]:
    """`seconds` asks for nothing here, a step takes what it takes; a shape that no model has gives no rows."""
    if shape.name not in MODELS:
        return [], []
    if not environment.COMFYUI.exists():
        raise SystemExit(f"no ComfyUI in {environment.COMFYUI}: run python tools/demo.py once, which brings one")
    with torch.inference_mode():
        found = measured(shape, MODELS[shape.name], "cuda", torch.bfloat16)
    import comfy.model_management

    comfy.model_management.current_loaded_models.clear()  # unloading would copy the weights to the CPU first
    gc.collect()
    return found
