"""What a run will be like, before it is queued: tokens, speed and memory, from the graph around a patch node.

Speed is taken from this machine's own last run of such a length; before there was one, from the measurements of
tests/bench/results/attention.md where the GPU is of that kind. Everything else is counted.
"""

from __future__ import annotations

from collections.abc import Callable

from ..vc_attention.config import Numerics
from ..vc_attention.reference.grouping import cluster_count
from . import history, kernels
from .model_file import HEAD_DIM, ModelShape
from .settings import settings

# Kernel -> {tokens: how many times as fast as PyTorch's attention a complete call was on an H200}, from
# tests/bench/results/attention.md: against cuDNN, which is what PyTorch takes there. A call counts as the longest one
# that is no longer than it.
MEASURED = {
    "attention_sm90_expcast": {75600: 2.14, 37440: 2.05, 16384: 1.63},
    "attention_sm90_u8": {75600: 1.61, 37440: 1.56, 16384: 1.27},
}
LOADERS = ("unet_name", "ckpt_name", "model")  # widgets with a model's file; the last is WanVideoWrapper's
LATENTS = ("latent_image", "image_embeds", "samples", "latent", "video_latent")
SAMPLES = {"latent_image", "image_embeds"}  # what samplers take
ALIKE = 2.0  # a run counts as alike when its calls are at most so many times longer or shorter


class Unknown(Exception):
    """The graph does not say; the message is the name of the reason in locales/*/main.json."""


def forecast(prompt: dict, node: str, shape_of: Callable[[str, str], ModelShape | None], device) -> dict:
    """The forecast for patch node `node` of an API-format prompt.

    tokens of a self-attention call; reason: why stock attention will run, or kernel: what will run instead, bytes: GPU
    memory for groups (the low-bit operands of a call fit where the model's other layers had theirs); factor,
    attention_factor: how many times as fast the model and its attention will be, or None, and the source of that: "last
    run" or "H200".
    shape_of: (name of the loader's widget, file) -> shape. Raises Unknown, and ParameterError for impossible widgets.
    """
    widgets = {name: _value(prompt, given) for name, given in prompt[node]["inputs"].items() if name != "model"}
    if not widgets.pop("enabled", True):
        raise Unknown("off")
    chosen = settings(**widgets)
    shape = _model(prompt, node, shape_of)
    sampler = _sampler(prompt, node)
    tokens = shape.tokens(*_size(prompt, sampler))
    conditions = 1 if _number(prompt, sampler["inputs"].get("cfg", 1.0)) == 1.0 else 2
    found = {"tokens": tokens, "reason": None, "kernel": None, "factor": None, "attention_factor": None, "source": None}
    if tokens < chosen.min_tokens:
        return {**found, "reason": f"fewer than {chosen.min_tokens} tokens"}
    choice = kernels.choose(chosen, HEAD_DIM, device, tokens)
    if choice.reason:
        return {**found, "reason": choice.reason}
    found |= {"kernel": choice.name, "bytes": conditions * shape.layers * state_bytes(shape, tokens, choice.numerics)}
    if choice.backend == "cuda":
        found["attention_factor"], found["source"] = _attention_factor(str(chosen), choice.name, tokens)
        if found["attention_factor"]:
            found["factor"] = whole_factor(shape, tokens, found["attention_factor"])
    return found


def state_bytes(shape: ModelShape, tokens: int, numerics: Numerics) -> int:
    """Bytes of one layer's grouping of one condition: `Grouping` of vc_attention/config.py."""
    clusters = cluster_count(tokens, numerics)
    return shape.heads * (4 * tokens + clusters * (HEAD_DIM + 4) + 4)


def whole_factor(shape: ModelShape, tokens: int, attention_factor: float) -> float:
    """How many times as fast the model is, by the share that attention has of its multiplications."""
    attention = 4 * tokens * tokens * shape.heads * HEAD_DIM * shape.layers
    share = attention / (attention + 2 * tokens * shape.weights)
    return 1 / (1 - share + share / attention_factor)


def _attention_factor(profile: str, kernel: str, tokens: int) -> tuple[float | None, str | None]:
    for run in reversed(history.all_runs()):
        report, time = run["report"], run["report"]["time"]
        lengths = [layer["seqlen"] for layer in report["layers"]]
        spent = sum(time[part] or 0.0 for part in ("grouping", "preparation", "attention", "guard"))
        alike = lengths and max(lengths) <= ALIKE * tokens and tokens <= ALIKE * max(lengths)
        if alike and report["profile"] == profile and time["saved"] is not None and spent:
            return (spent + time["saved"]) / spent, "last run"
    factors = [factor for length, factor in MEASURED.get(kernel, {}).items() if length <= tokens]
    return (factors[0], "H200") if factors else (None, None)


def _model(prompt: dict, node: str, shape_of) -> ModelShape:
    """The shape of the model that reaches `node`, through any nodes that pass a model on."""
    for _ in prompt:  # as many wires as a chain can have: wires may also run in a circle
        link = prompt[node]["inputs"].get("model")
        node = link[0] if isinstance(link, list) else node
    for widget in LOADERS:
        name = prompt[node]["inputs"].get(widget)
        if isinstance(name, str):
            shape = shape_of(widget, name)
            if shape is None:
                raise Unknown("model")
            return shape
    raise Unknown("loader")


def _sampler(prompt: dict, node: str) -> dict:
    """The first node after `node` that samples."""
    waiting, seen = [node], {node}
    while waiting:
        source = waiting.pop(0)
        for other, entry in prompt.items():
            links = [value for value in entry["inputs"].values() if isinstance(value, list)]
            if other not in seen and any(link[0] == source for link in links):
                if SAMPLES & set(entry["inputs"]):
                    return _with_guider(prompt, entry)
                seen.add(other)
                waiting.append(other)
    raise Unknown("sampler")


def _with_guider(prompt: dict, sampler: dict) -> dict:
    """The sampler with the cfg of its guider, where it has one."""
    guider = sampler["inputs"].get("guider")
    return {"inputs": {**prompt[guider[0]]["inputs"], **sampler["inputs"]}} if guider else sampler


def _size(prompt: dict, sampler: dict) -> tuple[int, int, int]:
    """(width, height, frames) in pixels of the latent that a sampler starts from."""
    entry = sampler
    for _ in prompt:
        if {"width", "height"} <= set(entry["inputs"]):
            break
        link = next((entry["inputs"][name] for name in LATENTS if isinstance(entry["inputs"].get(name), list)), None)
        if link is None:
            raise Unknown("size")
        entry = prompt[link[0]]
    else:  # a circle
        raise Unknown("size")
    inputs = {"length": entry["inputs"].get("num_frames", 1), **entry["inputs"]}
    width, height, length = (_number(prompt, inputs[name]) for name in ("width", "height", "length"))
    return int(width), int(height), int(length)


def _number(prompt: dict, given) -> float:
    value = _value(prompt, given)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Unknown("computed")
    return value


def _value(prompt: dict, given):
    """A widget's value, also where a node that holds a value feeds it."""
    if not isinstance(given, list):
        return given
    held = prompt[given[0]]["inputs"].get("value")
    if held is None or isinstance(held, list):
        raise Unknown("computed")
    return held
