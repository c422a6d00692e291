"""The Report node in a real server: which runs it finds, and that saved files carry what it found."""

import json

import av
import pytest
from PIL import Image
from safetensors import safe_open

from tests.comfy.graphs import HIGH, LOW, Graph
from tools.server import ComfyError

pytestmark = pytest.mark.comfy


def two_experts(**patch):
    """high -> low -> Report; the graph and the report node's id."""
    graph = Graph()
    latent = None
    for name, start in ((HIGH, 0), (LOW, 2)):
        latent = graph.sample_part(graph.patch(graph.model(name), **patch), start, start + 2, steps=4, latent=latent)
    return graph, graph.add("VCAttentionReport", samples=latent)[0]


def run_with_workflow(server, graph):
    """Run as the web interface queues: with the workflow that saving nodes write into files."""
    extra = {"extra_pnginfo": {"workflow": {"nodes": []}}}
    body = {"prompt": graph.prompt, "client_id": server.client_id, "extra_data": extra}
    entry = server.wait(server.post("/prompt", body)["prompt_id"])
    if entry["status"]["status_str"] != "success":
        raise ComfyError(str(entry["status"]))
    return entry["outputs"]


def test_it_finds_the_runs_of_both_experts(comfy_server):
    graph, node = two_experts()
    graph.save([node, 0])
    outputs = comfy_server.run(graph.prompt)
    (text,) = outputs[node]["text"]
    assert text.count("4 attention calls taken over") == 2
    (picture,) = comfy_server.files({node: outputs[node]})
    assert Image.open(picture).width == 1280


def test_files_saved_after_it_carry_the_report(comfy_server):
    graph, node = two_experts()
    graph.save([node, 0])
    graph.add("SaveImage", images=[node, 1], filename_prefix="report")
    video = graph.add("CreateVideo", images=[node, 1], fps=8.0)
    graph.add("SaveVideo", video=video, filename_prefix="report", format="mp4", codec="h264")
    paths = {p.suffix: p for p in comfy_server.files(run_with_workflow(comfy_server, graph)) if "output" in p.parts}
    with av.open(str(paths[".mp4"])) as container:
        in_video = json.loads(container.metadata["vc_attention"])
    with safe_open(paths[".latent"], "pt") as latent:
        in_latent = json.loads(latent.metadata()["vc_attention"])
    in_image = json.loads(Image.open(paths[".png"]).info["vc_attention"])
    assert in_video == in_latent == in_image and len(in_image) == 2
    assert [run["title"] for run in in_image] == ["VCAttentionPatch"] * 2
    assert all(run["format"] == 1 and run["calls_accelerated"] == 4 for run in in_image)
    assert all(layer["ran"] == ["balanced"] * 2 for run in in_image for layer in run["layers"])
    assert "workflow" in Image.open(paths[".png"]).info


def test_a_patch_that_is_off_leaves_nothing_to_report(comfy_server):
    """The same nodes ran with the patch on before: what they did then is not what they did now."""
    for enabled, words in ((True, "4 attention calls"), (False, "nothing to report")):
        graph, node = two_experts(enabled=enabled)
        graph.save([node, 0])
        outputs = run_with_workflow(comfy_server, graph)
        assert words in outputs[node]["text"][0]


def test_a_run_that_is_not_before_it_is_not_reported(comfy_server):
    graph, node = two_experts()
    other = graph.sample(graph.patch(graph.model()), steps=2)
    graph.save(other)
    graph.save([node, 0])
    assert comfy_server.run(graph.prompt)[node]["text"][0].count("attention calls taken over") == 2


def test_the_forecast_reads_the_tiny_checkpoints(comfy_server):
    graph = Graph()
    expected = {}
    for model, latent, tokens in (
        (HIGH, {"width": 256, "height": 128, "length": 17}, 5 * 8 * 16),
        ("wan2.2_ti2v_5b_tiny.safetensors", {"width": 256, "height": 128, "length": 9}, 3 * 4 * 8),
        ("hunyuanvideo1.5_t2v_tiny.safetensors", {"width": 256, "height": 128, "length": 9}, 3 * 8 * 16),
    ):
        node = graph.patch(graph.model(model), min_tokens=0)
        graph.sample(node, latent=graph.add("EmptyHunyuanLatentVideo", **latent, batch_size=1))
        expected[node[0]] = tokens
    answers = comfy_server.post("/vc_attention/forecast", {"prompt": graph.prompt, "nodes": list(expected)})
    assert {node: answer.get("tokens", answer) for node, answer in answers.items()} == expected
