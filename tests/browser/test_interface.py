"""What an artist does with the pack in the web interface, done by mouse and keyboard."""

from __future__ import annotations

import json

import pytest

from tests.browser.workflows import small_workflow
from tools.graph import PATCH, PATCH_DEFAULTS
from tools.settings import RUNS
from tools.workflows import WORKFLOWS

NEWER = ("h3", "longcat")  # of nodes that the ComfyUI under test does not have
pytestmark = [pytest.mark.browser, pytest.mark.comfy, pytest.mark.slow]


def place_by_search(ui) -> None:
    """Double-click the canvas, type, take the first hit, click where it shall go."""
    ui.page.mouse.dblclick(800, 500)
    ui.page.wait_for_timeout(800)
    ui.page.keyboard.type("vc-attention", delay=20)
    ui.page.get_by_text("VC-Attention Patch").first.wait_for()
    ui.page.wait_for_timeout(300)
    ui.screenshot("search")
    ui.page.keyboard.press("Enter")
    ui.page.wait_for_function("() => app.graph.nodes.length === 1")
    ui.page.mouse.move(700, 420)
    ui.page.mouse.click(700, 420)  # newer interfaces hang the new node on the pointer until this click
    ui.page.wait_for_timeout(500)


def test_found_by_search_placed_and_dragged(canvas):
    place_by_search(canvas)
    before = canvas.patches("[...node.pos]")
    assert len(before) == 1
    spot = canvas.focus_first(scale=1.0)
    canvas.page.mouse.move(spot["x"] + 80, spot["y"] - 12)  # the title bar is above the node's rectangle
    canvas.page.mouse.down()
    canvas.page.mouse.move(spot["x"] + 200, spot["y"] + 60, steps=8)
    canvas.page.mouse.up()
    (after,) = canvas.patches("[...node.pos]")
    moved = [b - a for a, b in zip(before[0], after, strict=True)]
    assert moved == pytest.approx([120, 72], abs=12)


def test_widgets_have_labels_and_tooltips(canvas):
    canvas.add_patch()
    inputs = canvas.server.get(f"/object_info/{PATCH}")[PATCH]["input"]
    info = {**inputs["required"], **inputs["optional"]}
    own = f"node.widgets.filter(w => {json.dumps(list(PATCH_DEFAULTS))}.includes(w.name))"
    (widgets,) = canvas.patches(own + ".map(w => [w.name, w.label ?? w.name, w.value])")
    assert {name: value for name, _, value in widgets} == PATCH_DEFAULTS
    assert {name: label for name, label, _ in widgets} == {
        name: info[name][1].get("display_name") or name for name in PATCH_DEFAULTS
    }
    spot = canvas.focus_first()
    (offsets,) = canvas.patches(own + ".map(w => w.last_y)")
    for (name, _, _), offset in zip(widgets, offsets, strict=True):
        canvas.page.mouse.move(5, 5)
        canvas.page.mouse.move(spot["x"] + spot["width"] / 2, spot["y"] + 1.5 * (offset + 10), steps=3)
        canvas.page.wait_for_function(
            "text => [...document.querySelectorAll('.node-tooltip')].some(e => e.textContent.trim() === text)",
            arg=info[name][1]["tooltip"],
            timeout=10_000,
        )


@pytest.mark.parametrize("name", [name for name, run in RUNS.items() if run.family not in NEWER])
def test_shipped_workflows_open_without_red_nodes(canvas, name):
    workflow = json.loads((WORKFLOWS / f"{name}.json").read_text(encoding="utf-8"))
    canvas.load(workflow)
    unknown = "() => app.graph.nodes.filter(n => !LiteGraph.registered_node_types[n.type]).map(n => n.type)"
    assert canvas.page.evaluate(unknown) == []
    canvas.page.wait_for_timeout(1500)  # the interface looks for missing files after it has opened the workflow
    assert canvas.page.evaluate("() => app.graph.nodes.filter(n => n.has_errors).map(n => n.title)") == []
    assert canvas.page.get_by_text("issues found").count() == 0
    assert canvas.page.get_by_text("Missing Models").count() == 0
    saved = canvas.page.evaluate("() => app.graph.serialize()")
    values, shipped = (
        {node["id"]: node.get("widgets_values") or [] for node in document["nodes"]} for document in (saved, workflow)
    )
    assert values == shipped
    assert len(saved["links"]) == len(workflow["links"])
    canvas.screenshot(f"workflow-{name}")


def test_runs_and_the_report_appears(canvas):
    canvas.load(small_workflow(seed=11))
    canvas.press_run()
    canvas.wait_until_done()
    panels = canvas.wait_for_panels("4 attention calls")
    assert all("left alone: cross-attention: 4" in text for text in panels)
    assert all(entry["status"]["status_str"] == "success" for entry in canvas.server.get("/history").values())
    canvas.picture_of("node")
    box = "node.vcAttentionPanel.box"  # of the node that is on the screen
    (wanted, given), _ = canvas.patches(f"[{box}.scrollHeight, {box}.parentNode.clientHeight]")
    assert 0 < wanted <= given, "the node is too small for its report"
    saved = canvas.patches("node.serialize().widgets_values")
    assert [len(values) for values in saved] == [len(PATCH_DEFAULTS)] * 2, "only the node's own widgets are saved"
    assert None not in saved[0]


def test_says_so_when_nothing_was_taken_over(canvas):
    canvas.load(small_workflow(seed=12, min_tokens=1 << 20))
    canvas.press_run()
    canvas.page.get_by_text("VC-Attention took over nothing").first.wait_for()
    canvas.screenshot("nothing")
    canvas.wait_until_done()
    canvas.wait_for_panels("fewer than 1048576 tokens: 4")
    canvas.close_toasts()


def test_a_report_does_not_land_on_another_workflows_node_of_the_same_number(canvas):
    """Another workflow may be open when a run ends."""
    shown = canvas.page.evaluate(
        """type => {
        const nodes = ['EmptyLatentImage', type].map(name => LiteGraph.createNode(name));
        nodes.forEach(node => app.graph.add(node));
        for (const node of [...nodes, {id: '99:1'}, {id: 'none'}]) {
            const detail = {node: String(node.id), text: 'what ran', calls_accelerated: 1, left_alone: {}};
            app.api.dispatchEvent(new CustomEvent('vc_attention.report', {detail}));
        }
        return nodes.map(node => node.vcAttentionPanel?.text.includes('what ran') ?? false);
    }""",
        PATCH,
    )
    assert shown == [False, True]
