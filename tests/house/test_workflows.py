"""The shipped workflows: they are what the settings table says, a real ComfyUI knows every node, and they run."""

from __future__ import annotations

import json

import pytest

from tools.graph import PATCH, PATCH_DEFAULTS, build, to_api, with_stand_in_text
from tools.settings import RUNS, tiny
from tools.workflows import WORKFLOWS, render

FRONTEND_ONLY = {"MarkdownNote"}
MODEL_FILES = {"unet_name", "lora_name", "clip_name", "vae_name"}


def on_disk() -> list[str]:
    return sorted(path.stem for path in WORKFLOWS.glob("*.json"))


def ui(name: str) -> dict:
    return json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))


def inputs_of(info: dict) -> dict[str, list]:
    return {**info["input"].get("required", {}), **info["input"].get("optional", {})}


def is_widget(spec: list) -> bool:
    return isinstance(spec[0], list) or spec[0] in ("COMBO", "INT", "FLOAT", "STRING", "BOOLEAN")


def options_of(spec: list) -> list | None:
    if isinstance(spec[0], list):
        return spec[0]
    return spec[1].get("options") if spec[0] == "COMBO" else None


def test_a_workflow_for_every_run_and_no_other():
    assert on_disk() == sorted(RUNS)


@pytest.mark.parametrize("name", RUNS)
def test_files_equal_the_settings_table(name):
    path = WORKFLOWS / f"{name}.json"
    assert path.read_text(encoding="utf-8") == render(name), "run python tools/workflows.py"


@pytest.mark.parametrize("name", on_disk())
def test_links_join_existing_slots_of_one_type(name):
    document = ui(name)
    nodes = {node["id"]: node for node in document["nodes"]}
    assert len(nodes) == len(document["nodes"]) and max(nodes) == document["last_node_id"]
    for number, source, out, target, slot, kind in document["links"]:
        assert nodes[source]["outputs"][out]["type"] == kind == nodes[target]["inputs"][slot]["type"]
        assert nodes[target]["inputs"][slot]["link"] == number
        assert number in nodes[source]["outputs"][out]["links"]
    assert all(socket["link"] is not None for node in nodes.values() for socket in node["inputs"])


@pytest.mark.parametrize("name", on_disk())
def test_every_expert_is_patched_and_splits_at_the_same_step(name):
    nodes = ui(name)["nodes"]
    run = RUNS[name]
    assert sum(node["type"] == PATCH for node in nodes) == len(run.experts) == 2
    assert run.experts[0].end == run.experts[1].start and run.experts[1].end == run.steps
    files = [file for node in nodes for file in node["properties"].get("models", [])]
    assert len(files) == len({file["url"] for file in files}) == 4 + sum(e.lora is not None for e in run.experts)
    assert all(file["url"].endswith("/" + file["name"]) for file in files)


@pytest.mark.comfy
def test_the_patch_defaults_are_the_nodes_own(comfy_server):
    inputs = inputs_of(comfy_server.get(f"/object_info/{PATCH}")[PATCH])
    widgets = {name: spec[1]["default"] for name, spec in inputs.items() if is_widget(spec)}
    assert list(widgets.items()) == list(PATCH_DEFAULTS.items())


@pytest.mark.comfy
@pytest.mark.parametrize("name", on_disk())
def test_a_real_comfyui_knows_every_node(comfy_server, name):
    known = comfy_server.get("/object_info")
    for node in ui(name)["nodes"]:
        if node["type"] in FRONTEND_ONLY:
            continue
        info = known[node["type"]]
        inputs = inputs_of(info)
        assert [output["type"] for output in node["outputs"]] == info["output"]
        assert all(inputs[socket["name"]][0] == socket["type"] for socket in node["inputs"])
        wanted = []
        for key, spec in inputs.items():
            if is_widget(spec):
                wanted.append((key, spec))
                if len(spec) > 1 and spec[1].get("control_after_generate"):
                    wanted.append(("control_after_generate", [["fixed", "increment", "decrement", "randomize"]]))
        values = node.get("widgets_values", [])
        assert len(values) == len(wanted), node["type"]
        for value, (key, spec) in zip(values, wanted, strict=True):
            options = options_of(spec)
            if options is not None and key not in MODEL_FILES:
                assert value in options, f"{node['type']}.{key}"
            elif options is None and spec[0] in ("INT", "FLOAT"):
                assert spec[1].get("min", value) <= value <= spec[1].get("max", value), f"{node['type']}.{key}"


@pytest.mark.comfy
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_the_workflow_runs_on_tiny_checkpoints(comfy_server, name):
    """Same graph, steps, split, cfg and LoRAs as shipped; random weights, 512 tokens, reference backend."""
    run = tiny(RUNS[name], length=5)
    run.patch["backend"] = "reference"
    seen = len(comfy_server.events)
    outputs = comfy_server.run(to_api(with_stand_in_text(build(run))))
    (video,) = comfy_server.files(outputs)
    assert video.suffix == ".mp4" and video.stat().st_size > 1000
    reports = [event.data for event in comfy_server.events[seen:] if event.type == "vc_attention.report"]
    # Two blocks, one model call a step: the condition and its opposite share a batch.
    assert [report["calls_accelerated"] for report in reports] == [2 * (e.end - e.start) for e in run.experts]
    assert all(report["left_alone"] == {"cross-attention": report["calls_accelerated"]} for report in reports)


@pytest.mark.comfy
def test_the_template_browser_offers_them(comfy_server):
    offered = comfy_server.get("/workflow_templates")
    assert sorted(offered["vc-attention"]) == on_disk()
    for name in on_disk():
        assert comfy_server.get(f"/api/workflow_templates/vc-attention/{name}.json") == ui(name)
