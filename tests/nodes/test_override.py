"""The override in a sampling run: what it runs, what it passes on and to whom, on both ComfyUI versions."""

import copy
import gc
import sys
import weakref

import pytest
import torch
from vc_pack.nodes import override
from vc_pack.nodes.apply import OVERRIDE, patched
from vc_pack.nodes.run import KEY

from tests.nodes import fakes
from tests.nodes.toy import SIGMAS, WanModel, make_settings


def test_a_run_from_node_to_report(spy, reports, version):
    attention = fakes.Attention(version)
    model = WanModel(attention)
    patcher = fakes.Patcher(model, version)
    out = fakes.sample(patched(patcher, make_settings(), "7"), SIGMAS, model)
    assert [c["action"].value for c in spy] == [
        a for a in "group reuse reuse reuse assign reuse reuse reuse".split() for _ in "12"
    ]
    assert all(c["shape"] == (1, 2, 32, 128) and c["backend"] == "reference" for c in spy)
    unpatched = fakes.sample(patcher, SIGMAS, model)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(out, unpatched, strict=True))
    (seen,) = reports
    data = seen.as_dict()
    assert {name: data[name] for name in data if name not in ("format", "guard", "steps", "layers", "time")} | {
        "state_bytes": 0
    } == {
        "profile": "balanced, auto bits", "model": "Wan", "tokens": "video (t, h, w)", "forwards": 8,
        "calls_accelerated": 16, "calls_left_alone": 16, "kernels": {"reference (torch operations)": 16},
        "widths": {"auto chose 8 bits: 4 is for RTX 50 and RTX PRO Blackwell": 16},
        "actions": {"group": 2, "assign": 2, "reuse": 12}, "left_alone": {"cross-attention": 16}, "state_bytes": 0,
        "rows_evicted": 0, "rows_unkept": 0, "stopped_early": False,
    }  # fmt: skip
    assert seen.state_bytes == 2 * (2 * 4 * 128 + 4 * (2 + 2 * 4 + 2 * 32))  # two layers, int8 centroids and int32


def test_the_model_that_came_in_stays_as_it_was(spy, reports, version):
    attention = fakes.Attention(version)
    model = WanModel(attention)
    patcher = fakes.Patcher(model, version)
    patcher.model_options["transformer_options"] = {"patches": {"a": [1]}, "wrappers": {}}
    before_options, before_wrappers = copy.deepcopy(patcher.model_options), copy.deepcopy(patcher.wrappers)
    clone = patched(patcher, make_settings(), None)
    fakes.sample(clone, SIGMAS, model)
    assert patcher.model_options == before_options and patcher.wrappers == before_wrappers
    spy.clear()
    fakes.sample(patcher, SIGMAS, model)
    assert not spy
    assert KEY not in clone.model_options["transformer_options"]


def test_an_override_that_was_there_gets_what_is_not_ours(spy, reports, version):
    attention = fakes.Attention(version)
    model = WanModel(attention)
    seen = []

    def before(func, *args, **kwargs):
        seen.append((args[1].shape[1], set(kwargs)))
        return func(*args, **kwargs)

    patcher = fakes.Patcher(model, version)
    patcher.model_options["transformer_options"][OVERRIDE] = before
    fakes.sample(patched(patcher, make_settings(), None), SIGMAS[-3:], model)
    assert len(spy) == 4 and [s[0] for s in seen] == [8] * 4  # only cross-attention, with its 8 keys
    assert seen[0][1] == {"heads", "transformer_options", "_inside_attn_wrapper"}


def test_an_override_put_on_top_that_chains_still_reaches_us(spy, reports, version):
    model = WanModel(fakes.Attention(version))
    clone = patched(fakes.Patcher(model, version), make_settings(), None).clone()
    options = clone.model_options["transformer_options"]
    under = options[OVERRIDE]
    options[OVERRIDE] = lambda func, *args, **kwargs: under(func, *args, **kwargs)
    fakes.sample(clone, SIGMAS[-3:], model)
    assert len(spy) == 4 and reports[0].left_alone == {"cross-attention": 4}


def test_an_override_that_replaces_us_is_told_on_the_node(spy, reports, version):
    model = WanModel(fakes.Attention(version))
    clone = patched(fakes.Patcher(model, version), make_settings(), None).clone()
    clone.model_options["transformer_options"][OVERRIDE] = lambda func, *args, **kwargs: func(*args, **kwargs)
    fakes.sample(clone, SIGMAS, model)
    assert not spy and "another node" in reports[0].text()


