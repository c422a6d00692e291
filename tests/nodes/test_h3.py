"""MiniMax H3 on ComfyUI 0.38: views of a fused buffer in boxes, left-over options, recorded allocations."""

import contextlib
import sys
import types

import pytest
import torch
from vc_pack.nodes import override
from vc_pack.nodes.apply import patched

from tests.nodes import fakes
from tests.nodes.h3_model import DIM, HEADS, TEXT, TOKENS, MiniMaxH3Model
from tests.nodes.toy import SIGMAS, make_settings


@pytest.fixture
def h3(monkeypatch):
    """Makes (stand-in, attention); boxes that are not ours find their way to ComfyUI's attention."""

    def make(**options):
        attention = fakes.Attention("0.38")
        attention.__wrapped__ = attention.backend
        monkeypatch.setattr(sys.modules["comfy.ldm.modules.attention"], "optimized_attention", attention, raising=False)
        return MiniMaxH3Model(attention, **options)

    return make


def run(model, sigmas=SIGMAS, schedule=None, **changes):
    """One sampling run, whose prompt has as many tokens as the model's text."""
    context = {"context": torch.zeros(1, TEXT, 64)}
    schedule = [(s, {**context, **extra}) for s, extra in schedule or [(s, {}) for s in sigmas[:-1]]]
    patcher = fakes.Patcher(model, "0.38")
    return fakes.sample(patched(patcher, make_settings(**changes), None), sigmas, model, schedule)


@pytest.mark.parametrize("boxed", [True, False])
def test_all_blocks_but_the_last_are_ours_and_the_refiner_is_not(spy, reports, h3, boxed):
    run(h3(boxed=boxed))
    (report,) = reports
    assert report.model == "MiniMax H3" and report.actions == {"group": 49, "assign": 49, "reuse": 6 * 49}
    assert report.left_alone == {"sensitive block of this model": 8, "text refiner": 16}
    assert all(call["shape"] == (1, HEADS, TOKENS, DIM) for call in spy)


def test_naming_blocks_replaces_the_sensitive_ones(spy, reports, h3):
    run(h3(blocks=4), SIGMAS[-2:], blocks_left_alone="0-1")
    assert reports[0].left_alone == {"block left alone": 2, "text refiner": 2}
    assert len(spy) == 2


def test_views_of_the_fused_buffer_arrive_as_they_are(reports, h3, monkeypatch):
    strides = []

    def attend(q, k, v, **_):
        strides.extend(x.stride() for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), None

    monkeypatch.setattr(override, "attend", attend)
    run(h3(blocks=2), SIGMAS[-2:], error_budget="off")
    assert {stride[-2:] for stride in strides} == {(3 * HEADS * DIM, 1)}


def test_the_result_is_that_of_the_unpatched_model(spy, reports, h3):
    model = h3(blocks=6)
    ours = run(model)
    plain = fakes.sample(fakes.Patcher(model, "0.38"), SIGMAS, model)
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(ours, plain, strict=True))


def test_conditions_in_calls_of_their_own_have_groupings_of_their_own(spy, reports, h3):
    schedule = [(s, {"uuids": [condition]}) for s in SIGMAS[:-1] for condition in ("cond", "uncond")]
    run(h3(blocks=3), schedule=schedule)
    assert reports[0].actions == {"group": 4, "assign": 4, "reuse": 24}


def test_the_eight_steps_of_a_lora(spy, reports, h3):
    """A quarter of eight steps is two: groups are formed once, renewed once."""
    run(h3(blocks=2))
    expected = "group reuse reuse reuse assign reuse reuse reuse".split()
    assert [call["action"].value for call in spy] == expected


def test_nothing_of_ours_enters_the_allocation_record(reports, h3, monkeypatch):
    """ComfyUI records what a block allocates and replays it; groupings and kernels' buffers must stay outside."""
    paused, inside = [0], []

    @contextlib.contextmanager
    def pause_malloc_graph():
        paused[0] += 1
        yield
        paused[0] -= 1

    def attend(q, k, v, **_):
        inside.append(paused[0])
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), None

    module = types.SimpleNamespace(pause_malloc_graph=pause_malloc_graph)
    monkeypatch.setitem(sys.modules, "comfy.model_prefetch", module)
    monkeypatch.setattr(override, "attend", attend)
    run(h3(blocks=3), SIGMAS[-3:], error_budget="off")
    assert inside == [1] * 4 and paused == [0]
