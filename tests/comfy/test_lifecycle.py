"""A patched model among others in a real server: who is touched, who is not, and what is left when a run ends."""

import time

import pytest

from tests.comfy.graphs import HUNYUAN, WAN, Graph, reports, run, words

pytestmark = pytest.mark.comfy


def test_bypass_and_removal_take_effect_at_once_and_nothing_global_changes(comfy_server):
    before = comfy_server.get("/vc_probe")["identities"]
    counts = []
    for kind in ("patched", "bypassed", "switched off", "patched", "another model"):
        graph = Graph()
        model = graph.model("wan2.2_ti2v_5b_tiny.safetensors" if kind == "another model" else WAN)
        if kind in ("patched", "switched off"):
            model = graph.patch(model, enabled=kind == "patched")
        latent = graph.latent(channels=48) if kind == "another model" else None
        graph.save(graph.sample(graph.probe(model), steps=2, latent=latent))
        log, _ = run(comfy_server, graph)
        counts.append(log["attends"])
        assert log["identities"] == before
    assert counts == [4, 0, 0, 4, 0]


def test_two_branches_of_one_model(comfy_server):
    """patched, plain, patched again in one prompt: the plain branch never meets our code, its options never change."""
    graph = Graph()
    model = graph.model()
    patched = graph.patch(model)
    graph.add("ProbeOptions", model=model, tag=time.monotonic_ns() % 1000000)
    first = graph.sample(graph.probe(patched), steps=2)
    plain = graph.sample(graph.probe(model), steps=2, latent=first)
    last = graph.sample(graph.probe(patched), steps=2, latent=plain)
    graph.add("ProbeOptions", model=model, tag=time.monotonic_ns() % 1000000, after=last)
    graph.save(last)
    log, seen = run(comfy_server, graph)
    assert [len(f["actions"]) for f in log["forwards"]] == [2, 2, 0, 0, 2, 2]
    assert [f["index"] for f in log["forwards"]] == [0, 1, None, None, 0, 1]
    assert len(seen) == 2 and log["attends"] == 8
    assert len(log["options"]) == 2 and log["options"][0] == log["options"][1]
    assert "vc_attention" not in str(log["options"])


def test_loras_and_clones_after_the_patch_add_no_state(comfy_server):
    """Five clones deep: ComfyUI copies the options each time, the run's state exists once and is gone afterwards."""
    state = []
    for clones in (0, 5):
        graph = Graph()
        model = graph.patch(graph.model())
        for _ in range(clones):
            model = graph.add(
                "LoraLoaderModelOnly", model=model, lora_name="wan_lora_tiny.safetensors", strength_model=0.2
            )
        graph.save(graph.sample(graph.probe(model)))
        log, (report,) = run(comfy_server, graph)
        assert words(log["forwards"]) == "0G* 1r* 2r 3r 4A 5r 6r 7r"
        assert log["live"] == {"Run": 0, "Forward": 0, "Session": 0, "Grouping": 0}
        state.append(report["state_bytes"])
    assert state[0] == state[1] > 0


@pytest.mark.parametrize(("negative_tokens", "batched"), [(16, True), (24, False)])
def test_conditions_in_one_batch_or_one_after_the_other(comfy_server, negative_tokens, batched):
    graph = Graph()
    model = graph.probe(graph.patch(graph.model()))
    graph.save(graph.sample(model, cfg=5.0, negative_tokens=negative_tokens))
    log, (report,) = run(comfy_server, graph)
    each = 1 if batched else 2
    assert [len(f["conditions"]) for f in log["forwards"]] == ([2] * 8 if batched else [1] * 16)
    assert words(log["forwards"]) == " ".join(w for w in "0G* 1r* 2r 3r 4A 5r 6r 7r".split() for _ in range(each))
    assert report["actions"] == {"group": 2 * each, "assign": 2 * each, "reuse": 12 * each}


