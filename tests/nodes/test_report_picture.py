"""The Report node's picture: the cells say what the data says, whatever was measured."""

import copy
import json
from pathlib import Path

import pytest
from PIL import ImageColor
from vc_pack.nodes import drawing, report_table
from vc_pack.nodes.report_picture import draw


def report(layers=3, steps=4, **changes):
    """A run as docs/report.md describes it: 8 bits everywhere, errors of 1% measured at the first step."""
    layer = {
        "seqlen": 1024, "heads": 2, "head_dim": 128, "ran": ["balanced"] * steps,
        "errors": [0.01] + [None] * (steps - 1), "tried": [], "reason": "",
        "clusters": {"count": 10, "smallest": 0.01, "median": 0.1, "largest": 0.3},
        "block_energy": [0.5] + [None] * (steps - 1),
        "ms": {"grouping": 1.0, "preparation": 2.0, "attention": 7.0, "guard": 0.5},
    }  # fmt: skip
    rows = [{**copy.deepcopy(layer), "name": f"block {i}", "block": i} for i in range(layers)]
    return {
        "profile": "balanced, 8 bits", "model": "Wan", "forwards": steps, "calls_accelerated": layers * steps,
        "calls_left_alone": 0, "kernels": {"reference (torch operations)": layers * steps}, "left_alone": {},
        "stopped_early": False, "layers": rows,
        "guard": {"budget": 0.06, "worst": {"layer": "block 0", "step": 0, "error": 0.01}},
        "steps": [{"index": i, "sigma": 1 - i / steps, "in_window": i == 0} for i in range(steps)],
        "time": {"grouping": 3.0, "preparation": 6.0, "attention": 21.0, "guard": 1.5, "stock_call": 9.0, "saved": 4.0},
        **changes,
    }  # fmt: skip


def cell(picture, data, column, layer, step):
    """Colour in the middle of a cell of the grid in `column`: 0 errors, 1 what ran."""
    row = max(10, min(26, 620 // len(data["layers"])))
    left = report_table.MARGIN + report_table.NAME + column * (report_table.GRID + report_table.GAP)
    top = report_table.MARGIN + 104 + 64  # below the picture's margin, the head and the columns' titles
    width = report_table.GRID / len(data["steps"])
    return picture.getpixel((round(left + (step + 0.5) * width), round(top + (layer + 0.5) * row)))


def test_cells_show_what_ran_and_what_was_measured():
    data = report()
    data["layers"][1].update(ran=["stock"] * 4, errors=[None] * 4)
    data["layers"][1]["tried"] = [{"step": 0, "profile": "balanced", "error": 0.57}]
    data["layers"][2]["errors"][0] = 0.06  # the budget: brightest
    picture = draw([("a patch", data)])
    colours = [cell(picture, data, 1, layer, 2) for layer in range(3)]
    expected = [report_table.RAN[name][1] for name in ("balanced", "stock", "balanced")]
    assert colours == [ImageColor.getrgb(colour) for colour in expected]
    assert cell(picture, data, 0, 2, 0) == ImageColor.getrgb(f"#{drawing.RAMP[-1]:06x}")
    measured, held = (sum(cell(picture, data, 0, 2, step)) for step in (0, 1))
    panel = ImageColor.getrgb(drawing.PANEL)
    assert sum(panel) < held < measured  # not measured in that step: dim
    assert cell(picture, data, 0, 1, 0) == panel  # nothing of its own error: stock attention ran


def nothing_measured(data):
    data["guard"] = {"budget": None, "worst": None}
    data["time"] = dict.fromkeys(data["time"])
    for layer in data["layers"]:
        layer.update(errors=[None] * 4, block_energy=None, clusters=None, ms=dict.fromkeys(layer["ms"]))
    return data


@pytest.mark.parametrize(
    "data",
    [
        nothing_measured(report()),
        report(layers=1, steps=1),
        report(layers=120, steps=100),
        report(layers=0, steps=0, model="", stopped_early=True, left_alone={"x" * 400: 5}),
    ],
    ids=["nothing measured", "one cell", "many", "no layer"],
)
def test_every_run_can_be_drawn(data):
    picture = draw([("first", data), ("second", data)])
    assert picture.width == report_table.WIDTH and 200 < picture.height < 4000


def test_the_documented_report_can_be_drawn():
    data = json.loads(Path(__file__).with_name("report.json").read_text(encoding="utf-8"))
    colours = {colour for _, colour in draw([("a patch", data)]).getcolors(1 << 20)}
    ran = {name for layer in data["layers"] for name in layer["ran"] if name}
    assert len(ran) > 1 and {ImageColor.getrgb(report_table.RAN[name][1]) for name in ran} <= colours


def test_without_a_run_the_picture_says_so():
    assert draw([]).getcolors(1 << 16) is not None
    assert len(draw([]).getcolors(1 << 16)) > 2  # there are letters on it


def test_values_that_are_not_finite_are_told():
    data = report()
    data["layers"][1].update(ran=["stock"] * 4, errors=[None] * 4)
    data["layers"][1]["tried"] = [{"step": 0, "profile": "balanced", "error": None}]
    assert draw([("a patch", data)]).width == report_table.WIDTH
