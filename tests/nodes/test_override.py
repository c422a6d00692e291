"""The override in a sampling run: what it runs, what it passes on and to whom, on both ComfyUI versions."""

import copy
import gc
import sys
import threading
import types
import weakref

import pytest
import torch
from vc_pack.nodes import kernels, override, report
from vc_pack.nodes.apply import OVERRIDE, patched
from vc_pack.nodes.run import KEY, Run, apply_model
from vc_pack.nodes.settings import settings
from vc_pack.vc_attention.config import Action, Grouping
from vc_pack.vc_attention.prepare import unsupported

from tests.nodes import fakes

SIGMAS = [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]


def make_settings(**changes):
    widgets = dict(
        bits="auto", grouping_window=0.25, clusters=0, refresh_interval=4, probability="auto", smoothing="balanced",
        min_tokens=0, blocks_left_alone="", backend="reference",
    )  # fmt: skip
    return settings(**{**widgets, **changes})


class WanModel:
    """Two blocks, each with one self-attention and one cross-attention call, as ComfyUI 0.3.75 makes them."""

    def __init__(self, attention, tokens=32, text=8, blocks=2, numbered=False, boxed=False):
        self.attention, self.tokens, self.text, self.blocks = attention, tokens, text, blocks
        self.numbered, self.boxed = numbered, boxed

    def __call__(self, x, sigma, options):
        batch = len(options.get("uuids", ["cond"]))
        generator = torch.Generator().manual_seed(0)
        out = None
        for block in range(self.blocks):
            if self.numbered:
                options = {**options, "block_type": "double", "block_index": block}
            for keys in (self.tokens, self.text):
                q, k, v = (torch.randn(batch, n, 256, generator=generator) for n in (self.tokens, keys, keys))
                if self.boxed:
                    q, k, v = map(fakes.Box, (q, k, v))
                out = self.attention(q, k, v, heads=2, transformer_options=options)
        return out


@pytest.fixture
def spy(monkeypatch):
    """Calls of attend(), each run by plain attention; a renewing call leaves a grouping behind."""
    calls = []

    def attend(q, k, v, *, numerics, action, grouping, backend):
        calls.append({"action": action, "grouping": grouping, "backend": backend, "shape": tuple(q.shape)})
        if action in (Action.GROUP, Action.ASSIGN):
            b, h, n, d = v.shape
            sizes = ((b, h, 4, d), (b, h), (b, h, 4), (b, h, n))
            types = (torch.int8, torch.float32, torch.int32, torch.int32)
            grouping = Grouping(*(torch.zeros(s, dtype=t) for s, t in zip(sizes, types, strict=True)))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), grouping

    monkeypatch.setattr(override, "attend", attend)
    return calls


@pytest.fixture
def reports(monkeypatch):
    shown = []
    monkeypatch.setattr("vc_pack.nodes.run.show", lambda report, node_id: shown.append(report))
    return shown


@pytest.fixture(params=fakes.VERSIONS)
def version(request):
    return request.param


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
    assert seen.as_dict() | {"state_bytes": 0} == {
        "profile": "balanced", "model": "Wan", "tokens": "video (t, h, w)", "forwards": 8, "calls_accelerated": 16,
        "calls_left_alone": 16, "kernels": {"reference (torch operations)": 16},
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


@pytest.mark.parametrize(
    ("smoothing", "line"),
    [("balanced", "groups: formed 2, renewed 2, kept 12"), ("paper", "groups: formed 2, kept 2, without averages 12")],
)
def test_the_report_says_in_words_what_became_of_the_groups(spy, reports, smoothing, line):
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(smoothing=smoothing), None), SIGMAS, model)
    lines = reports[0].text().splitlines()
    assert line in lines and "memory for groups: 0.0 MiB" in lines


def test_every_action_has_a_word():
    assert set(report.WORDS) == {action.value for action in Action}


def test_a_run_that_never_reached_the_model_blames_nobody(spy, reports):
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), [1.0], model)
    assert reports[0].text().endswith("the model was not evaluated")


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


