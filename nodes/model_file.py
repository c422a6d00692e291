"""What a model file's header tells about its attention, without loading the model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

HEAD_DIM = 128
# Channels of a video latent -> pixels that one of its cells is wide and high. ComfyUI's latent formats do not say.
PIXELS_OF = {16: 8, 32: 16, 48: 16}
FRAMES_PER_LATENT_FRAME = 4
NOT_FOR_VIDEO = ("txt_", "_mod.", "cross_attn.k", "cross_attn.v")  # matrices that multiply text or the time step


@dataclass(frozen=True)
class ModelShape:
    """Self-attention of a video model. layers: calls a forward. token: pixels that a token is wide and high. weights:
    of the blocks' matrices that every video token is multiplied with."""

    name: str
    layers: int
    heads: int
    token: int
    weights: int

    def tokens(self, width: int, height: int, length: int) -> int:
        """Video tokens of a clip of so many pixels and frames."""
        frames = (length - 1) // FRAMES_PER_LATENT_FRAME + 1
        return frames * -(-width // self.token) * -(-height // self.token)


@lru_cache(maxsize=16)
def shape_of(path: Path, changed: float) -> ModelShape | None:
    """The shape of the model in a .safetensors file; None for other kinds of models and files.

    changed: time of the file's last change, so that a replaced file is read again.
    """
    if path.suffix != ".safetensors":
        return None
    from comfy import model_detection  # ComfyUI's own reading of a file, which needs shapes only

    try:
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    except ValueError:  # half a download
        return None
    shapes = {name: entry["shape"] for name, entry in header.items() if name != "__metadata__"}
    weights = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    prefix = model_detection.unet_prefix_from_state_dict(weights)
    prefix = prefix if any(name.startswith(prefix) for name in weights) else ""
    config = model_detection.detect_unet_config(weights, prefix) or {}
    return _of_config(config, {name.removeprefix(prefix): shape for name, shape in shapes.items()})


def _of_config(config: dict, shapes: dict[str, list[int]]) -> ModelShape | None:
    kind = config.get("image_model")
    if kind == "wan2.1":
        layers, heads, blocks, channels = config["num_layers"], config["num_heads"], ("blocks.",), config["out_dim"]
    elif kind == "hunyuan_video":
        layers = config["depth"] + config["depth_single_blocks"]
        heads, blocks, channels = config["num_heads"], ("double_blocks.", "single_blocks."), config["out_channels"]
    else:
        return None
    if channels not in PIXELS_OF:
        return None
    matrices = [
        shape[0] * shape[1]
        for name, shape in shapes.items()
        if name.startswith(blocks) and len(shape) == 2 and not any(word in name for word in NOT_FOR_VIDEO)
    ]
    return ModelShape(kind, layers, heads, PIXELS_OF[channels] * config["patch_size"][-1], sum(matrices))