def test_a_second_patch_replaces_the_first(spy, reports, version):
    model = WanModel(fakes.Attention(version))

    def before(func, *args, **kwargs):
        return func(*args, **kwargs)

    patcher = fakes.Patcher(model, version)
    patcher.model_options["transformer_options"][OVERRIDE] = before
    twice = patched(patched(patcher, make_settings(), "1"), make_settings(blocks_left_alone="0"), "2")
    assert twice.model_options["transformer_options"][OVERRIDE].vc_attention_previous is before
    fakes.sample(twice, SIGMAS, model)
    assert len(reports) == 1 and reports[0].left_alone == {"block left alone": 8, "cross-attention": 16}


def test_a_call_is_judged_once_though_another_override_lies_between_two_patches(spy, reports, version):
    model = WanModel(fakes.Attention(version), blocks=3)
    once = patched(fakes.Patcher(model, version), make_settings(blocks_left_alone="0"), "1")
    options = once.model_options["transformer_options"]
    under, seen = options[OVERRIDE], []
    options[OVERRIDE] = lambda func, *args, **kwargs: seen.append(1) or under(func, *args, **kwargs)
    twice = patched(once, make_settings(blocks_left_alone="1"), "2")
    fakes.sample(twice, SIGMAS, model)
    (report,) = reports
    assert report.actions.total() == len(spy) == 16  # blocks 0 and 2
    assert report.left_alone == {"block left alone": 8, "cross-attention": 24} and len(seen) == 32


def test_q_k_and_v_may_come_by_name(spy, reports, version):
    attention = fakes.Attention(version)

    def model(x, sigma, options):
        q = torch.randn(1, 32, 256)
        override = options[OVERRIDE]
        for text in (q, q[:, :8]):
            override(attention.backend, q=q, k=text, v=text, heads=2, transformer_options=options)

    fakes.sample(patched(fakes.Patcher(model, version), make_settings(), None), SIGMAS, model)
    assert len(spy) == 8 and attention.calls == 8


@pytest.mark.parametrize("absent", ["sample_sigmas", "wrapper"])
def test_calls_outside_a_known_step_are_left_alone_and_counted(spy, reports, absent):
    """Without the sampler's sigmas, or by a control network, which ComfyUI calls before the model itself."""
    model = WanModel(fakes.Attention())
    clone = patched(fakes.Patcher(model), make_settings(), None)
    if absent == "wrapper":
        clone.wrappers.pop("apply_model")
    schedule = [(s, {"sample_sigmas": None}) for s in SIGMAS[:2]] if absent == "sample_sigmas" else None
    fakes.sample(clone, SIGMAS[:3], model, schedule)
    assert not spy and reports[0].left_alone == {"not in a step of the model that was patched": 8}


@pytest.mark.parametrize("numbered", [False, True])
def test_blocks_left_alone_do_not_shift_the_others(spy, reports, numbered):
    model = WanModel(fakes.Attention(), blocks=4, numbered=numbered)
    clone = patched(fakes.Patcher(model), make_settings(blocks_left_alone="0, 2-3"), None)
    fakes.sample(clone, SIGMAS, model)
    assert reports[0].left_alone == {"block left alone": 24, "cross-attention": 32}
    assert reports[0].actions == {"group": 1, "assign": 1, "reuse": 6}


def test_layers_of_one_block_number_are_told_apart(spy, reports):
    """A VACE block runs right after main block i under the same number."""

    class Twice(WanModel):
        def __call__(self, x, sigma, options):
            options = {**options, "block_type": "double", "block_index": 0}
            q = torch.randn(1, 32, 256)
            return [self.attention(q, q, q, heads=2, transformer_options=options) for _ in range(2)]

    model = Twice(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model)
    assert reports[0].actions == {"group": 2, "assign": 2, "reuse": 12}


def test_outside_a_sampling_run_nothing_is_ours(spy, version):
    attention = fakes.Attention(version)
    clone = patched(fakes.Patcher(None, version), make_settings(), None)
    q = torch.randn(1, 32, 256)
    attention(q, q, q, 2, transformer_options=clone.model_options["transformer_options"])
    assert attention.calls == 1 and not spy


