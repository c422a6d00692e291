"""Committed results speak of the sources that lie beside them, and say where they come from."""

from __future__ import annotations

import pytest

from tests.bench import accuracy, preparation, results, shapes
from tests.bench.__main__ import BENCHMARKS
from tests.bench.measure import Subject
from vc_attention.config import Action

FILES = sorted(results.FOLDER.glob("*.json"))
HEADER = {"device", "driver", "torch", "cuda", "clocks", "date", "csrc_commit", "code", "command"}


def test_there_are_results():
    assert FILES


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_result_says_when_the_sources_have_changed_since(path):
    """By what the compiler sees, not by date: measure again with the command in the header after changing a kernel."""
    head = results.load(path)["header"]
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    told = text.partition("**Older than the sources beside it:** ")[2].partition(" changed since")[0]
    assert told == ", ".join(results.older(head)), (
        f"{path.name}: run {head['command']}; without such a GPU, python -m tests.bench --tables says that it is older"
    )


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_result_knows_the_sources_of_its_benchmark(path):
    """Without their hashes it would never get old."""
    recorded, units = set(results.load(path)["header"]["code"]), set(BENCHMARKS[path.stem].UNITS)
    assert recorded <= units and bool(recorded) == bool(units)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_results_are_complete(path):
    result = results.load(path)
    assert HEADER <= result["header"].keys() and result["rows"]
    known = {str(shape) for shape in shapes.SHAPES.values()}
    for row in result["rows"]:
        assert row["shape"] in known and ("ms" in row or "rel_l2" in row)
        assert "ms" not in row or row["ms"]["min"] <= row["ms"]["median"] <= row["ms"]["max"]
        assert row.get("bit_exact", True)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == results.markdown(path.stem, result)
    assert path.with_suffix(".png").exists()


def test_comments_do_not_age_a_result(monkeypatch):
    before = results.code_hash("prepare")
    flat = results.source.flatten(results.UNITS["prepare"].source)
    monkeypatch.setattr(results.source, "flatten", lambda _: flat + "// a remark\n\n")
    assert results.code_hash("prepare") == before
    monkeypatch.setattr(results.source, "flatten", lambda _: flat + "int x;")
    assert results.code_hash("prepare") != before


def test_the_default_schedule_of_40_steps():
    taken = preparation.actions()
    assert [step for step, action in enumerate(taken) if action is Action.GROUP] == [0, 4, 8]
    assert [step for step, action in enumerate(taken) if action is Action.ASSIGN] == [12, 16, 20, 24, 28, 32, 36]


def test_a_table_says_that_its_sources_changed():
    head = {**dict.fromkeys(HEADER, "?"), "code": {"group": results.code_hash("group"), "prepare": "0", "gone": "0"}}
    text = results.markdown("b", {"header": head, "rows": [], "notes": []})
    assert "**Older than the sources beside it:** prepare, gone changed since." in text
    head["code"] = {"group": results.code_hash("group")}
    assert "Older" not in results.markdown("b", {"header": head, "rows": [], "notes": []})


def test_speedups_compare_within_a_shape():
    rows = [
        {"name": name, "shape": shape, "ms": {"median": ms}}
        for name, shape, ms in (("a", "x", 2.0), ("b", "x", 1.0), ("b", "y", 3.0))
    ]
    results.add_speedups(rows, ("a",))
    assert [row["speedup"] for row in rows] == [{"a": 1.0}, {"a": 2.0}, {}]


def test_exact_attention_is_torchs():
    import torch

    q, k, v = (torch.randn(2, n, 64, dtype=torch.float64) for n in (5, 40, 40))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert accuracy.errors(accuracy.exact(q, k, v), expected)["rel_l2"] < 1e-12


def test_a_row_summarises_its_samples():
    subject = Subject(
        "x", call=lambda: None, flops=2e9, times=[2.0, 1.0, 4.0], telemetry=[(1800, 600.4), (1900, 601.0)]
    )
    row = subject.row("4k")
    assert row["ms"] == {"median": 2.0, "min": 1.0, "max": 4.0}
    assert (row["tflops"], row["sm_mhz"], row["watts"], row["calls"]) == (1.0, 1850, 601, 3)
    assert "gb_per_s" not in row


def test_a_table_shows_the_columns_that_are_filled():
    head = {**dict.fromkeys(HEADER, "?"), "code": {}}
    row = {"name": "a", "shape": "x", "ms": {"median": 2.0, "min": 1.0, "max": 3.0}, "rel_l2": 0.01}
    untimed = {"name": "c", "shape": "x", "rel_l2": 0.02}
    text = results.markdown("b", {"header": head, "rows": [row, untimed], "notes": ["remark"]})
    assert (
        "| a | 2.000 | 1.000 - 3.000 | 0.01000 |" in text
        and "| c |  |  | 0.02000 |" in text
        and "TFLOPS" not in text
        and "- remark" in text
    )
