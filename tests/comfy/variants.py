"""Every variant of the models that ComfyUI 0.3.75 has, on tiny random checkpoints of its own classes.

    python -m tests.comfy.variants        (with ComfyUI's interpreter; prints JSON)

Layers are as many as the real model has, everything else is small. A checkpoint goes through detection as ComfyUI does
it and a short sampling run with the patch; what the patch did in one model call is what comes out.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from tests.bench import models
from tools.checkpoints import randomize
from tools.graph import PATCH_DEFAULTS

FRAMES, SIDE = 5, 10  # latents; 125 tokens where a patch is 2x2
TEXT = 24


@dataclass(frozen=True)
class Variant:
    """name, as artists call it; network: class below comfy.ldm, and its arguments beside the small ones; config: class
    in comfy.supported_models that ComfyUI must detect; channels of the latent; text width; conditioning: more of it."""

    name: str
    network: str
    arguments: dict
    config: str
    channels: int = 16
    text: int = 4096
    conditioning: Callable[[], dict] = field(default=lambda: {})


def _latent(channels: int = 16, frames: int = FRAMES) -> torch.Tensor:
    return torch.randn(1, channels, frames, SIDE, SIDE)


def _camera() -> dict:
    return {"camera_conditions": torch.randn(1, 24, FRAMES, 8 * SIDE, 8 * SIDE)}


class _Seen:
    """What a vision encoder gives."""

    penultimate_hidden_states = torch.randn(1, 257, 1280)
    last_hidden_state = torch.randn(1, 30, 1152)


def _wan(
    name: str, layers: int, config: str, kind="WanModel", where="wan.model", conditioning=None, **arguments
) -> Variant:
    arguments = dict(dim=128, ffn_dim=256, num_heads=1, num_layers=layers, text_dim=4096, **arguments)
    channels = arguments.get("out_dim", 16)
    return Variant(name, f"{where}.{kind}", arguments, config, channels, conditioning=conditioning or (lambda: {}))


def _hunyuan(name: str, config: str, conditioning=None, **arguments) -> Variant:
    given = dict(
        in_channels=65, out_channels=32, vec_in_dim=None, context_in_dim=3584, hidden_size=128, mlp_ratio=4.0,
        num_heads=1, depth=54, depth_single_blocks=0, axes_dim=[16, 56, 56], theta=256, patch_size=[1, 1, 1],
        qkv_bias=True, guidance_embed=False, byt5=True, meanflow=False, use_cond_type_embedding=True,
        vision_in_dim=1152,
    )  # fmt: skip
    given.update(arguments)
    channels, text = given["out_channels"], given["context_in_dim"]
    return Variant(
        name, "hunyuan_video.model.HunyuanVideo", given, config, channels, text, conditioning or (lambda: {})
    )


VARIANTS = (
    _wan("Wan2.1 1.3B, text to video", 30, "WAN21_T2V", in_dim=16),
    _wan("Wan2.1 14B, text to video", 40, "WAN21_T2V", in_dim=16),
    _wan(
        "Wan2.1 14B, image to video", 40, "WAN21_I2V", in_dim=36, model_type="i2v",
        conditioning=lambda: {"clip_vision_output": _Seen()},
    ),
    _wan("Wan2.2 14B, text to video (each expert)", 40, "WAN21_T2V", in_dim=16),
    _wan("Wan2.2 14B, image to video (each expert)", 40, "WAN21_T2V", in_dim=36),
    _wan("Wan2.2 5B, text and image to video", 30, "WAN22_T2V", in_dim=48, out_dim=48),
    _wan(
        "Wan2.1 Fun Control", 40, "WAN21_FunControl2V", in_dim=48, model_type="i2v", in_dim_ref_conv=16,
        conditioning=lambda: {"clip_vision_output": _Seen(), "reference_latents": [_latent(frames=1)]},
    ),
    _wan("Wan2.1 Fun Camera", 40, "WAN21_Camera", "CameraWanModel", in_dim=32, model_type="camera",
         conditioning=lambda: {"clip_vision_output": _Seen(), **_camera()}),
    _wan("Wan2.2 Fun Camera", 40, "WAN22_Camera", "CameraWanModel", in_dim=36, model_type="t2v",
         conditioning=_camera),
    _wan("Wan2.1 VACE 14B", 40, "WAN21_Vace", "VaceWanModel", in_dim=16, vace_layers=8, vace_in_dim=96),
    _wan("Wan2.1 VACE 1.3B, two controls", 30, "WAN21_Vace", "VaceWanModel", in_dim=16, vace_layers=15, vace_in_dim=96,
         conditioning=lambda: {"vace_frames": [_latent(32)] * 2, "vace_mask": [_latent(64)] * 2,
                               "vace_strength": [1.0, 1.0]}),
    _wan("Wan2.2 S2V", 40, "WAN22_S2V", "WanModel_S2V", in_dim=16,
         conditioning=lambda: {"audio_embed": torch.randn(1, 25, 1024, 4 * FRAMES)}),
    _wan("Wan2.2 Animate", 40, "WAN22_Animate", "AnimateWanModel", "wan.model_animate", in_dim=36,
         conditioning=lambda: {"clip_vision_output": _Seen(), "pose_video_latent": _latent(frames=FRAMES - 1),
                               "face_video_pixels": torch.randn(1, 3, 4 * (FRAMES - 1), 512, 512)}),
    _wan("HuMo", 40, "WAN21_HuMo", "HumoWanModel", in_dim=36,
         conditioning=lambda: {"audio_embed": torch.randn(1, FRAMES, 8, 5, 1280),
                               "reference_latents": [_latent(frames=1)]}),
    _hunyuan("HunyuanVideo 1.5, text to video", "HunyuanVideo15"),
    _hunyuan("HunyuanVideo 1.5, image to video", "HunyuanVideo15", lambda: {
        "clip_vision_output": _Seen(), "conditioning_byt5small": torch.randn(1, 12, 1472)}),
    _hunyuan("HunyuanVideo 1.5, super-resolution stage", "HunyuanVideo15_SR_Distilled", in_channels=98),
    _hunyuan("HunyuanVideo 1.0", "HunyuanVideo", in_channels=16, out_channels=16, vec_in_dim=768, context_in_dim=4096,
             depth=20, depth_single_blocks=40, byt5=False, use_cond_type_embedding=False, vision_in_dim=None,
             patch_size=[1, 2, 2], guidance_embed=True),
)  # fmt: skip


def checkpoint(variant: Variant) -> dict:
    """Random weights under the keys of such a model's checkpoint."""
    import importlib

    from comfy import ops

    module, name = variant.network.rsplit(".", 1)
    network = getattr(importlib.import_module(f"comfy.ldm.{module}"), name)
    return randomize(network(**variant.arguments, operations=ops.disable_weight_init), seed=1).state_dict()


