"""Step index, window and refresh of every model call, for ComfyUI's real samplers and every way to split a schedule.

Each row states what each call must decide; the server's log of the call is compared with it. 0G* reads: step 0 of this
sampler's own list, groups, inside the grouping window (a quarter of the whole schedule).
"""

import itertools

import pytest

from tests.comfy.graphs import HIGH, LOW, Graph, run, words

pytestmark = pytest.mark.comfy

EIGHT = "0G* 1r* 2r 3r 4A 5r 6r 7r"
# dpm_2 and uni_pc sample 9 steps and drop the last but one: a quarter of 9 is three steps.
EIGHT_OF_NINE = "0G* 1r* 2r* 3r 4A 5r 6r 7r"
SAMPLERS = {
    "euler": EIGHT,
    "dpmpp_2m": EIGHT,
    "res_multistep": EIGHT,
    "sa_solver": EIGHT,
    "lcm": EIGHT,
    "uni_pc": EIGHT_OF_NINE,
    # The second evaluation of a step is made at the next step's sigma: that noise level is due once.
    "heun": "0G* 1r* 1r* 2r 2r 3r 3r 4A 4r 5r 5r 6r 6r 7r 7r",
    # The second evaluation lies between two sigmas and belongs to the step it started from.
    "dpm_2": "0G* 0r* 1r* 1r* 2r* 2r 3r 3r 4A 4r 5r 5r 6r 6r 7r",
    "dpmpp_2s_ancestral": "0G* 0r* 1r* 1r* 2r 2r 3r 3r 4A 4r 5r 5r 6r 6r 7r",
}


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_call_of_a_sampler(comfy_server, sampler):
    graph = Graph()
    graph.save(graph.sample(graph.probe(graph.patch(graph.model())), sampler=sampler))
    log, (report,) = run(comfy_server, graph)
    assert words(log["forwards"]) == SAMPLERS[sampler]
    renewals = [f["sigma"] for f in log["forwards"] if f["actions"][0] in ("group", "assign")]
    assert len(renewals) == len(set(renewals)) == 2  # a noise level is never renewed twice
    assert report["calls_accelerated"] == 2 * len(log["forwards"]) == log["attends"]


def test_first_evaluations_are_the_samplers_own_steps(comfy_server):
    """The sampler's callback counts its steps: our index agrees with it at each step's first evaluation."""
    graph = Graph()
    for sampler in ("euler", "heun", "dpm_2", "dpmpp_2s_ancestral"):
        graph.save(graph.sample(graph.probe(graph.patch(graph.model())), sampler=sampler))
    log, _ = run(comfy_server, graph)
    # The callback fires after a step's first evaluation, so that a second one already sees the next count: the first
    # evaluation of step i is the last call that sees i callbacks.
    groups = itertools.groupby(log["forwards"], key=lambda forward: forward["callbacks"])
    firsts = [list(calls)[-1] for _, calls in groups]
    assert [f["callbacks"] for f in firsts] == 4 * list(range(8))
    assert [f["index"] for f in firsts] == 4 * list(range(8))


