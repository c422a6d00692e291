"""What the forecast reads out of a graph, and what it says when the graph does not tell."""

import dataclasses
import json
import struct
import sys
import types

import pytest
import torch
from vc_pack.nodes import forecast, history, kernels, model_file, routes
from vc_pack.nodes.forecast import Unknown
from vc_pack.nodes.model_file import ModelShape

from tests.comfy.graphs import Graph

CPU = torch.device("cpu")
WAN_14B = ModelShape("wan2.1", layers=40, heads=40, token=16, weights=12_000_000_000)


@pytest.fixture(autouse=True)
def no_earlier_runs(monkeypatch):
    monkeypatch.setattr(history, "_runs", {})


def graph(cfg=1.0, width=1280, height=720, length=81, **patch):
    """loader -> LoRA -> patch -> shift -> sampler, at Wan2.2's size; the prompt and the patch node's id."""
    g = Graph()
    model = g.add("LoraLoaderModelOnly", model=g.model("wan.safetensors"), lora_name="x", strength_model=1.0)
    node = g.patch(model, **{"min_tokens": 4096, **patch})
    shifted = g.add("ModelSamplingSD3", model=node, shift=5.0)
    latent = g.add("EmptyHunyuanLatentVideo", width=width, height=height, length=length, batch_size=1)
    g.sample(shifted, latent=latent, cfg=cfg)
    return g.prompt, node[0]


def ask(prompt, node, shape=WAN_14B):
    return forecast.forecast(prompt, node, lambda widget, name: shape, CPU)


def test_tokens_and_memory_are_counted():
    found = ask(*graph())
    assert found["tokens"] == 21 * 45 * 80 == 75_600 and found["kernel"] == "reference (torch operations)"
    one = 40 * 40 * (4 * 75_600 + 512 * 132 + 4)  # layers, heads, of each: permutation, clusters with their rank, step
    assert found["bytes"] == one
    assert ask(*graph(cfg=3.5))["bytes"] == 2 * one  # a second condition has its own groups
    assert found["factor"] is None  # the reference is for checking


@pytest.mark.parametrize(("size", "token", "tokens"), [((640, 384, 1), 32, 240), ((832, 480, 81), 16, 32_760)])
def test_tokens_of_other_sizes(size, token, tokens):
    shape = ModelShape("wan2.1", 30, 24, token, 1)
    width, height, length = size
    assert ask(*graph(width=width, height=height, length=length, min_tokens=0), shape)["tokens"] == tokens


def test_short_clips_and_missing_kernels_are_told():
    assert ask(*graph(length=1))["reason"] == "fewer than 4096 tokens"
    assert "NVIDIA GPU" in ask(*graph(backend="auto"))["reason"]


def test_speed_comes_from_the_measurements_until_there_was_a_run(monkeypatch):
    choice = kernels.choose(forecast.settings(**_widgets()), 128, CPU)
    fast = dataclasses.replace(choice, backend="cuda", name="attention_sm90_expcast")
    monkeypatch.setattr(kernels, "choose", lambda *args: fast)
    found = ask(*graph(backend="auto"))
    assert (found["attention_factor"], found["source"]) == (2.14, "H200")
    assert ask(*graph(backend="auto", length=17))["attention_factor"] == 1.63  # 18,000 tokens
    assert ask(*graph(backend="auto", length=5))["attention_factor"] is None  # shorter than anything measured
    # The whole model was measured as well: tests/bench/results/models.md has 1.60 over a sampling.
    assert found["factor"] == pytest.approx(1.60, rel=0.05)
    time = {"grouping": 10.0, "preparation": 10.0, "attention": 75.0, "guard": 5.0, "saved": 50.0}
    profile = str(forecast.settings(**_widgets()))
    for seqlen, expected in [(10_000, 2.14), (75_600, 1.5)]:  # a run of other lengths says nothing
        history.keep("8", "3", {"profile": profile, "time": time, "layers": [{"seqlen": seqlen}]}, "")
        assert ask(*graph(backend="auto"))["attention_factor"] == pytest.approx(expected)


def _widgets():
    prompt, node = graph(backend="auto")
    return {k: v for k, v in prompt[node]["inputs"].items() if k not in ("model", "enabled")} | {"backend": "reference"}


