"""The Report and Compare nodes show their pictures and words."""

from __future__ import annotations

import pytest

from tests.browser.workflows import compare_workflow

pytestmark = [pytest.mark.browser, pytest.mark.comfy, pytest.mark.slow]
PICTURE = """type => {
    const node = app.graph.nodes.find(node => node.type === type);
    const image = node.imgs?.[0];
    return image?.complete && image.naturalWidth ? [image.naturalWidth, image.naturalHeight] : null;
}"""


def picture_size(ui, kind: str) -> list[int]:
    return ui.page.wait_for_function(PICTURE, arg=kind).json_value()


def test_report_and_comparison_of_one_run(canvas):
    canvas.load(compare_workflow(seed=31))
    canvas.press_run()
    canvas.wait_until_done()
    (text,) = canvas.wait_for_panels("attention calls taken over", kind="VCAttentionReport")
    assert text.count("attention calls taken over") == 2 and "VC-Attention, high noise" in text
    (numbers,) = canvas.wait_for_panels("PSNR", kind="VCAttentionCompare")
    assert "largest difference" in numbers
    width, height = picture_size(canvas, "VCAttentionReport")
    assert width == 1280 and height > 700  # two runs
    assert picture_size(canvas, "VCAttentionCompare")[0] > 1000
    canvas.screenshot("compare-workflow")
    canvas.picture_of("report-node", "VCAttentionReport", 1.0)
    canvas.picture_of("compare-node", "VCAttentionCompare", 1.0)
