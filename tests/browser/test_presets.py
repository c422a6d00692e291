"""Presets, and workflows that were saved before there were any."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tools.graph import PATCH_DEFAULTS

pytestmark = [pytest.mark.browser, pytest.mark.comfy, pytest.mark.slow]

OLD = Path(__file__).with_name("saved_by_first_version.json")
VALUES = "Object.fromEntries(node.widgets.map(w => [w.name, w.value]))"


def choose(ui, preset: str) -> dict:
    """Pick a preset as the interface's combo does; the first patch node's widgets afterwards."""
    (values, *_) = ui.patches(
        f"""(() => {{
        const widget = node.widgets.find(w => w.name === 'preset');
        widget.setValue ? widget.setValue({json.dumps(preset)}, {{ node, canvas: app.canvas, e: {{}} }})
            : (widget.value = {json.dumps(preset)}, widget.callback(widget.value));
        return {VALUES};
    }})()"""
    )
    return values


def test_a_preset_fills_the_widgets_and_a_change_makes_it_custom(canvas):
    canvas.add_patch()
    (start,) = canvas.patches(VALUES)
    assert start["preset"] == "balanced"
    quality = choose(canvas, "quality")
    assert (quality["smoothing"], quality["error_budget"], quality["preset"]) == ("quality", "quality", "quality")
    canvas.picture_of("presets")
    paper = choose(canvas, "paper")
    assert (paper["smoothing"], paper["error_budget"]) == ("paper", "off")
    balanced = choose(canvas, "balanced")
    assert {name: balanced[name] for name in PATCH_DEFAULTS} == PATCH_DEFAULTS
    clusters = "node.widgets.find(w => w.name === 'clusters')"
    canvas.patches(f"(({clusters}).value = 33, node.onWidgetChanged('clusters', 33, 0, {clusters}))")
    assert canvas.patches(VALUES)[0]["preset"] == "custom"
    kept = choose(canvas, "custom")
    assert kept["clusters"] == 33
    (saved,) = canvas.patches("node.serialize().widgets_values")
    assert saved == [kept[name] for name in PATCH_DEFAULTS]


def test_a_workflow_of_the_first_version_opens_with_its_values(canvas):
    """Saved before there was an error budget, a preset or a panel: everything else must land where it was."""
    old = json.loads(OLD.read_text(encoding="utf-8"))
    canvas.load(old)
    saved = [node["widgets_values"] for node in old["nodes"] if node["type"] == "VCAttentionPatch"]
    names = list(PATCH_DEFAULTS)[: len(saved[0])]
    for values, widgets in zip(saved, canvas.patches(VALUES), strict=True):
        assert [widgets[name] for name in names] == values
        assert widgets["error_budget"] == PATCH_DEFAULTS["error_budget"] and widgets["preset"] == "custom"
    assert canvas.page.evaluate("() => app.graph.nodes.filter(n => n.has_errors).length") == 0
    (again, _) = canvas.patches("node.serialize().widgets_values")
    assert again == [*saved[0], PATCH_DEFAULTS["error_budget"]]
