"""The guard in a sampling run: planted bad layers, what a run decides and keeps, and what it reports."""

import json
import sys
import types
from functools import cache
from pathlib import Path

import pytest
import torch
from vc_pack.nodes import kernels
from vc_pack.nodes.apply import patched
from vc_pack.vc_attention.guard import BUDGETS, INTERVAL

from tests.generator import qkv
from tests.nodes import fakes
from tests.nodes.toy import SIGMAS, WanModel, make_settings

GRID, BLOCKS, BAD = (2, 8, 16), 3, 1


@cache
def layers() -> list:
    """q, k, v `[1, 2, 256, 128]` of every block."""
    return [qkv(GRID, (20 + 2 * block, 21 + 2 * block)) for block in range(BLOCKS)]


def planted(channels: int, q_gain: float, k_gain: float) -> list:
    """The same with a few channels of Q and K of one block made so many times larger."""
    where = torch.randperm(128, generator=torch.Generator().manual_seed(1))[:channels]
    (q, k, v), all_layers = layers()[BAD], list(layers())
    q, k = q.clone(), k.clone()
    q[..., where] *= q_gain
    k[..., where] *= k_gain
    all_layers[BAD] = (q, k, v)
    return all_layers


BAD_FOR_4_BITS = dict(
    channels=4, q_gain=1.0, k_gain=50.0
)  # 8 bits bear it: powers of two balance the channels of Q and K
BAD_FOR_ALL = dict(channels=8, q_gain=200.0, k_gain=200.0)  # scores of which the last bits decide


class Model(WanModel):
    """Blocks of self-attention whose outputs add up."""

    def __init__(self, attention, qkv_of_blocks, boxed=False):
        super().__init__(attention, boxed=boxed)
        self.layers, self.heads = qkv_of_blocks, 2

    def __call__(self, x, sigma, options):
        batch, total = len(options.get("uuids", ["cond"])), 0.0
        for q, k, v in self.layers:
            q, k, v = (t.expand(batch, -1, -1, -1).transpose(1, 2).flatten(2) for t in (q, k, v))
            boxes = map(fakes.Box, (q, k, v)) if self.boxed else (q, k, v)
            total = total + self.attention(*boxes, heads=self.heads, transformer_options=options).float()
        return total


def sample(model, sigmas=SIGMAS[-3:], schedule=None, **changes):
    """(outputs of the patched run, relative error of each against the unpatched model)."""
    patcher = fakes.Patcher(model, model.attention.version)
    exact = fakes.sample(patcher, sigmas, model, schedule)
    out = fakes.sample(patched(patcher, make_settings(**changes), "7"), sigmas, model, schedule)
    return out, [float((a - b).norm() / b.norm()) for a, b in zip(out, exact, strict=True)]


def test_layers_within_the_budget_stay_where_they_are(reports):
    _, errors = sample(Model(fakes.Attention(), layers()), error_budget="balanced")
    data = reports[0].as_dict()
    assert data["guard"]["moved"] == 0 and data["guard"]["measured"] == BLOCKS
    assert [layer["ran"] for layer in data["layers"]] == [["balanced"] * 2] * BLOCKS
    assert 0.003 < data["guard"]["worst"]["error"] < 0.03 and max(errors) < 0.03


def test_exactly_the_bad_layer_leaves_4_bits_in_the_first_step(reports):
    model = Model(fakes.Attention(), planted(**BAD_FOR_4_BITS))
    _, unguarded = sample(model, bits="4", error_budget="off")
    _, errors = sample(model, bits="4", error_budget="fast")
    good, bad = reports[1].as_dict()["layers"][::2], reports[1].as_dict()["layers"][BAD]
    assert [layer["ran"] for layer in good] == [["4bit"] * 2] * 2 and not any(layer["tried"] for layer in good)
    assert bad["ran"] == ["int8-nvfp4"] * 2 and bad["errors"][0] < BUDGETS["fast"]
    assert [(tried["step"], tried["profile"]) for tried in bad["tried"]] == [(0, "4bit")]
    assert bad["tried"][0]["error"] > BUDGETS["fast"] and reports[1].as_dict()["guard"]["moved"] == 1
    assert max(errors) < BUDGETS["fast"] and max(errors) < 0.6 * min(unguarded)


def test_exactly_the_layer_that_nothing_mends_gets_stock_attention_in_the_first_step(reports):
    attention = fakes.Attention()
    model = Model(attention, planted(**BAD_FOR_ALL))
    _, unguarded = sample(model, error_budget="off")
    before = attention.calls
    _, errors = sample(model, error_budget="balanced")
    data = reports[1].as_dict()
    assert data["layers"][BAD]["ran"] == ["stock", "stock"] and data["layers"][BAD]["reason"] == "over the error budget"
    assert [tried["profile"] for tried in data["layers"][BAD]["tried"]] == ["balanced", "quality"]
    assert [layer["ran"] for layer in data["layers"][::2]] == [["balanced"] * 2] * 2
    assert data["left_alone"] == {"over the error budget": 2} and data["kernels"] == {"reference (torch operations)": 4}
    assert attention.calls - before == 2 * BLOCKS + 2 + 2  # the unpatched run, the layer twice, and a slice timed twice
    assert max(errors) < BUDGETS["balanced"] and max(errors) < 0.6 * max(unguarded)
    assert "over the error budget: block 1, which now runs stock" in reports[1].text().splitlines()


