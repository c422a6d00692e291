"""The plain-torch networks that trained the model compute what ComfyUI computes from the same files."""

import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tools.tiny_video import WEIGHTS, autoencoder, flow, wan

STEPS = 20


@pytest.fixture(scope="module")
def inputs():
    generator = torch.Generator().manual_seed(0)
    return {
        "x": torch.randn(2, 16, 3, 8, 12, generator=generator),
        "t": torch.tensor([900.0, 300.0]),
        "context": torch.randn(2, 64, 4096, generator=generator),
        "video": torch.rand(9, 32, 48, 3, generator=generator),
        "shift": torch.tensor(flow.SHIFT),
        "steps": torch.tensor(STEPS),
    }


@pytest.fixture(scope="module")
def comfyui(inputs, comfy_environment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("twins")
    save_file(inputs, str(folder / "inputs.safetensors"))
    script = Path(__file__).with_name("comfyui_outputs.py")
    files = [WEIGHTS, folder / "inputs.safetensors", folder / "outputs.safetensors"]
    command = [str(comfy_environment.python()), str(script), *map(str, files)]
    done = subprocess.run(command, cwd=comfy_environment.COMFYUI, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return load_file(str(files[-1]))


def assert_equal_but_for_rounding(ours, theirs):
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-5 * theirs.abs().max()


@pytest.mark.comfy
def test_the_velocity(inputs, comfyui):
    with torch.inference_mode():
        ours = wan.load(WEIGHTS / wan.FILE)(inputs["x"], inputs["t"], inputs["context"])
    assert_equal_but_for_rounding(ours, comfyui["velocity"])


@pytest.mark.comfy
def test_the_autoencoder_both_ways(inputs, comfyui):
    model = autoencoder.load(WEIGHTS / autoencoder.FILE)
    with torch.inference_mode():
        decoded = model.decode(inputs["x"][:1]).movedim(1, -1)
        encoded = model.encode(inputs["video"].movedim(-1, 0)[None])
    assert_equal_but_for_rounding(decoded, comfyui["decoded"])
    assert_equal_but_for_rounding(encoded, comfyui["encoded"])


@pytest.mark.comfy
def test_the_noise_levels(comfyui):
    assert comfyui["sigmas"].tolist() == flow.schedule(STEPS)


def test_the_weights_are_small_enough_for_a_repository():
    assert sum(path.stat().st_size for path in WEIGHTS.glob("*.safetensors")) < 26e6
