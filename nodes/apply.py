"""Putting VC-Attention on a model, the way ComfyUI means patches to be put: on a clone, in its options."""

from __future__ import annotations

from comfy.patcher_extension import WrappersMP

from .override import make_override
from .run import KEY, apply_model, outer_sample_wrapper
from .settings import Settings

OVERRIDE = "optimized_attention_override"


def patched(model, chosen: Settings, node_id: str | None):
    """A clone of ComfyUI's ModelPatcher `model` with the override and the run wrappers on it.

    A second patch replaces the first; an override of another node stays underneath and gets the calls that are not
    ours.
    """
    clone = model.clone()
    options = clone.model_options["transformer_options"]
    previous = options.get(OVERRIDE)
    previous = getattr(previous, "vc_attention_previous", previous)
    options[OVERRIDE] = make_override(previous)
    for kind, wrapper in (
        (WrappersMP.OUTER_SAMPLE, outer_sample_wrapper(chosen, node_id)),
        (WrappersMP.APPLY_MODEL, apply_model),
    ):
        clone.remove_wrappers_with_key(kind, KEY)
        clone.add_wrapper_with_key(kind, KEY, wrapper)
    return clone
