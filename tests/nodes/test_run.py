"""The state of a sampling run: whose grouping is whose, and that it ends with the run."""

import copy
import gc
import sys
import threading
import types
import weakref

import pytest
import torch
from vc_pack.nodes import override
from vc_pack.nodes.apply import OVERRIDE, patched
from vc_pack.nodes.run import KEY, Run, apply_model

from tests.nodes import fakes
from tests.nodes.toy import SIGMAS, WanModel, make_settings


def test_clones_and_copies_share_functions_but_never_state(spy, reports, version):
    model = WanModel(fakes.Attention(version))
    clone = patched(fakes.Patcher(model, version), make_settings(), None)
    branches = [clone.clone().clone(), clone.clone()]
    for branch in branches:
        assert (
            branch.model_options["transformer_options"][OVERRIDE]
            is clone.model_options["transformer_options"][OVERRIDE]
        )
        fakes.sample(branch, SIGMAS, model)
    assert [r.actions["group"] for r in reports] == [2, 2]  # each run started cold


def test_state_is_gone_after_the_run_and_after_an_interruption(spy, reports, version, monkeypatch):
    model = WanModel(fakes.Attention(version))
    clone = patched(fakes.Patcher(model, version), make_settings(), None)
    alive = []
    kept = override.Forward.rows
    monkeypatch.setattr(
        override.Forward, "rows", lambda self, *a: alive.append(weakref.ref(self.run)) or kept(self, *a)
    )

    def interrupted(x, sigma, options):
        if sigma < 0.6:
            raise KeyboardInterrupt
        return model(x, sigma, options)

    fakes.sample(clone, SIGMAS, model)
    with pytest.raises(KeyboardInterrupt):
        fakes.sample(clone, SIGMAS, interrupted)
    assert [r.stopped_early for r in reports] == [False, True]
    assert "stopped early" in reports[1].text()
    gc.collect()
    assert alive and all(ref() is None for ref in alive)


def test_batches_of_conditions_may_change_every_step(spy, reports):
    """cond and uncond in one batch, then one after the other, then swapped: nobody groups twice."""
    model = WanModel(fakes.Attention())
    schedule = [
        (1.0, {"uuids": ["c", "u"]}), (0.875, {"uuids": ["u"]}), (0.875, {"uuids": ["c"]}),
        (0.75, {"uuids": ["u", "c"]}), (0.625, {"uuids": ["c"]}), (0.625, {"uuids": ["u"]}),
    ]  # fmt: skip
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model, schedule)
    assert reports[0].actions == {"group": 2, "reuse": 10}


def test_gpus_that_share_a_run_in_threads_do_not_mix_anything_up(spy, reports):
    """With several GPUs ComfyUI evaluates cond and uncond of one step in two threads."""
    model = WanModel(fakes.Attention())
    wrong = []

    def both(x, sigma, options):
        def one(condition):
            base = types.SimpleNamespace(diffusion_model=model)
            mine = {**options, KEY: options[KEY].run, "uuids": [condition]}

            def evaluate(x, t, c_concat, c_crossattn, control, transformer_options):
                return model(x, sigma, transformer_options)

            try:
                executor = fakes.Executor(evaluate, base, [apply_model])
                executor(x, torch.tensor([sigma]), None, None, None, mine)
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=one, args=(c,)) for c in ("cond", "uncond")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, both)
    assert not wrong
    assert reports[0].actions == {"group": 4, "assign": 4, "reuse": 24}
    assert reports[0].left_alone == {"cross-attention": 32}


def test_context_windows_have_groupings_of_their_own(spy, reports):
    class Window:
        def __init__(self, *frames):
            self.index_list, self.dim = list(frames), 2

    model = WanModel(fakes.Attention())
    schedule = [(s, {"context_window": Window(*w)}) for s in SIGMAS[:3] for w in ((0, 1), (1, 2), (2, 3))]
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model, schedule)
    assert reports[0].actions == {"group": 6, "reuse": 12}


@pytest.mark.parametrize("windows", [(object(), object()), ([0, 1], [1, 2]), ({"frames": [0]}, {"frames": [1]})])
def test_a_context_window_of_another_pack_is_told_apart_by_itself(spy, reports, windows):
    model = WanModel(fakes.Attention())
    schedule = [(s, {"context_window": w}) for s in SIGMAS[:3] for w in windows]
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model, schedule)
    assert reports[0].actions == {"group": 4, "reuse": 8}


@pytest.mark.parametrize("free", [10**9, 8000])
def test_state_takes_at_most_a_quarter_of_the_free_memory(spy, reports, monkeypatch, free):
    """One layer's state is 2 KiB here: with 8000 bytes free none of two layers fits, so each call groups anew."""
    management = types.SimpleNamespace(get_free_memory=lambda device: free)
    monkeypatch.setitem(sys.modules, "comfy.model_management", management)
    model = WanModel(fakes.Attention(), tokens=128)
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model)
    fits = free > 8000
    assert reports[0].actions == ({"group": 2, "assign": 2, "reuse": 12} if fits else {"group": 16})
    assert reports[0].rows_unkept == (0 if fits else 16)
    assert ("did not fit in memory" in reports[0].text()) != fits
    assert reports[0].state_bytes <= free // 4


def test_a_run_in_copied_options_is_still_the_run():
    run = Run(make_settings(), 0.75)
    assert copy.deepcopy({"a": {"b": [run]}})["a"]["b"][0] is run
