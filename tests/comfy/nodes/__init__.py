"""Probes for the tests: nodes and routes that write down what happens inside a real ComfyUI server.

Linked into the test server's custom_nodes beside the pack; never part of what an artist installs.
"""

import gc
import sys

import comfy.ldm.modules.attention
import torch
from aiohttp import web
from comfy.patcher_extension import WrappersMP
from server import PromptServer

torch.set_num_threads(1)  # these tensors are far too small to share; waiting for each other costs more

KEY = "vc_probe"
LOG = {"forwards": [], "attends": 0, "errors": [], "overrides": 0, "options": []}


def _pack(name):
    """The pack's module nodes.<name>, if anything has loaded it."""
    return next((m for key, m in sys.modules.items() if key.endswith(f"vc-attention.nodes.{name}")), None)


def _spy():
    """Count calls of attend() and write each one's action into the forward it belongs to."""
    override = _pack("override")
    if override is None or hasattr(override.attend, "spied"):
        return
    attend = override.attend

    def spied(q, k, v, *, action, **rest):
        LOG["attends"] += 1
        if LOG["forwards"]:
            LOG["forwards"][-1]["actions"].append(action.value)
        out, grouping = attend(q, k, v, action=action, **rest)
        exact = torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double())
        LOG["errors"].append(float((out.double() - exact).norm() / exact.norm()))
        return out, grouping

    spied.spied = True
    override.attend = spied


def _describe(value):
    """Data for a deep comparison: dictionaries and lists by content, everything else by identity."""
    if isinstance(value, dict):
        return {str(key): _describe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_describe(item) for item in value]
    return value if isinstance(value, (int, float, str, bool, type(None))) else f"{type(value).__name__} {id(value)}"


def _live():
    """Objects of a sampling run that are still alive."""
    gc.collect()
    kinds = ("Run", "Forward", "Session", "Grouping")
    counts = dict.fromkeys(kinds, 0)
    for thing in gc.get_objects():
        kind = type(thing).__name__
        if kind in counts and "vc-attention" in type(thing).__module__:
            counts[kind] += 1
    return counts


def _identities():
    """Attention functions that a pack could have replaced."""
    attention = comfy.ldm.modules.attention
    names = [name for name in vars(attention) if "attention" in name and callable(getattr(attention, name))]
    found = {name: id(getattr(attention, name)) for name in names}
    return found | {"sdpa": id(torch.nn.functional.scaled_dot_product_attention)}


@PromptServer.instance.routes.get("/vc_probe")
async def _get(request):
    return web.json_response({**LOG, "live": _live(), "identities": _identities()})


@PromptServer.instance.routes.post("/vc_probe/reset")
async def _post(request):
    LOG.update(forwards=[], attends=0, errors=[], overrides=0, options=[])
    _spy()
    return web.json_response({})


class ProbeModel:
    """Writes down every call of the diffusion model: sigma, the sampler's sigmas, the callbacks so far, our step."""

    CATEGORY = "vc_attention/tests"
    FUNCTION = "probe"
    RETURN_TYPES = ("MODEL",)
    INPUT_TYPES = classmethod(lambda cls: {"required": {"model": ("MODEL",)}})

    def probe(self, model):
        clone = model.clone()
        callbacks = [0]

        def outer_sample(executor, *args, **kwargs):
            callbacks[0] = 0
            args = list(args)
            original = args[5]

            def callback(*values):
                callbacks[0] += 1
                return original(*values) if original else None

            args[5] = callback
            return executor(*args, **kwargs)

        def apply_model(executor, x, t, c_concat, c_crossattn, control, options, **kwargs):
            forward = options.get("vc_attention")
            step = getattr(forward, "step", None)
            LOG["forwards"].append({
                "sigma": float(options["sigmas"][0]),
                "sample_sigmas": options["sample_sigmas"].tolist(),
                "callbacks": callbacks[0],
                "conditions": options["cond_or_uncond"],
                "index": step and step.index,
                "in_window": step and step.in_window,
                "window": options["context_window"].index_list if "context_window" in options else None,
                "actions": [],
            })  # fmt: skip
            return executor(x, t, c_concat, c_crossattn, control, options, **kwargs)

        clone.add_wrapper_with_key(WrappersMP.OUTER_SAMPLE, KEY, outer_sample)
        clone.add_wrapper_with_key(WrappersMP.APPLY_MODEL, KEY, apply_model)
        return (clone,)


class PlantBadLayer:
    """Makes a few channels of K (and of Q) of one of Wan's blocks larger, as a LoRA would change the weights."""

    CATEGORY = "vc_attention/tests"
    FUNCTION = "plant"
    RETURN_TYPES = ("MODEL",)
    IS_CHANGED = classmethod(lambda cls, **_: float("nan"))  # nothing that uses it is ever answered from a cache
    INPUT_TYPES = classmethod(
        lambda cls: {
            "required": {"model": ("MODEL",), "block": ("INT", {}), "k_gain": ("FLOAT", {}), "q_gain": ("FLOAT", {})}
        }
    )

    def plant(self, model, block, k_gain, q_gain):
        clone = model.clone()
        for norm, gain in (("norm_k", k_gain), ("norm_q", q_gain)):
            key = f"diffusion_model.blocks.{block}.self_attn.{norm}.weight"
            patched = clone.backup.get(key)  # an earlier prompt's change may still be in the weights
            weight = clone.model.state_dict()[key] if patched is None else patched.weight
            change = torch.zeros_like(weight)
            change[::37] = (gain - 1.0) * weight[::37]
            clone.add_patches({key: ("diff", (change,))}, 1.0)
        return (clone,)


class ProbeOptions:
    """Writes down the model's options and wrappers once `after` has been computed."""

    CATEGORY = "vc_attention/tests"
    FUNCTION = "probe"
    RETURN_TYPES = ()
    OUTPUT_NODE = True
    INPUT_TYPES = classmethod(
        lambda cls: {"required": {"model": ("MODEL",), "tag": ("INT", {})}, "optional": {"after": ("LATENT",)}}
    )

    def probe(self, model, tag, after=None):
        LOG["options"].append(_describe({"options": model.model_options, "wrappers": model.wrappers}))
        return {}


class ProbeOverride:
    """Another node pack's attention override: it passes everything on, to the override under it if it chains."""

    CATEGORY = "vc_attention/tests"
    FUNCTION = "probe"
    RETURN_TYPES = ("MODEL",)
    INPUT_TYPES = classmethod(lambda cls: {"required": {"model": ("MODEL",), "chains": ("BOOLEAN", {})}})

    def probe(self, model, chains):
        clone = model.clone()
        options = clone.model_options["transformer_options"]
        under = options.get("optimized_attention_override") if chains else None

        def override(func, *args, **kwargs):
            LOG["overrides"] += 1
            return under(func, *args, **kwargs) if under else func(*args, **kwargs)

        options["optimized_attention_override"] = override
        return (clone,)


NODE_CLASS_MAPPINGS = {node.__name__: node for node in (PlantBadLayer, ProbeModel, ProbeOptions, ProbeOverride)}
