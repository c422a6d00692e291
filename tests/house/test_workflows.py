"""The shipped workflows: they are what the settings table says, a real ComfyUI knows every node, and they run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.graph import PATCH, PATCH_DEFAULTS, WRAPPER_PATCH, build, to_api, with_stand_ins, without_patch
from tools.settings import RUNS, tiny
from tools.workflows import WORKFLOWS, render

FRONTEND_ONLY = {"MarkdownNote"}
# Widgets that list files of the machine, and the picture that ComfyUI brings.
FILES = {
    "unet_name",
    "lora_name",
    "clip_name",
    "clip_name1",
    "clip_name2",
    "vae_name",
    "model",
    "model_name",
    "lora",
    "image",
}
# What newer ComfyUI and the wrapper say of their nodes, for those that ComfyUI 0.3.75 has not or has otherwise.
RECORDED = json.loads((Path(__file__).parent / "node_definitions.json").read_text(encoding="utf-8"))
NEWER = {"h3": RECORDED["ComfyUI 0.38"], "longcat": RECORDED["ComfyUI-WanVideoWrapper"]}
RUNNABLE = [name for name, run in RUNS.items() if run.family not in NEWER]


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
def test_every_expert_is_patched_and_the_steps_are_shared_out(name):
    nodes, run = ui(name)["nodes"], RUNS[name]
    assert sum(node["type"] in (PATCH, WRAPPER_PATCH) for node in nodes) == len(run.experts)
    assert [expert.start for expert in run.experts] == [0, *(expert.end for expert in run.experts[:-1])]
    assert run.experts[-1].end == run.steps


@pytest.mark.parametrize("name", on_disk())
def test_every_model_file_is_named_with_its_link(name):
    files = [file for node in ui(name)["nodes"] for file in node["properties"].get("models", [])]
    assert {(f["directory"], f["name"], f["url"]) for f in files} == {
        (f.directory, f.name, f.url) for f in RUNS[name].files
    }
    assert len(files) == len({file["url"] for file in files})
    assert all(file["url"].endswith("/" + file["name"]) for file in files)


@pytest.mark.parametrize("name", on_disk())
def test_one_switch_turns_every_patch_off(name):
    document = ui(name)
    (switch,) = [node for node in document["nodes"] if node["type"] == "PrimitiveBoolean"]
    fed = {target for _, source, _, target, _, _ in document["links"] if source == switch["id"]}
    assert fed == {node["id"] for node in document["nodes"] if node["type"] in (PATCH, WRAPPER_PATCH)}


@pytest.mark.parametrize("name", RUNS)
def test_a_graph_without_the_patch_is_still_joined(name):
    bare = to_api(without_patch(build(RUNS[name])))
    assert not {node["class_type"] for node in bare.values()} & {PATCH, WRAPPER_PATCH, "PrimitiveBoolean"}
    assert all(given[0] in bare for node in bare.values() for given in node["inputs"].values() if type(given) is list)


@pytest.mark.comfy
def test_the_patch_defaults_are_the_nodes_own(comfy_server):
    inputs = inputs_of(comfy_server.get(f"/object_info/{PATCH}")[PATCH])
    widgets = {name: spec[1]["default"] for name, spec in inputs.items() if is_widget(spec)}
    assert list(widgets.items()) == list(PATCH_DEFAULTS.items())


def widgets_of(info: dict) -> list[tuple[str, list]]:
    """(name, spec) of every value that the interface keeps for a node, in order."""
    wanted = []
    for key, spec in inputs_of(info).items():
        if is_widget(spec):
            wanted.append((key, spec))
            more = spec[1] if len(spec) > 1 else {}
            if more.get("control_after_generate"):
                wanted.append(("control_after_generate", [["fixed", "increment", "decrement", "randomize"]]))
            if more.get("image_upload"):
                wanted.append(("upload", [["image"]]))
    return wanted


@pytest.mark.comfy
@pytest.mark.parametrize("name", on_disk())
def test_comfyui_knows_every_node(comfy_server, name):
    """The running ComfyUI, and the recorded definitions of what is newer than it."""
    newer = NEWER.get(RUNS[name].family, {})
    known = {**comfy_server.get("/object_info"), **newer}
    for node in ui(name)["nodes"]:
        if node["type"] in FRONTEND_ONLY:
            continue
        info = known[node["type"]]
        inputs, wanted = inputs_of(info), widgets_of(info)
        assert [output["type"] for output in node["outputs"]] == info["output"]
        assert all(inputs[socket["name"]][0] == socket["type"] for socket in node["inputs"])
        needed = {key for key, spec in info["input"].get("required", {}).items() if not is_widget(spec)}
        assert needed <= {socket["name"] for socket in node["inputs"]}, node["type"]
        values = node.get("widgets_values", [])
        assert len(values) == len(wanted) or (node["type"] in newer and len(values) < len(wanted)), node["type"]
        for value, (key, spec) in zip(values, wanted, strict=False):
            options = options_of(spec)
            if options is not None and key not in FILES:
                assert value in options, f"{node['type']}.{key}"
            elif options is None and spec[0] in ("INT", "FLOAT"):
                assert spec[1].get("min", value) <= value <= spec[1].get("max", value), f"{node['type']}.{key}"


@pytest.mark.comfy
@pytest.mark.slow
@pytest.mark.parametrize("name", RUNNABLE)
def test_the_workflow_runs_on_tiny_checkpoints(comfy_server, name):
    """Same graph, steps, split, cfg and LoRAs as shipped; random weights, few tokens, reference backend."""
    run = tiny(RUNS[name], length=5, seed=list(RUNS).index(name))  # nothing is answered from another run's cache
    run.patch["backend"] = "reference"
    seen = len(comfy_server.events)
    outputs = comfy_server.run(to_api(with_stand_ins(build(run))))
    video = next(path for path in comfy_server.files(outputs) if path.suffix == ".mp4")
    assert video.stat().st_size > 1000
    reports = [event.data for event in comfy_server.events[seen:] if event.type == "vc_attention.report"]
    # Two blocks, one model call a step: the condition and its opposite share a batch.
    text = "text refiner" if run.family == "hunyuan" else "cross-attention"
    assert [report["calls_accelerated"] for report in reports] == [2 * (e.end - e.start) for e in run.experts]
    assert all(report["left_alone"] == {text: report["calls_accelerated"]} for report in reports)


@pytest.mark.comfy
def test_the_template_browser_offers_them(comfy_server):
    offered = comfy_server.get("/workflow_templates")
    assert sorted(offered["vc-attention"]) == on_disk()
    for name in on_disk():
        assert comfy_server.get(f"/api/workflow_templates/vc-attention/{name}.json") == ui(name)