def test_the_whole_gains_what_its_attention_share_allows():
    attention_only = ModelShape("wan2.1", 40, 40, 16, weights=0)
    assert forecast.whole_factor(attention_only, 75_600, 1.7) == pytest.approx(1.7)
    assert forecast.whole_factor(WAN_14B, 1_000, 1.7) < 1.02  # short: nearly all is matrices


def test_guiders_and_numbers_from_other_nodes():
    g = Graph()
    node = g.patch(g.model())
    guider = g.add("CFGGuider", model=node, positive=g.text("a"), negative=g.text("b"), cfg=6.0)
    width = g.add("PrimitiveInt", value=640)
    latent = g.add("EmptyHunyuanLatentVideo", width=width, height=384, length=17, batch_size=1)
    g.add("SamplerCustomAdvanced", guider=guider, latent_image=latent)
    assert ask(g.prompt, node[0])["tokens"] == 5 * 40 * 24
    g.prompt[node[0]]["inputs"]["enabled"] = g.add("PrimitiveBoolean", value=False)
    with pytest.raises(Unknown, match="off"):
        ask(g.prompt, node[0])
    g.prompt[node[0]]["inputs"]["enabled"] = True
    with pytest.raises(Unknown, match="computed"):
        g.prompt[width[0]]["inputs"] = {}
        ask(g.prompt, node[0])


def test_what_the_graph_does_not_tell_is_named():
    g = Graph()
    lone = g.patch(g.model())[0]
    with pytest.raises(Unknown, match="sampler"):
        ask(g.prompt, lone)
    del g.prompt[lone]["inputs"]["model"]
    with pytest.raises(Unknown, match="loader"):
        ask(g.prompt, lone)
    prompt, node = graph(enabled=False)
    with pytest.raises(Unknown, match="off"):
        ask(prompt, node)
    with pytest.raises(Unknown, match="model"):
        ask(*graph(), None)


def test_a_broken_graph_gets_an_answer_too(monkeypatch):
    prompt, node = graph()
    management = types.SimpleNamespace(get_torch_device=lambda: CPU)
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    monkeypatch.setattr(sys.modules["comfy"], "model_management", management, raising=False)
    monkeypatch.setattr(routes, "_shape", lambda widget, name: WAN_14B)
    prompt[node]["inputs"]["model"] = ["99", 0]
    assert routes._answer({"prompt": prompt, "nodes": [node]})[node]["unknown"] == "incomplete"


@pytest.mark.parametrize("wire", ["model", "latent_image"])
def test_wires_in_a_circle_end(wire):
    prompt, node = graph()
    entry = prompt[node] if wire == "model" else next(e for e in prompt.values() if wire in e["inputs"])
    here = next(number for number, other in prompt.items() if other is entry)
    entry["inputs"][wire] = [here, 0]
    with pytest.raises(Unknown, match="loader" if wire == "model" else "size"):
        ask(prompt, node)


def header_file(path, shapes):
    header = json.dumps(
        {name: {"dtype": "BF16", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    )
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    return path


def test_the_header_of_a_model_file_is_enough(tmp_path, monkeypatch):
    def detect(weights, prefix):
        channels = weights["head"].shape[0]
        wan = {"num_layers": 1, "num_heads": 2, "out_dim": channels, "patch_size": (1, 2, 2)}
        return {"image_model": "wan2.1", **wan}

    detection = types.SimpleNamespace(unet_prefix_from_state_dict=lambda weights: "model.", detect_unet_config=detect)
    monkeypatch.setitem(sys.modules, "comfy.model_detection", detection)
    monkeypatch.setattr(sys.modules["comfy"], "model_detection", detection, raising=False)
    shapes = {"blocks.0.q.weight": [256, 256], "blocks.0.q.bias": [256], "embedding": [9, 9], "head": [16]}
    found = model_file.shape_of(header_file(tmp_path / "wan.safetensors", shapes), 0.0)
    assert found == ModelShape("wan2.1", layers=1, heads=2, token=16, weights=256 * 256)
    assert model_file.shape_of(header_file(tmp_path / "odd.safetensors", {**shapes, "head": [7]}), 0.0) is None
    assert model_file.shape_of(tmp_path / "wan.gguf", 0.0) is None
    (tmp_path / "empty.safetensors").touch()
    assert model_file.shape_of(tmp_path / "empty.safetensors", 0.0) is None