@pytest.mark.parametrize("sampler", ["euler", "heun"])
def test_two_experts_share_one_schedule(comfy_server, sampler):
    """The window lies in the high-noise expert; the low-noise expert starts past it and cold, so it groups once."""
    graph = Graph()
    shifted = [
        graph.add("ModelSamplingSD3", model=graph.probe(graph.patch(graph.model(name))), shift=5.0)
        for name in (HIGH, LOW)
    ]
    high = graph.sample_part(shifted[0], 0, 4, steps=8, sampler=sampler)
    graph.save(graph.sample_part(shifted[1], 4, 8, steps=8, latent=high, sampler=sampler))
    log, reports = run(comfy_server, graph)
    expected = {
        "euler": "0G* 1r* 2r 3r 0G 1r 2r 3r",
        # The high expert's last evaluation is made at the last sigma of its list, which is not a step of its own.
        "heun": "0G* 1r* 1r* 2r 2r 3r 3r 3r 0G 1r 1r 2r 2r 3r 3r",
    }
    assert words(log["forwards"]) == expected[sampler]
    assert len(reports) == 2 and all(r["actions"]["group"] == 2 for r in reports)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (20, "0G* 1r* 2r* 3r* 4G* 5r 6r 7r 8A 9r 0G 1r 2r 3r 4A 5r 6r 7r 8A 9r"),
        (4, "0G* 1r 0G 1r"),  # a few-step LoRA: the low-noise expert forms groups of its own all the same
    ],
)
def test_two_experts_as_the_shipped_workflows_have_them(comfy_server, steps, expected):
    graph = Graph()
    high, low = (
        graph.add("ModelSamplingSD3", model=graph.probe(graph.patch(graph.model(name))), shift=5.0)
        for name in (HIGH, LOW)
    )
    latent = graph.sample_part(high, 0, steps // 2, steps=steps)
    graph.save(graph.sample_part(low, steps // 2, steps, steps=steps, latent=latent))
    log, _ = run(comfy_server, graph)
    assert words(log["forwards"]) == expected


def test_one_model_in_two_samplers(comfy_server):
    graph = Graph()
    model = graph.probe(graph.patch(graph.model()))
    first = graph.sample_part(model, 0, 10, steps=20)
    graph.save(graph.sample_part(model, 10, 20, steps=20, latent=first))
    log, _ = run(comfy_server, graph)
    assert words(log["forwards"]) == "0G* 1r* 2r* 3r* 4G* 5r 6r 7r 8A 9r 0G 1r 2r 3r 4A 5r 6r 7r 8A 9r"


def test_split_sigmas(comfy_server):
    graph = Graph()
    model = graph.probe(graph.patch(graph.model()))
    sigmas = graph.add("BasicScheduler", model=model, scheduler="simple", steps=8, denoise=1.0)
    split = graph.add("SplitSigmas", sigmas=sigmas, step=3)
    guider = graph.add("BasicGuider", model=model, conditioning=graph.text("a fox"))
    euler = graph.add("KSamplerSelect", sampler_name="euler")
    latent, noise = graph.latent(), graph.add("RandomNoise", noise_seed=len(comfy_server.events))
    for part in ([split[0], 0], [split[0], 1]):
        latent = graph.add(
            "SamplerCustomAdvanced", noise=noise, guider=guider, sampler=euler, sigmas=part, latent_image=latent
        )
        noise = graph.add("DisableNoise")
    graph.save(latent)
    log, _ = run(comfy_server, graph)
    assert words(log["forwards"]) == "0G* 1r* 2r 0G 1r 2r 3r 4A"


@pytest.mark.parametrize(
    ("steps", "denoise", "expected"),
    [
        (8, 0.5, "0G 1r 2r 3r 4A 5r 6r 7r"),  # the second half of 16 steps
        (8, 0.9, "0G* 1r* 2r 3r 4A 5r 6r 7r"),
        (4, 1.0, "0G* 1r 2r 3r"),  # a few-step LoRA
        (8, 1.0, EIGHT),
        (20, 1.0, "0G* 1r* 2r* 3r* 4G* 5r 6r 7r 8A 9r 10r 11r 12A 13r 14r 15r 16A 17r 18r 19r"),
    ],
)
def test_parts_of_a_schedule(comfy_server, steps, denoise, expected):
    graph = Graph()
    model = graph.add(
        "LoraLoaderModelOnly", model=graph.model(), lora_name="wan_lora_tiny.safetensors", strength_model=1
    )
    graph.save(graph.sample(graph.probe(graph.patch(model)), steps=steps, denoise=denoise))
    log, _ = run(comfy_server, graph)
    assert words(log["forwards"]) == expected


@pytest.mark.parametrize("window", [0.0, 0.5, 1.0])
def test_the_window_ends_at_the_models_own_sigma(comfy_server, window):
    """Also when the shift is set after the patch: the model's sampling is asked at run time."""
    graph = Graph()
    model = graph.add(
        "ModelSamplingSD3", model=graph.probe(graph.patch(graph.model(), grouping_window=window)), shift=3.0
    )
    graph.save(graph.sample(model))
    log, _ = run(comfy_server, graph)
    end = {0.0: 1.0, 0.5: 3 * 0.5 / (1 + 2 * 0.5), 1.0: 0.0}[window]
    assert [f["in_window"] for f in log["forwards"]] == [f["sigma"] > end * 1.0001 for f in log["forwards"]]
    assert sum(f["in_window"] for f in log["forwards"]) == 8 * window


def test_the_papers_schedule_stops_demeaning_after_the_window(comfy_server):
    graph = Graph()
    graph.save(graph.sample(graph.probe(graph.patch(graph.model(), smoothing="paper"))))
    log, _ = run(comfy_server, graph)
    assert words(log["forwards"]) == "0G* 1r* 2p 3p 4p 5p 6p 7p"
