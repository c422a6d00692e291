"""The guard on ComfyUI's own Wan with one planted bad layer, in a real server."""

import pytest

from tests.comfy.graphs import HIGH, LOW, Graph, load_latent, reports, run
from vc_attention.guard import BUDGETS

pytestmark = pytest.mark.comfy

BAD = 1


def planted(graph: Graph, model: list, k_gain: float, q_gain: float) -> list:
    return graph.add("PlantBadLayer", model=model, block=BAD, k_gain=k_gain, q_gain=q_gain)


def sampled(server, bits: str, level: str, k_gain: float, q_gain: float):
    """(report, final latent, its relative error) of a short run beside the same run without the patch."""
    graph = Graph()
    model = planted(graph, graph.model(), k_gain, q_gain)
    for way in (model, graph.patch(model, bits=bits, error_budget=level)):
        graph.save(graph.sample(way, steps=4, seed=11, latent=graph.latent(frames=4, height=16, width=16)))
    seen = len(server.events)
    exact, ours = (load_latent(path) for path in server.files(server.run(graph.prompt)))
    (report,) = reports(server, seen)
    return report, ours, float((ours - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("bits", "level", "k_gain", "q_gain", "good", "tried", "ran"),
    [
        ("4", "fast", 50.0, 1.0, "4bit", ["4bit"], "int8-nvfp4"),
        ("8", "quality", 50.0, 1.0, "balanced", ["balanced"], "quality"),
        ("8", "balanced", 200.0, 200.0, "balanced", ["balanced", "quality"], "stock"),
    ],
)
def test_exactly_the_bad_layer_is_taken_out_in_the_first_step(
    comfy_server, bits, level, k_gain, q_gain, good, tried, ran
):
    report, _, error = sampled(comfy_server, bits, level, k_gain, q_gain)
    first, second = report["layers"]
    assert first["ran"] == [good] * 4 and first["tried"] == [] and first["errors"][0] < BUDGETS[level]
    assert second["ran"] == [ran] * 4 and second["name"] == "block 1"
    assert [(entry["step"], entry["profile"]) for entry in second["tried"]] == [(0, name) for name in tried]
    assert all(entry["error"] > BUDGETS[level] for entry in second["tried"])
    assert report["guard"]["moved"] == 1 and "over the error budget: block 1" in report["text"]
    _, _, unguarded = sampled(comfy_server, bits, "off", k_gain, q_gain)
    assert error < BUDGETS[level] and error < unguarded


@pytest.mark.parametrize(("bits", "k_gain"), [("8", 1.0), ("4", 1.0), ("4", 50.0)])
def test_what_is_reported_is_the_true_error_of_the_calls(comfy_server, bits, k_gain):
    comfy_server.post("/vc_probe/reset", {})
    report, _, _ = sampled(comfy_server, bits, "fast", k_gain, 1.0)
    first, second = report["layers"]
    told = [first["errors"][0], *(entry["error"] for entry in second["tried"]), second["errors"][0]]
    true = comfy_server.get("/vc_probe")["errors"][: len(told)]
    assert told == pytest.approx(true, rel=0.15)


def test_a_seed_gives_the_same_clip_and_the_same_decisions_again(comfy_server):
    """Also after ComfyUI unloaded the model in between."""
    found = []
    for _ in range(2):
        report, latent, _ = sampled(comfy_server, "8", "balanced", 200.0, 200.0)
        found.append((latent, [(layer["ran"], layer["errors"], layer["tried"]) for layer in report["layers"]]))
        comfy_server.post("/free", {"unload_models": True, "free_memory": True})
    assert found[0][1] == found[1][1] and found[0][0].equal(found[1][0])


def test_each_expert_decides_for_itself(comfy_server):
    graph = Graph()
    high = graph.patch(planted(graph, graph.model(HIGH), 50.0, 1.0), bits="4", error_budget="fast")
    low = graph.patch(graph.model(LOW), bits="4", error_budget="fast")
    latent = graph.latent(frames=4, height=16, width=16)
    graph.save(graph.sample_part(low, 2, 4, steps=4, latent=graph.sample_part(high, 0, 2, steps=4, latent=latent)))
    _, found = run(comfy_server, graph)
    assert [[layer["ran"] for layer in report["layers"]] for report in found] == [
        [["4bit"] * 2, ["int8-nvfp4"] * 2],
        [["4bit"] * 2] * 2,
    ]


def test_conditions_and_context_windows_share_the_decision_of_their_step(comfy_server):
    graph = Graph()
    model = graph.patch(planted(graph, graph.model(), 50.0, 1.0), bits="4", error_budget="fast")
    windows = graph.add(
        "WanContextWindowsManual", model=model, context_length=9, context_overlap=1, context_schedule="standard_static",
        context_stride=1, closed_loop=False, fuse_method="pyramid",
    )  # fmt: skip
    latent = graph.latent(frames=5, height=16, width=16)
    graph.save(graph.sample(windows, latent=latent, steps=2, cfg=5.0, negative_tokens=24))
    log, (report,) = run(comfy_server, graph)
    first, second = report["layers"]
    assert first["ran"] == ["4bit"] * 2 and second["ran"] == ["int8-nvfp4"] * 2
    assert report["forwards"] > 4 and report["calls_accelerated"] == 2 * report["forwards"]
    assert report["guard"]["measured"] == 3 and log["attends"] == 2 * report["forwards"] + 1
