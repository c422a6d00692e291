"""What the demo tells about itself; that it runs is for `python tools/demo.py` to show."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from tools import demo, demo_report
from tools.tiny_video import flow
from tools.tiny_video.scenes import KINDS

REPORT = {"title": "VC-Attention, high noise", "text": "8 attention calls taken over\nwith reference: 8"}


def clip(folder, name: str, offset: int, status: list) -> dict:
    """A clip of four small frames, `offset` brighter than another's, as demo.make_clip leaves it."""
    frames = [Image.fromarray(np.full((96, 128, 3), 40 * i + offset, np.uint8)) for i in range(4)]
    files = {".webp": folder / f"{name}.webp", ".latent": folder / f"{name}.latent"}
    frames[0].save(files[".webp"], save_all=True, append_images=frames[1:], lossless=True)
    save_file({"latent_tensor": np.full((1, 4), 100 + offset, np.float32)}, files[".latent"])
    return {"files": files, "sampling_s": 1.5, "status": status}


def test_its_title_says_the_steps_it_makes():
    run = demo.demo_run("reference")
    assert f"{run.steps} steps" in run.title
    assert [(e.start, e.end) for e in run.experts] == [(0, run.steps)]


def test_its_prompt_is_one_that_the_model_was_trained_on():
    run = demo.demo_run("reference")
    assert run.positive in KINDS and run.negative == flow.NOTHING
    assert run.shift == flow.SHIFT


def test_only_the_patched_clip_comes_with_a_report():
    prompts = [demo.demo_prompt(demo.demo_run("reference"), patched, "clip") for patched in (False, True)]
    kinds = [{node["class_type"] for node in prompt.values()} for prompt in prompts]
    assert ["VCAttentionReport" in kind for kind in kinds] == [False, True]


def test_the_report_names_nodes_and_measures_the_difference(tmp_path):
    run = demo.demo_run("reference")
    clips = [clip(tmp_path, "stock", 0, []), clip(tmp_path, "vc_attention", 3, [REPORT])]
    text = demo_report.write(tmp_path, run, *clips)
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    for words in (run.title, "VC-Attention, high noise: 8 attention calls taken over", "3.00%", "85 times"):
        assert words in page
    assert "3.00%" in text and "slower than ComfyUI" in page
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["latent_relative_l2"] == pytest.approx(0.03)
    assert report["psnr_db"] == pytest.approx(20 * np.log10(255 / 3))
    assert Image.open(tmp_path / "side_by_side.png").size == (4 * 128, 3 * 96)


def test_equal_clips_are_called_identical(tmp_path):
    clips = [clip(tmp_path, name, 0, []) for name in ("stock", "vc_attention")]
    assert "identical" in demo_report.write(tmp_path, demo.demo_run("cuda"), *clips)
    assert "slower than ComfyUI" not in (tmp_path / "index.html").read_text(encoding="utf-8")
