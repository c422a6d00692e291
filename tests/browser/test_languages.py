"""Help pages and Chinese."""

from __future__ import annotations

import json

import pytest

from tools.environment import ROOT

pytestmark = [pytest.mark.browser, pytest.mark.comfy, pytest.mark.slow]

NODES = sorted(page.stem for page in (ROOT / "web" / "docs").glob("*.md"))
ZH = {name: json.loads((ROOT / f"locales/zh/{name}.json").read_text(encoding="utf-8")) for name in ("main", "nodeDefs")}


def open_help(ui, kind: str):
    """Select a node and press its info button; the help's text."""
    ui.page.evaluate("type => { app.graph.clear(); app.graph.add(LiteGraph.createNode(type)); }", kind)
    spot = ui.focus_first(kind, 1.0)
    ui.page.mouse.click(spot["x"] + 80, spot["y"] - 12)
    info = ui.page.locator("button:has(.icon-\\[lucide--info\\])")
    ui.page.get_by_test_id("info-button").or_(info).first.click()


def pictures_load(ui) -> bool:
    picture = "img[src*='/docs/VCAttention']"
    ui.page.wait_for_function(f'() => document.querySelector("{picture}")?.complete')
    return ui.page.evaluate(f'() => document.querySelector("{picture}").naturalWidth > 0')


@pytest.mark.parametrize("kind", NODES)
def test_the_help_page_opens_with_its_picture(canvas, kind):
    title = (ROOT / "web" / "docs" / f"{kind}.md").read_text(encoding="utf-8").splitlines()[0].removeprefix("# ")
    open_help(canvas, kind)
    canvas.page.get_by_role("heading", name=title, exact=True).first.wait_for()
    assert pictures_load(canvas)
    canvas.screenshot(f"help-{kind}")


def test_chinese_labels_and_help(canvas):
    canvas.set_language("zh")
    try:
        canvas.add_patch()
        expected = {name: words["name"] for name, words in ZH["nodeDefs"]["VCAttentionPatch"]["inputs"].items()}
        expected |= {"preset": ZH["main"]["vcAttention"]["preset"]}
        labels = "Object.fromEntries([...node.inputs, ...node.widgets].map(w => [w.name, w.label ?? w.localized_name]))"
        (shown,) = canvas.patches(labels)
        assert {name: shown.get(name) for name in expected} == expected
        (preset,) = canvas.patches("node.widgets.find(w => w.name === 'preset').value")
        assert preset == ZH["main"]["vcAttention"]["preset.balanced"]
        canvas.picture_of("chinese")
        open_help(canvas, "VCAttentionPatch")
        canvas.page.get_by_role("heading", name="VC-Attention 补丁").first.wait_for()
        canvas.screenshot("help-chinese")
    finally:
        canvas.set_language("en")