def attend(q, k, v, *, numerics, action, grouping, **_):
    """Plain attention in place of ours: what is looked at here is which calls arrive."""
    return torch.nn.functional.scaled_dot_product_attention(q, k, v), None


def observe(variant: Variant) -> dict:
    """Detect, patch and sample one variant: what the patch did in a model call."""
    import comfy.sd

    patcher = comfy.sd.load_diffusion_model_state_dict(checkpoint(variant))
    widgets = {**PATCH_DEFAULTS, "min_tokens": 0, "backend": "reference", "error_budget": "off"}
    widgets.pop("enabled")
    clone = models.pack("nodes.apply").patched(patcher, models.pack("nodes.settings").settings(**widgets), None)
    reports = []
    models.pack("nodes.override").attend = attend
    models.pack("nodes.run").show = lambda report, node_id: reports.append(report)
    torch.manual_seed(0)
    shape = (variant.channels, FRAMES, SIDE, SIDE)
    models.sample(shape, (TEXT, variant.text), clone, 1, conditioning=variant.conditioning())
    (report,) = reports
    forwards = report.forwards
    return {
        "variant": variant.name,
        "detected": type(patcher.model.model_config).__name__,
        "row": report.model,
        "accelerated": sum(report.kernels.values()) // forwards,
        "left alone": {reason: count // forwards for reason, count in report.left_alone.items()},
    }


def main() -> None:
    models.add_comfyui()
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    names = sys.argv[1:]
    chosen = [variant for variant in VARIANTS if not names or any(name in variant.name for name in names)]
    with torch.inference_mode():
        print(json.dumps([observe(variant) for variant in chosen], indent=1))


if __name__ == "__main__":
    main()
