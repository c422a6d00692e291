"""The node as ComfyUI's server offers it: definition, checks before a run, errors in words, the report."""

import pytest

from tests.comfy.graphs import PATCH, Graph, load_latent, reports, run
from tools.server import ComfyError

pytestmark = pytest.mark.comfy


def test_the_definition(comfy_server):
    info = comfy_server.get("/object_info/VCAttentionPatch")["VCAttentionPatch"]
    inputs = info["input"]["required"] | info["input"]["optional"]
    assert list(inputs) == ["model", *PATCH]  # new widgets go to the end: saved workflows store values by position
    assert info["output"] == ["MODEL"] and info["input"]["hidden"] == {"unique_id": ["UNIQUE_ID"]}
    for name, (_, options) in inputs.items():
        assert len(options["tooltip"]) > 40, f"{name} has no tooltip to speak of"
    assert inputs["bits"][1]["options"] == ["auto", "8", "4"]
    window = inputs["grouping_window"][1]
    assert (window["default"], window["min"], window["max"]) == (0.25, 0.0, 1.0)
    assert inputs["min_tokens"][1]["default"] == 4096 and inputs["backend"][1]["default"] == "auto"


def test_a_list_of_blocks_that_makes_no_sense_is_refused_before_anything_runs(comfy_server):
    graph = Graph()
    graph.save(graph.sample(graph.patch(graph.model(), blocks_left_alone="first two")))
    with pytest.raises(ComfyError, match="blocks_left_alone must be"):
        comfy_server.queue(graph.prompt)


def test_a_list_of_blocks_may_come_from_another_node(comfy_server):
    graph = Graph()
    blocks = graph.add("PrimitiveString", value="0-1")
    graph.save(graph.sample(graph.patch(graph.model(), blocks_left_alone=blocks), steps=1))
    _, (report,) = run(comfy_server, graph)
    assert report["left_alone"] == {"block left alone": 2, "cross-attention": 2}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": "cuda"}, "install.py"),
        ({"probability": "exact", "smoothing": "quality"}, "probability must be"),
        ({"bits": 8}, "bits must be one of 'auto', '8', '4', got 8"),
        ({"grouping_window": float("nan")}, "window must be a fraction"),
    ],
)
def test_settings_that_cannot_work_fail_at_the_node_not_in_sampling(comfy_server, changes, message):
    graph = Graph()
    graph.save(graph.sample(graph.patch(graph.model(), **changes)))
    with pytest.raises(ComfyError, match=message) as error:
        comfy_server.run(graph.prompt)
    assert "VCAttentionPatch" in str(error.value)


def test_without_kernels_the_default_settings_run_stock_attention_and_say_so(comfy_server):
    graph = Graph()
    graph.save(graph.sample(graph.patch(graph.model(), backend="auto")))
    log, (report,) = run(comfy_server, graph)
    assert log["attends"] == 0 and report["calls_accelerated"] == 0
    assert any("NVIDIA GPU" in reason for reason in report["left_alone"])


def test_short_calls_are_counted_and_the_report_says_that_nothing_was_accelerated(comfy_server):
    graph = Graph()
    graph.save(graph.sample(graph.patch(graph.model(), min_tokens=4096)))
    log, (report,) = run(comfy_server, graph)
    assert log["attends"] == 0
    assert report["left_alone"] == {"fewer than 4096 tokens": 16, "cross-attention": 16}
    assert report["text"].startswith("0 attention calls taken over, 32 left alone")


def test_the_report_names_its_node_and_what_ran(comfy_server):
    graph = Graph()
    patch = graph.patch(graph.model(), blocks_left_alone="1")
    graph.save(graph.sample(patch))
    log, (report,) = run(comfy_server, graph)
    assert report["node"] == patch[0] and report["model"] == "Wan" and report["forwards"] == 8
    assert report["kernels"] == {"reference (torch operations)": 8} and log["attends"] == 8
    assert report["actions"] == {"group": 1, "assign": 1, "reuse": 6}
    assert report["left_alone"] == {"cross-attention": 16, "block left alone": 8}
    assert report["state_bytes"] == 2 * 32 * 4 + 2 * 4 + 8 * 2 * (128 + 4)  # perm, step, 8 clusters of 2 heads
    assert f"node {patch[0]}, balanced" in comfy_server.log.read_text(encoding="utf-8")


@pytest.mark.parametrize("smoothing", ["balanced", "quality", "paper"])
@pytest.mark.parametrize("bits", ["8", "4"])
def test_every_profile_stays_close_to_stock_attention(comfy_server, bits, smoothing, tmp_path):
    """The final latent differs from the unpatched run's, though not by much: the kernels' mathematics really ran."""
    graph = Graph()
    model = graph.model()
    graph.save(graph.sample(model, steps=4, seed=11))
    graph.save(graph.sample(graph.patch(model, bits=bits, smoothing=smoothing), steps=4, seed=11))
    plain, patched = (load_latent(path) for path in comfy_server.files(comfy_server.run(graph.prompt)))
    error = float((patched - plain).norm() / plain.norm())
    assert 1e-4 < error < (0.05 if bits == "8" else 0.25)


def test_a_switch_turns_it_off(comfy_server):
    """As in the shipped workflows: nothing is taken over, nothing is reported, the result is the unpatched model's."""
    graph = Graph()
    model = graph.model()
    graph.save(graph.sample(model, steps=2, seed=12))
    switch = graph.add("PrimitiveBoolean", value=False)
    graph.save(graph.sample(graph.patch(model, enabled=switch), steps=2, seed=12))
    seen = len(comfy_server.events)
    plain, patched = (load_latent(path) for path in comfy_server.files(comfy_server.run(graph.prompt)))
    assert plain.equal(patched) and not reports(comfy_server, seen)


def test_reports_of_two_patches_go_to_their_own_nodes(comfy_server):
    seen = len(comfy_server.events)
    graph = Graph()
    model = graph.model()
    patches = [graph.patch(model), graph.patch(model, blocks_left_alone="0-1")]
    for patch in patches:
        graph.save(graph.sample(patch, steps=2))
    comfy_server.run(graph.prompt)
    by_node = {report["node"]: report["calls_accelerated"] for report in reports(comfy_server, seen)}
    assert by_node == {patches[0][0]: 4, patches[1][0]: 0}
