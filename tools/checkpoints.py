"""Write tiny random checkpoints that a real ComfyUI loads with its own loaders, made from its own model classes.

    python tools/checkpoints.py --out MODELS        (run with ComfyUI's interpreter, from ComfyUI's folder)

The models are real in everything but size: two blocks of 256 channels (two heads of 128, the head size of the real
ones), so that every key, shape rule and code path of ComfyUI is the one an artist's checkpoint goes through. A text
encoder has no place here; the stand-in nodes make conditionings. Takes seconds; the bytes depend on the seeds alone.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path

TEXT_WIDTH = 4096  # umt5-xxl, which Wan's own classes expect

# file stem: (seed, channels in, channels out). high and low are the two experts of one Wan2.2 model.
WAN = {
    "wan2.1_t2v_tiny": (1, 16, 16),
    "wan2.2_t2v_high_noise_tiny": (2, 16, 16),
    "wan2.2_t2v_low_noise_tiny": (3, 16, 16),
    "wan2.2_ti2v_5b_tiny": (4, 48, 48),
    "wan2.2_i2v_high_noise_tiny": (8, 36, 16),  # 20 channels more: first picture and mask
    "wan2.2_i2v_low_noise_tiny": (9, 36, 16),
}
HUNYUAN = "hunyuanvideo1.5_t2v_tiny"
VAE = "wan2.1_vae_tiny"
LORA = "wan_lora_tiny"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="ComfyUI models folder to write into")
    out = parser.parse_args().out

    sys.path.insert(0, os.getcwd())  # ComfyUI is run in place, never installed
    import comfy.cli_args

    comfy.cli_args.args.cpu = True

    for name, (seed, channels_in, channels_out) in WAN.items():
        _save(out / "diffusion_models" / name, randomize(_wan(channels_in, channels_out), seed).state_dict())
    _save(out / "diffusion_models" / HUNYUAN, randomize(_hunyuan(), 5).state_dict())
    _save(out / "vae" / VAE, randomize(_vae(), 6).state_dict())
    _save(out / "loras" / LORA, _lora(7))


def _wan(channels_in: int, channels_out: int):
    from comfy import ops
    from comfy.ldm.wan.model import WanModel

    return WanModel(
        model_type="t2v", in_dim=channels_in, out_dim=channels_out, dim=256, ffn_dim=512, num_heads=2, num_layers=2,
        text_dim=TEXT_WIDTH, operations=ops.disable_weight_init,
    )  # fmt: skip


def _hunyuan():
    from comfy import ops
    from comfy.ldm.hunyuan_video.model import HunyuanVideo

    return HunyuanVideo(
        in_channels=65, out_channels=32, vec_in_dim=None, context_in_dim=3584, hidden_size=256, mlp_ratio=4.0,
        num_heads=2, depth=2, depth_single_blocks=0, axes_dim=[16, 56, 56], theta=256, patch_size=[1, 1, 1],
        qkv_bias=True, guidance_embed=False, byt5=False, meanflow=False, use_cond_type_embedding=True,
        vision_in_dim=1152, operations=ops.disable_weight_init,
    )  # fmt: skip


def _vae():
    from comfy.ldm.wan.vae import WanVAE

    return WanVAE(dim=16, z_dim=16, temperal_downsample=[False, True, True])


def _lora(seed: int) -> dict:
    """A rank-4 LoRA on the attention of both Wan blocks."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for block in range(2):
        for name in ("q", "k", "v", "o"):
            key = f"diffusion_model.blocks.{block}.self_attn.{name}"
            weights[f"{key}.lora_A.weight"] = torch.randn(4, 256, generator=generator) / 16
            weights[f"{key}.lora_B.weight"] = torch.randn(256, 4, generator=generator) / 2
    return weights


def randomize(module, seed: int):
    """Fill a module, on whatever device it is, with random weights that keep activations near unit size: matrices
    scaled by their fan-in. Returns the module."""
    import torch

    generator = None
    for name, tensor in module.state_dict().items():
        generator = generator or torch.Generator(tensor.device).manual_seed(seed)
        last = name.rsplit(".", 1)[-1]
        if last == "bias":
            tensor.zero_()
        elif "norm" in name or last == "gamma":
            tensor.fill_(1.0)
        else:
            fan_in = math.prod(tensor.shape[1:]) or 1
            tensor.normal_(generator=generator).div_(math.sqrt(fan_in))
    return module


def _save(path: Path, state: dict) -> None:
    from safetensors.torch import save_file

    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.with_name(path.name + ".safetensors")
    save_file(state, str(file))
    print(f"{file.name}: {file.stat().st_size / 2**20:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