def test_the_budget_decides_how_far_a_layer_moves(reports):
    model = Model(fakes.Attention(), planted(**BAD_FOR_4_BITS))
    for level, ran in (("balanced", "balanced"), ("quality", "quality")):
        sample(model, bits="4", error_budget=level)
        assert reports[-1].as_dict()["layers"][BAD]["ran"] == [ran] * 2


def test_runs_of_one_seed_decide_and_report_alike(reports):
    model = Model(fakes.Attention(), planted(**BAD_FOR_4_BITS))
    (first, _), (second, _) = (sample(model, bits="4", error_budget="balanced") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    one, two = (report.as_dict() for report in reports)
    for data in (one, two):
        data.pop("time")
        for layer in data["layers"]:
            layer.pop("ms")
    assert one == two


def test_every_run_starts_anew_also_the_other_expert(reports):
    attention = fakes.Attention()
    high, low = Model(attention, planted(**BAD_FOR_ALL)), Model(attention, layers())
    for model in (high, low, high):
        sample(model, error_budget="balanced")
    ran = [[layer["ran"][0] for layer in report.as_dict()["layers"]] for report in reports]
    assert ran == [["balanced", "stock", "balanced"], ["balanced"] * 3, ["balanced", "stock", "balanced"]]


def test_conditions_batches_and_context_windows_of_a_step_share_the_decision(reports):
    windows = [type("Window", (), {"index_list": [n], "dim": 2})() for n in (0, 1)]
    alone = [(0.5, {"uuids": [uuid], "context_window": window}) for uuid in "ab" for window in windows]
    schedule = [*alone, (0.25, {"uuids": ["a", "b"]})]
    _, errors = sample(
        Model(fakes.Attention(), planted(**BAD_FOR_ALL)), [0.5, 0.25, 0.0], schedule, error_budget="balanced"
    )
    data = reports[0].as_dict()
    assert data["guard"]["measured"] == BLOCKS + 1  # one call a layer, and the second rung of the bad one
    assert data["left_alone"] == {"over the error budget": 5} and data["kernels"].popitem()[1] == 10
    assert max(errors) < BUDGETS["balanced"]


def test_a_layer_is_measured_again_and_acts_on_it_in_the_step_after(reports):
    """The number of a later measurement is read when the layer is called in another step, however early it arrived."""
    steps = INTERVAL + 3
    sigmas = [1.0 - n / steps for n in range(steps + 1)]
    good, bad = Model(fakes.Attention(), layers()), planted(**BAD_FOR_ALL)

    class Turning(Model):
        def __call__(self, x, sigma, options):
            self.layers = bad if sigma < sigmas[INTERVAL - 1] else layers()
            return super().__call__(x, sigma, options)

    model = Turning(good.attention, layers())
    sample(model, sigmas, error_budget="balanced")
    row = reports[0].as_dict()["layers"][BAD]
    assert row["ran"] == ["balanced"] * (INTERVAL + 1) + ["stock"] * 2
    assert [n for n, error in enumerate(row["errors"]) if error is not None] == [0, INTERVAL]
    assert row["errors"][INTERVAL] > BUDGETS["balanced"]
    assert row["tried"] == [{"step": INTERVAL + 1, "profile": "quality", "error": row["tried"][0]["error"]}]


def test_an_error_that_is_no_number_takes_the_layer_out_and_stays_valid_json(reports, monkeypatch):
    from vc_pack.vc_attention import guard

    monkeypatch.setattr(guard, "squared_error", lambda *args: (torch.tensor(torch.nan), torch.tensor(1.0)))
    sample(Model(fakes.Attention(), layers()), error_budget="fast")
    data = json.loads(json.dumps(reports[0].as_dict(), allow_nan=False))
    assert [layer["ran"] for layer in data["layers"]] == [["stock"] * 2] * BLOCKS and data["guard"]["worst"] is None
    assert data["layers"][0]["tried"][0]["error"] is None and reports[0].text()


def test_an_interrupted_run_reports_what_it_measured(reports):
    class Interrupted(Model):
        def __call__(self, x, sigma, options):
            if sigma < SIGMAS[-3]:
                raise KeyboardInterrupt
            return super().__call__(x, sigma, options)

    model = Interrupted(fakes.Attention(), planted(**BAD_FOR_ALL))
    with pytest.raises(KeyboardInterrupt):
        fakes.sample(patched(fakes.Patcher(model), make_settings(error_budget="balanced"), "7"), SIGMAS[-3:], model)
    data = reports[0].as_dict()
    assert data["stopped_early"] and data["layers"][BAD]["ran"] == ["stock", None]


def test_rungs_without_a_kernel_are_left_out(reports, monkeypatch):
    """And none is asked for, let alone tested, where nothing is guarded."""
    asked = []

    def select(device, numerics, head_dim, seqlen_k=None):
        asked.append((numerics.qk, numerics.pv))
        return ["not built"] if numerics.pv == "int8" else types.SimpleNamespace(unit="attention")

    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", select)
    for bits, level, rungs in (("8", "balanced", 1), ("4", "balanced", 3), ("4", "off", 1)):
        asked.clear()
        ladder = kernels.ladder(make_settings(bits=bits, backend="auto", error_budget=level), 128, torch.device("cpu"))
        assert len(ladder) == rungs and len(asked) == (1 if level == "off" else rungs + 1)


@pytest.mark.parametrize("budget", ["off", "balanced"])
def test_boxes_reach_stock_attention_full_after_a_measured_call(reports, monkeypatch, budget):
    attention = fakes.Attention("0.38")
    monkeypatch.setattr(sys.modules["comfy.ldm.modules.attention"], "optimized_attention", attention, raising=False)
    attention.__wrapped__ = attention.backend
    _, errors = sample(Model(attention, planted(**BAD_FOR_ALL), boxed=True), error_budget=budget)
    assert reports[0].as_dict()["layers"][BAD]["ran"] == (["balanced"] * 2 if budget == "off" else ["stock"] * 2)


def test_off_measures_nothing_and_still_says_what_ran(reports):
    sample(Model(fakes.Attention(), layers()), error_budget="off")
    data = reports[0].as_dict()
    assert data["guard"] == {"level": "off", "budget": None, "measured": 0, "worst": None, "moved": 0}
    assert data["layers"][0]["ran"] == ["balanced"] * 2 and data["layers"][0]["errors"] == [None, None]
    assert data["time"]["attention"] > 0 and data["time"]["saved"] is None


def test_times_and_groups_are_reported_where_they_were_measured(reports):
    sample(Model(fakes.Attention(), layers()), error_budget="balanced", clusters=4)
    data = reports[0].as_dict()
    layer, time = data["layers"][0], data["time"]
    assert (
        layer["clusters"]["count"] == 4 and 0.05 < layer["block_energy"][0] < 0.8 and layer["block_energy"][1] is None
    )
    assert 0 <= layer["clusters"]["smallest"] <= layer["clusters"]["median"] <= layer["clusters"]["largest"] <= 1
    assert all(time[stage] > 0 for stage in ("grouping", "preparation", "attention", "guard", "stock_call"))
    spent = sum(time[stage] for stage in ("grouping", "preparation", "attention", "guard"))
    assert time["saved"] == pytest.approx(time["stock_call"] * 2 * BLOCKS - spent, abs=0.01)


@pytest.mark.gpu
def test_on_a_gpu(reports):
    """Kernels, times on the card's clock, numbers that arrive while it works."""
    model = Model(fakes.Attention(), [tuple(x.cuda().repeat(1, 2, 16, 1) for x in qkv) for qkv in layers()])
    model.heads = 4
    sigmas = [1.0 - n / 10 for n in range(11)]
    _, errors = sample(model, sigmas, error_budget="balanced", backend="cuda")
    data = reports[0].as_dict()
    assert [layer["ran"] for layer in data["layers"]] == [["balanced"] * 10] * BLOCKS and max(errors) < 0.03
    assert data["guard"]["measured"] == 2 * BLOCKS and 0 < data["guard"]["worst"]["error"] < 0.03
    assert all(data["time"][stage] > 0 for stage in ("grouping", "preparation", "attention", "guard", "stock_call"))


def form(value):
    """Keys and kinds of nested data; lists by their first element."""
    if isinstance(value, dict):
        return {key: form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [form(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def test_the_example_that_the_interface_is_built_from_has_the_form_of_a_report(reports):
    example = json.loads((Path(__file__).parent / "report.json").read_text(encoding="utf-8"))
    sample(Model(fakes.Attention(), planted(**BAD_FOR_ALL)), error_budget="balanced")
    data = json.loads(json.dumps(reports[0].as_dict()))
    counters = {"kernels", "widths", "actions", "left_alone"}  # whose keys are data
    assert set(example) - {"node", "text"} == set(data)
    for name in set(data) - counters - {"layers"}:
        assert form(example[name]) == form(data[name]), name
    for ours, theirs in zip(example["layers"][:2], data["layers"][:2], strict=True):
        assert form(ours) == form(theirs)
