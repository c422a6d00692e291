"""Run by ComfyUI's interpreter in ComfyUI's folder: what ComfyUI's own loaders and networks make of the trained files.

python comfyui_outputs.py WEIGHTS INPUTS OUTPUTS        (the last two are .safetensors files)
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file


def main(weights: Path, inputs: Path, outputs: Path) -> None:
    sys.path.insert(0, os.getcwd())  # ComfyUI is run in place, never installed
    import comfy.cli_args

    comfy.cli_args.args.cpu = True
    import comfy.sd
    import comfy.utils
    import torch
    from comfy.latent_formats import Wan21
    from comfy.samplers import calculate_sigmas

    given, scale = load_file(str(inputs)), Wan21()
    with torch.inference_mode():
        model = comfy.sd.load_diffusion_model(str(weights / "tiny_wan.safetensors")).model
        model.model_sampling.set_parameters(shift=given["shift"].item())
        velocity = model.diffusion_model(given["x"], given["t"], given["context"])
        vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(weights / "tiny_wan_vae.safetensors")))
        decoded = vae.decode(scale.process_out(given["x"][:1]))
        encoded = scale.process_in(vae.encode(given["video"]))
        sigmas = calculate_sigmas(model.model_sampling, "simple", int(given["steps"]))
    made = {"velocity": velocity, "decoded": decoded, "encoded": encoded, "sigmas": sigmas}
    save_file({name: tensor.contiguous().clone() for name, tensor in made.items()}, str(outputs))


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:]))