def test_short_calls_and_missing_kernels_are_left_alone_with_the_remedy(spy, reports):
    model = WanModel(fakes.Attention())
    for changes, words in [({"min_tokens": 33}, "fewer than 33 tokens"), ({"backend": "auto"}, "NVIDIA GPU")]:
        fakes.sample(patched(fakes.Patcher(model), make_settings(**changes), None), SIGMAS, model)
        assert not spy and any(words in reason for reason in reports[-1].left_alone)
        assert words in reports[-1].text()


def test_outside_a_sampling_run_nothing_is_ours(spy, version):
    attention = fakes.Attention(version)
    clone = patched(fakes.Patcher(None, version), make_settings(), None)
    q = torch.randn(1, 32, 256)
    attention(q, q, q, 2, transformer_options=clone.model_options["transformer_options"])
    assert attention.calls == 1 and not spy


def test_boxes_are_emptied_so_that_tensors_can_be_freed_early(reports, monkeypatch):
    freed = []

    def attend(q, k, v, *, numerics, action, grouping, backend):
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


def test_a_context_window_of_another_pack_is_told_apart_by_itself(spy, reports):
    model = WanModel(fakes.Attention())
    windows = [object(), object()]
    schedule = [(s, {"context_window": w}) for s in SIGMAS[:3] for w in windows]
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model, schedule)
    assert reports[0].actions == {"group": 4, "reuse": 8}


def test_as_many_text_tokens_as_video_tokens_is_not_mistaken(spy, reports):
    model = WanModel(fakes.Attention(), tokens=32, text=32)
    schedule = [(s, {"context": torch.zeros(1, 32, 64)}) for s in SIGMAS[:2]]
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS, model, schedule)
    assert not spy and reports[0].left_alone == {"cross-attention": 8}


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


@pytest.mark.parametrize(("backend", "keys"), [("auto", 32), ("cuda", None)])
def test_kernels_run_where_there_are_some(spy, reports, monkeypatch, backend, keys):
    """auto also asks whether a call of this length gains anything; cuda insists. Asked once a run, not every call."""
    asked = []

    def select(device, numerics, head_dim, seqlen_k=None):
        asked.append((device.type, numerics, head_dim, seqlen_k))
        return types.SimpleNamespace(unit="attention_sm90_expcast")

    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", select)
    model = WanModel(fakes.Attention())
    chosen = make_settings(backend=backend)
    fakes.sample(patched(fakes.Patcher(model), chosen, None), SIGMAS, model)
    assert {call["backend"] for call in spy} == {"cuda"} and reports[0].kernels == {"attention_sm90_expcast": 16}
    assert asked == [("cpu", chosen.numerics, 128, keys)]


def test_without_kernels_auto_names_every_reason(spy, reports, monkeypatch):
    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", lambda *args: ["too old", "not built: run install.py"])
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(backend="auto"), None), SIGMAS, model)
    assert not spy and reports[0].left_alone["too old; not built: run install.py"] == 16


@pytest.mark.parametrize("changes", [{"bits": "4"}, {"smoothing": "paper"}])
def test_settings_that_no_kernel_knows_are_told_in_the_widgets_words(spy, reports, monkeypatch, changes):
    def select(device, numerics, head_dim, seqlen_k=None):
        return [*unsupported(numerics), "attention_sm90_expcast has probability expcast"]

    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", select)
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(backend="auto", **changes), None), SIGMAS, model)
    (reason,) = set(reports[0].left_alone) - {"cross-attention"}
    assert reason == (
        "no GPU kernel yet for this bit width and smoothing profile, only for balanced at 8 bits or quality at 8 bits"
    )
    with pytest.raises(kernels.KernelUnavailable, match="balanced at 8 bits"):
        kernels.choose("cuda", make_settings(**changes).numerics, 128, torch.device("cuda"))


def test_insisting_on_kernels_without_a_gpu_says_what_to_do():
    with pytest.raises(kernels.KernelUnavailable, match="install.py"):
        kernels.choose("cuda", make_settings().numerics, 128, torch.device("cpu"))


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


def test_a_run_in_copied_options_is_still_the_run():
    run = Run(make_settings(), 0.75)
    assert copy.deepcopy({"a": {"b": [run]}})["a"]["b"][0] is run


def test_the_report_without_a_server_only_logs(caplog):
    with caplog.at_level("INFO"):
        report.show(report.Report("balanced"), "3")
    (record,) = caplog.records
    assert "node 3" in record.message and record.name.endswith("nodes.report")
