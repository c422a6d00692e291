"""Which runs the Report node finds."""

import pytest
from vc_pack.nodes import history


@pytest.fixture(autouse=True)
def empty(monkeypatch):
    monkeypatch.setattr(history, "_runs", {})


def patches(nodes):
    return [run["patch"] for run in history.runs_among(nodes)]


def test_runs_before_a_node_in_the_order_in_which_they_ended():
    for sampler, patch in [("8", "3"), ("9", "4"), ("8", "3"), ("7", "5")]:
        history.keep(sampler, patch, {}, "")
    assert patches({"3", "4", "8", "9"}) == ["4", "3"]
    assert patches({"3", "4", "9"}) == ["4"]  # the sampler of the other run is not before the node
    assert patches({"8", "9"}) == []  # their patch nodes were taken out of the graph: those runs are old


def test_a_patch_node_that_executes_again_forgets_its_runs():
    history.keep("8", "3", {}, "")
    history.keep("9", "4", {}, "")
    history.forget("3")
    assert patches({"3", "4", "8", "9"}) == ["4"]


def test_the_oldest_run_goes_first():
    for number in range(history.LIMIT + 1):
        history.keep(str(number), "patch", {}, "")
    assert len(history.all_runs()) == history.LIMIT and history.all_runs()[0]["sampler"] == "1"