def test_context_windows(comfy_server):
    graph = Graph()
    model = graph.probe(graph.patch(graph.model()))
    windows = graph.add(
        "WanContextWindowsManual", model=model, context_length=9, context_overlap=1, context_schedule="standard_static",
        context_stride=1, closed_loop=False, fuse_method="pyramid",
    )  # fmt: skip
    graph.save(graph.sample(windows, latent=graph.latent(frames=5)))
    log, (report,) = run(comfy_server, graph)
    sets = {tuple(f["window"]) for f in log["forwards"]}
    assert len(sets) > 1 and len(log["forwards"]) == 8 * len(sets)
    for window in sets:
        assert words([f for f in log["forwards"] if tuple(f["window"]) == window]) == "0G* 1r* 2r 3r 4A 5r 6r 7r"
    assert report["actions"]["group"] == 2 * len(sets)


def test_another_resolution_on_the_same_patched_model(comfy_server):
    graph = Graph()
    model = graph.probe(graph.patch(graph.model()))
    small = graph.sample(model, steps=2)
    large = graph.add(
        "LatentUpscale", samples=small, upscale_method="nearest-exact", width=96, height=96, crop="disabled"
    )
    graph.save(graph.sample(model, steps=2, latent=large, denoise=0.9))
    graph.save(graph.sample(model, steps=2))
    log, seen = run(comfy_server, graph)
    assert [f["actions"] for f in log["forwards"]] == [["group"] * 2, ["reuse"] * 2] * 3
    assert len({r["state_bytes"] for r in seen}) == 2


def test_cancelled_in_the_middle_then_run_again(comfy_server):
    graph = Graph()
    graph.save(graph.sample(graph.probe(graph.patch(graph.model())), steps=400))
    seen = len(comfy_server.events)
    number = comfy_server.queue(graph.prompt)
    deadline = time.monotonic() + 120
    while not any(e.type == "progress" and e.data["value"] >= 2 for e in comfy_server.events[seen:]):
        assert time.monotonic() < deadline, comfy_server.log_tail()
        time.sleep(0.05)
    comfy_server.post("/interrupt", {})
    comfy_server.wait(number)
    deadline = time.monotonic() + 10
    while not reports(comfy_server, seen) and time.monotonic() < deadline:
        time.sleep(0.05)
    (report,) = reports(comfy_server, seen)
    assert report["stopped_early"] and 0 < report["forwards"] < 400 and "stopped early" in report["text"]
    assert not any(comfy_server.get("/vc_probe")["live"].values())
    for latent in ({"height": 8}, {"height": 12}):
        again = Graph()
        again.save(again.sample(again.probe(again.patch(again.model())), latent=again.latent(**latent)))
        log, (report,) = run(comfy_server, again)
        assert words(log["forwards"]) == "0G* 1r* 2r 3r 4A 5r 6r 7r" and not report["stopped_early"]


@pytest.mark.parametrize(
    ("order", "attends", "overrides"),
    [
        (("other", "ours"), 4, 4),  # cross-attention goes on to the override that was there before
        (("ours", "chains"), 4, 8),  # an override on top that chains sees every call and reaches us
        (("ours", "other"), 0, 8),  # one that does not chain wins, as ComfyUI has it
    ],
)
def test_other_overrides(comfy_server, order, attends, overrides):
    graph = Graph()
    model = graph.model()
    for kind in order:
        model = (
            graph.patch(model) if kind == "ours" else graph.add("ProbeOverride", model=model, chains=kind == "chains")
        )
    graph.save(graph.sample(graph.probe(model), steps=2))
    log, (report,) = run(comfy_server, graph)
    assert (log["attends"], log["overrides"]) == (attends, overrides)
    assert ("another node after this one" in report["text"]) == (attends == 0)


def test_hunyuanvideo(comfy_server):
    """Joint attention over picture and text; the text refiner's short calls are not a block's."""
    graph = Graph()
    model = graph.probe(graph.patch(graph.model(HUNYUAN), blocks_left_alone="0"))
    graph.add(
        "KSampler", model=model, positive=graph.text("a fox", 8, 3584), negative=graph.text("a dog", 8, 3584),
        latent_image=graph.latent(channels=32), seed=time.monotonic_ns() % 1000000, steps=2, cfg=1.0,
        sampler_name="euler", scheduler="simple", denoise=1.0,
    )  # fmt: skip
    graph.save([str(len(graph.prompt)), 0])
    log, (report,) = run(comfy_server, graph)
    assert report["model"] == "HunyuanVideo" and report["left_alone"]["block left alone"] == 2
    blocks = [f["actions"][-1] for f in log["forwards"]]
    assert blocks == ["group", "reuse"]
