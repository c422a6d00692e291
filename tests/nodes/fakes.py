"""Small models of ComfyUI's own machinery, in its 0.3.75 and its 0.38 behaviour: copying, wrappers, attention calls.

Restated from what the two versions do, so that the decisions of nodes/ can be tested without a server. tests/comfy runs
the same code in a real one.
"""

from __future__ import annotations

import copy
from types import SimpleNamespace

import torch

VERSIONS = ("0.3.75", "0.38")


def copy_nested(options: dict) -> dict:
    """Dictionaries are copied at every depth, lists at one, everything else is shared (how 0.38 copies options)."""
    return {
        key: copy_nested(value) if isinstance(value, dict) else value[:] if isinstance(value, list) else value
        for key, value in options.items()
    }


class Patcher:
    """A model with options and wrappers."""

    def __init__(self, model, version: str = "0.3.75", window_sigma=lambda percent: 1.0 - percent) -> None:
        self.model = model
        self.version = version
        self.model_options = {"transformer_options": {}}
        self.wrappers: dict = {}
        self.sampling = SimpleNamespace(percent_to_sigma=window_sigma)

    def clone(self) -> Patcher:
        other = Patcher(self.model, self.version)
        other.sampling = self.sampling
        copier = copy.deepcopy if self.version == "0.3.75" else copy_nested
        other.model_options = copier(self.model_options)
        other.wrappers = {kind: {key: fs[:] for key, fs in keys.items()} for kind, keys in self.wrappers.items()}
        return other

    def add_wrapper_with_key(self, kind, key, wrapper) -> None:
        self.wrappers.setdefault(kind, {}).setdefault(key, []).append(wrapper)

    def remove_wrappers_with_key(self, kind, key) -> None:
        self.wrappers.get(kind, {}).pop(key, None)

    def get_model_object(self, name):
        assert name == "model_sampling"
        return self.sampling


class Executor:
    """Calls the wrappers of one kind, outermost first, then the function."""

    def __init__(self, function, class_obj, wrappers) -> None:
        self.function, self.class_obj, self.wrappers = function, class_obj, list(wrappers)

    def __call__(self, *args, **kwargs):
        if not self.wrappers:
            return self.function(*args, **kwargs)
        return self.wrappers[0](Executor(self.function, self.class_obj, self.wrappers[1:]), *args, **kwargs)


def sample(patcher: Patcher, sigmas: list[float], evaluate, schedule=None):
    """One sampling run. `evaluate(x, sigma, options)` is the diffusion model; `schedule` lists (sigma, extra options)
    of the calls, one per sigma but the last by default. Returns what evaluate returned, in order."""
    guider = SimpleNamespace(model_patcher=patcher, model_options=copy_nested(patcher.model_options))
    calls = [(s, {}) for s in sigmas[:-1]] if schedule is None else schedule
    base = SimpleNamespace(diffusion_model=patcher.model)

    def wrappers(kind):
        return [w for fs in patcher.wrappers.get(kind, {}).values() for w in fs]

    def inner(*_):
        options = copy_nested(guider.model_options)["transformer_options"]
        options["sample_sigmas"] = torch.tensor(sigmas)
        results = []
        for sigma, extra in calls:
            now = {"uuids": ["cond"], **copy_nested(options), "sigmas": torch.tensor([sigma]), **extra}

            def run(x, t, c_concat, c_crossattn, control, transformer_options):
                return evaluate(x, float(t[0]), transformer_options)

            x = torch.zeros(1)
            executor = Executor(run, base, wrappers("apply_model"))
            results.append(executor(x, torch.tensor([sigma]), None, extra.get("context"), None, now))
        return results

    return Executor(inner, guider, wrappers("outer_sample"))("noise", "latent", "sampler", torch.tensor(sigmas))


class Box:
    """The container that models of 0.38 put q, k and v in."""

    def __init__(self, tensor) -> None:
        self.tensor = tensor

    def peek(self):
        assert self.tensor is not None, "taken twice"
        return self.tensor

    def take(self):
        tensor, self.tensor = self.peek(), None
        return tensor


def stock(q, k, v, heads, mask=None, attn_precision=None, skip_reshape=False, skip_output_reshape=False, **kwargs):
    """ComfyUI's attention as torch computes it."""
    if not skip_reshape:
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))
    scale = kwargs.get("scale")
    gqa = bool(kwargs.get("enable_gqa", False))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=gqa)
    return out if skip_output_reshape else out.transpose(1, 2).flatten(2)


class Attention:
    """ComfyUI's wrapped attention function; `calls` counts what reaches the stock backend."""

    def __init__(self, version: str = "0.3.75") -> None:
        self.version = version
        self.calls = 0

    def backend(self, *args, **kwargs):
        self.calls += 1
        return stock(*args, **kwargs)

    def __call__(self, *args, **kwargs):
        boxed = isinstance(args[0], Box)
        assert not boxed or self.version == "0.38"
        options = kwargs.get("transformer_options")
        if "_inside_attn_wrapper" not in kwargs:
            kwargs["_inside_attn_wrapper"] = True
            override = (options or {}).get("optimized_attention_override")
            if override is not None:
                if boxed and hasattr(override, "container_function"):
                    return override.container_function(*args, **kwargs)
                args = tuple(a.take() if isinstance(a, Box) else a for a in args)
                return override(self.backend, *args, **kwargs)
        args = tuple(a.take() if isinstance(a, Box) else a for a in args)
        return self.backend(*args, **kwargs)