def test_boxes_are_emptied_so_that_tensors_can_be_freed_early(reports, monkeypatch):
    freed = []

    def attend(q, k, v, *, numerics, action, grouping, backend, lap):
        refs = [weakref.ref(t) for t in (q, k, v)]
        out = q + 0.0
        del q, k, v
        gc.collect()
        freed.extend(ref() is None for ref in refs)
        return out, None

    monkeypatch.setattr(override, "attend", attend)
    model = WanModel(fakes.Attention("0.38"), boxed=True, text=32)
    monkeypatch.setattr(
        sys.modules["comfy.ldm.modules.attention"], "optimized_attention", model.attention, raising=False
    )
    fakes.sample(patched(fakes.Patcher(model, "0.38"), make_settings(), None), SIGMAS[-2:], model)
    # Before Python 3.11 a caller keeps its arguments alive during a call.
    assert freed and all(freed) or sys.version_info < (3, 11)


@pytest.mark.parametrize("previous", [None, "tensors", "boxes"])
def test_boxes_that_are_not_ours_go_to_whoever_was_there(spy, reports, monkeypatch, previous):
    attention = fakes.Attention("0.38")
    model = WanModel(attention, boxed=True)
    monkeypatch.setattr(sys.modules["comfy.ldm.modules.attention"], "optimized_attention", attention, raising=False)
    attention.__wrapped__ = attention.backend
    seen = []

    def before(func, *args, **kwargs):
        seen.append("tensors" if torch.is_tensor(args[0]) else "wrong")
        return func(*args, **kwargs)

    def before_boxes(*args, **kwargs):
        seen.append("boxes" if isinstance(args[0], fakes.Box) else "wrong")
        return fakes.stock(*(box.take() for box in args[:3]), **kwargs)

    patcher = fakes.Patcher(model, "0.38")
    if previous:
        patcher.model_options["transformer_options"][OVERRIDE] = before
    if previous == "boxes":
        before.container_function = before_boxes
    fakes.sample(patched(patcher, make_settings(), None), SIGMAS[-3:], model)
    assert len(spy) == 4 and reports[0].left_alone == {"cross-attention": 4}
    assert seen == ([previous] * 4 if previous else [])
    assert attention.calls == (0 if previous == "boxes" else 4)


def test_as_many_text_tokens_as_video_tokens_is_not_mistaken(spy, reports):
    model = WanModel(fakes.Attention(), tokens=32, text=32)
    schedule = [(s, {"context": torch.zeros(1, 32, 64)}) for s in SIGMAS[:2]]
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model, schedule)
    assert not spy and reports[0].left_alone == {"cross-attention": 8}


def test_a_failing_kernel_is_an_error_not_a_silent_fallback(reports, monkeypatch):
    def attend(*args, **kwargs):
        raise RuntimeError("kernel failed")

    monkeypatch.setattr(override, "attend", attend)
    model = WanModel(fakes.Attention())
    with pytest.raises(RuntimeError, match="kernel failed"):
        fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model)
    assert reports[0].stopped_early


def test_an_error_of_the_override_underneath_leaves_the_next_call_ours(spy, reports):
    model, failed = WanModel(fakes.Attention(), blocks=1), []

    def before(func, *args, **kwargs):
        raise RuntimeError("theirs")

    def forgiving(x, sigma, options):
        for _ in range(2):
            try:
                model(x, sigma, options)
            except RuntimeError:
                failed.append(sigma)

    patcher = fakes.Patcher(model)
    patcher.model_options["transformer_options"][OVERRIDE] = before
    fakes.sample(patched(patcher, make_settings(), None), SIGMAS[-2:], forgiving)
    assert len(failed) == 2 and len(spy) == 2


def test_torch_compile_leaves_the_override_alone(spy, reports):
    """The compiled part breaks around the override, which sees every step anew: nothing of a step is baked in."""
    compiled = []

    class Compiled(WanModel):
        def __call__(self, x, sigma, options):
            @torch.compile(backend="eager")
            def block(q):
                return self.attention(q * 2, q, q, heads=2, transformer_options=options) + 1

            compiled.append(block(torch.ones(1, 32, 256)))
            return compiled[-1]

    model = Compiled(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model)
    assert [c["action"].value for c in spy] == "group reuse reuse reuse assign reuse reuse reuse".split()
    assert all(torch.allclose(out, torch.full_like(out, 2.0)) for out in compiled)
