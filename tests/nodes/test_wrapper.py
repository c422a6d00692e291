"""Models of ComfyUI-WanVideoWrapper: found through the loaded model, hooked once, untouched without our key."""

import copy
import gc
import sys

import pytest
import torch
from vc_pack.nodes import wrapper
from vc_pack.nodes.run import KEY
from vc_pack.vc_attention.errors import ParameterError

from tests.nodes import wrapper_model
from tests.nodes.toy import make_settings
from tests.nodes.wrapper_model import Patcher, WanModel, sample


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """The stand-in's module as it was before any node ran."""
    monkeypatch.setattr(wrapper_model, "attention", wrapper_model.attention)
    wrapper_model.CALLS.clear()


@pytest.fixture
def shown(monkeypatch):
    reports = []
    monkeypatch.setattr(wrapper, "show", lambda report, node_id: reports.append((node_id, report)))
    return reports


def patched(network=None, version="0.38", node="7", **changes):
    return wrapper.patched(Patcher(network or WanModel(), version), make_settings(**changes), node)


def test_a_run_from_node_to_report(spy, shown, version):
    model = patched(version=version)
    sample(model, steps=8)
    expected = "group reuse reuse reuse assign reuse reuse reuse".split()
    assert [call["action"].value for call in spy] == [action for action in expected for _ in range(2)]
    assert all(call["shape"] == (1, 2, 32, 128) for call in spy)
    ((node, report),) = shown
    assert node == "7" and not report.stopped_early
    assert report.model == "LongCat-Video (WanVideoWrapper)" and report.forwards == 8
    assert report.actions == {"group": 2, "assign": 2, "reuse": 12} and not report.left_alone
    assert len(wrapper_model.CALLS) == 16  # cross-attention


def test_the_result_is_that_of_the_unpatched_model(spy, shown):
    network = WanModel()
    model = patched(network)
    for how in (dict(), dict(cond=1), dict(cond=2), dict(cfg=4.0), dict(windows=2)):
        assert torch.allclose(sample(model, **how), sample(Patcher(network), **how), atol=1e-5)


def test_frames_that_continue_others_have_fewer_queries_than_keys(spy, shown):
    """A picture's or a clip's frames see one another alone, the frames to come see all: two calls in each block."""
    sample(patched(), steps=4, cond=1)
    assert {call["shape"] for call in spy} == {(1, 2, 8, 128), (1, 2, 24, 128)}
    assert shown[0][1].actions == {"group": 4, "reuse": 12} and not shown[0][1].left_alone
    sample(patched(), steps=4, cond=2)
    assert shown[1][1].actions == {"group": 8, "reuse": 24} and not shown[1][1].left_alone


def test_conditions_and_context_windows_have_groupings_of_their_own(spy, shown):
    sample(patched(), steps=4, cfg=4.0)
    sample(patched(), steps=4, windows=3)
    assert [report.actions["group"] for _, report in shown] == [4, 6]


def test_every_sampling_run_starts_cold_and_ends_with_its_options(spy, shown, version):
    model = patched(version=version)
    for branch in (model, model.clone(), copy.deepcopy(model)):
        sample(branch, steps=4)
        gc.collect()
    assert [report.actions for _, report in shown] == [{"group": 2, "reuse": 6}] * 3


def test_an_interrupted_run_is_told(spy, shown):
    model = patched()
    with pytest.raises(KeyboardInterrupt):
        sample(model, fail_at=3)
    gc.collect()
    assert [(report.forwards, report.stopped_early) for _, report in shown] == [(3, True)]


def test_options_that_are_not_copied_make_a_new_run_when_steps_start_over(spy, shown, monkeypatch):
    monkeypatch.setattr(wrapper_model.copy, "deepcopy", lambda options: options)
    model = patched()
    sample(model, steps=4)
    sample(model, steps=4)
    del model
    gc.collect()
    assert [report.actions for _, report in shown] == [{"group": 2, "reuse": 6}] * 2


def test_hooks_are_set_once_and_do_nothing_without_the_key(spy, shown):
    network, plain = WanModel(), wrapper_model.attention
    for _ in range(3):
        patched(network)
    hooked = wrapper_model.attention
    assert hooked is not plain and hasattr(hooked, wrapper.HOOKED) and len(network._forward_pre_hooks) == 1
    patched(WanModel())
    assert wrapper_model.attention is hooked
    sample(Patcher(network), steps=4)
    assert len(wrapper_model.CALLS) == 4 * 2 * 2 and not spy and not shown


def test_the_model_that_came_in_stays_as_it_was(spy, shown, version):
    patcher = Patcher(WanModel(), version)
    before = dict(patcher.model_options["transformer_options"])
    clone = wrapper.patched(patcher, make_settings(), None)
    assert patcher.model_options["transformer_options"] == before
    assert KEY in clone.model_options["transformer_options"]


def test_other_kinds_of_attention_are_left_alone_and_named(spy, shown):
    sample(patched(WanModel(mode="radial_sage_attention")), steps=2)
    assert not spy and shown[0][1].left_alone == {"attention mode radial_sage_attention": 4}


def test_settings_reach_the_calls(spy, shown):
    sample(patched(blocks_left_alone="1", grouping_window=0.0), steps=4)
    assert shown[0][1].left_alone == {"block left alone": 4} and shown[0][1].actions == {"group": 1, "reuse": 3}
    sample(patched(min_tokens=64), steps=4)
    assert shown[1][1].left_alone == {"fewer than 64 tokens": 8}


def test_a_model_of_another_kind_is_refused_in_words():
    with pytest.raises(ParameterError, match="WanVideoModelLoader"):
        wrapper.patched(Patcher(torch.nn.Linear(2, 2)), make_settings(), None)


def test_a_version_that_keeps_its_options_from_attention_is_refused_in_words(monkeypatch):
    def forward(self, q, k, v, seq_lens, attention_mode_override=None):
        return q

    monkeypatch.setattr(wrapper_model.WanSelfAttention, "forward", forward)
    with pytest.raises(ParameterError, match="update ComfyUI-WanVideoWrapper"):
        patched()


def test_a_model_whose_module_is_gone_is_refused_in_words(monkeypatch):
    monkeypatch.delitem(sys.modules, wrapper_model.WanSelfAttention.__module__)
    with pytest.raises(ParameterError, match="WanVideoModelLoader"):
        patched()


@pytest.mark.parametrize("mode", ["sdpa", "radial_sage_attention"])
def test_blocks_that_are_called_without_their_model_stay_as_they_are(spy, shown, mode):
    """As that pack does where two models share their blocks' work: the options hold what the node left there."""
    network = WanModel(mode=mode)
    options = patched(network).model_options["transformer_options"]
    x, text = torch.randn(1, 32, 256), torch.randn(1, 6, 256)
    expected = network.blocks[0](x, text, 0, {})
    assert torch.equal(network.blocks[0](x, text, 0, options), expected) and not spy


def test_a_sampler_may_give_latent_and_time_by_position(spy, shown):
    network = WanModel()
    options = copy.deepcopy(patched(network).model_options["transformer_options"])
    network([torch.randn(32, 256)], torch.tensor([900.0]), [torch.randn(6, 256)], transformer_options=options)
    assert len(spy) == 2


def test_a_compiled_block_is_found_and_sees_every_step(spy, shown):
    network = WanModel(blocks=1)
    network.blocks[0] = torch.compile(network.blocks[0], backend="eager")
    model = patched(network)
    expected = sample(Patcher(network), steps=4)
    assert torch.allclose(sample(model, steps=4), expected, atol=1e-5)
    assert shown[0][1].actions == {"group": 1, "reuse": 3}
