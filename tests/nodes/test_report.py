"""What a run tells the artist: counts, kernels, groups, and reasons with their remedies."""

import types

import pytest
import torch
from vc_pack.nodes import kernels, report
from vc_pack.nodes.apply import patched
from vc_pack.nodes.layers import Layer, Layers
from vc_pack.vc_attention.config import Action
from vc_pack.vc_attention.guard import Measurement
from vc_pack.vc_attention.prepare import unsupported

from tests.nodes import fakes
from tests.nodes.toy import SIGMAS, WanModel, make_settings


@pytest.mark.parametrize(
    ("smoothing", "line"),
    [("balanced", "groups: formed 2, renewed 2, kept 12"), ("paper", "groups: formed 2, kept 2, without averages 12")],
)
def test_the_report_says_in_words_what_became_of_the_groups(spy, reports, smoothing, line):
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(smoothing=smoothing), None), SIGMAS, model)
    lines = reports[0].text().splitlines()
    assert line in lines and "memory for groups: 2.6 KiB" in lines


def test_every_action_has_a_word():
    assert set(report.WORDS) == {action.value for action in Action}


def test_a_run_that_never_reached_the_model_blames_nobody(spy, reports):
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(), None), [1.0], model)
    assert reports[0].text().endswith("the model was not evaluated")


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
    assert asked == [("cpu", chosen.numerics["8"], 128, keys)]


def test_without_kernels_auto_names_every_reason(spy, reports, monkeypatch):
    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", lambda *args: ["too old", "not built: run install.py"])
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(backend="auto"), None), SIGMAS, model)
    assert not spy and reports[0].left_alone["too old; not built: run install.py"] == 16


@pytest.mark.parametrize("changes", [{"smoothing": "paper"}, {"smoothing": "paper", "bits": "4"}])
def test_settings_that_no_kernel_knows_are_told_in_the_widgets_words(spy, reports, monkeypatch, changes):
    def select(device, numerics, head_dim, seqlen_k=None):
        return [*unsupported(numerics), "attention_sm90_expcast has probability expcast"]

    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", select)
    model = WanModel(fakes.Attention())
    fakes.sample(patched(fakes.Patcher(model), make_settings(backend="auto", **changes), None), SIGMAS, model)
    (reason,) = set(reports[0].left_alone) - {"cross-attention"}
    assert reason.startswith("no GPU kernel yet for this bit width and smoothing profile, only for balanced at 8 bits")
    with pytest.raises(kernels.KernelUnavailable, match="balanced at 8 bits"):
        kernels.choose(make_settings(backend="cuda", **changes), 128, torch.device("cpu"))


def test_insisting_on_kernels_without_a_gpu_says_what_to_do():
    with pytest.raises(kernels.KernelUnavailable, match="install.py"):
        kernels.choose(make_settings(backend="cuda"), 128, torch.device("cpu"))


def test_the_report_without_a_server_only_logs(caplog):
    with caplog.at_level("INFO"):
        report.show(report.Report("balanced"), "3")
    (record,) = caplog.records
    assert "node 3" in record.message and record.name.endswith("nodes.report")


def test_short_calls_and_missing_kernels_are_left_alone_with_the_remedy(spy, reports):
    model = WanModel(fakes.Attention())
    for changes, words in [({"min_tokens": 33}, "fewer than 33 tokens"), ({"backend": "auto"}, "NVIDIA GPU")]:
        fakes.sample(patched(fakes.Patcher(model), make_settings(**changes), None), SIGMAS, model)
        assert not spy and any(words in reason for reason in reports[-1].left_alone)
        assert words in reports[-1].text()


def test_a_model_without_a_row_works_and_the_report_says_so(spy, reports):
    class StrangeModel:
        """Calls attention as Wan does, but is none."""

        def __init__(self):
            self.model = WanModel(fakes.Attention())

        def __call__(self, *args):
            return self.model(*args)

    for model in (StrangeModel(), WanModel(fakes.Attention())):
        fakes.sample(patched(fakes.Patcher(model), make_settings(), None), SIGMAS[-2:], model)
    assert [sum(report.kernels.values()) for report in reports] == [2, 2]
    said = [line for report in reports for line in report.text().splitlines() if "no row" in line]
    assert said == ["StrangeModel (no row in the model table): calls that look like self-attention were taken over"]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (
            'run "/srv/al ice/venv/bin/python" "/srv/al ice/x/install.py" --arch "90a"',
            'run "python" "install.py" --arch "90a"',
        ),
        (r'run "C:\Users\alice\python.exe"', 'run "python.exe"'),
        ("built for /srv/alice/bin/python3, sm_90a", "built for python3, sm_90a"),
        ("4 bits and/or 8, 3/4 of 1 / 2, balanced", "4 bits and/or 8, 3/4 of 1 / 2, balanced"),
    ],
)
def test_what_is_given_to_others_names_no_folders(text, left):
    assert report.without_folders({"left_alone": {text: 2}, "layers": [{"reason": text}], "format": 1}) == {
        "left_alone": {left: 2}, "layers": [{"reason": left}], "format": 1,
    }  # fmt: skip


@pytest.mark.parametrize("error", [float("nan"), float("inf")])
def test_an_output_that_was_used_and_not_finite_is_no_gap_in_the_report(error):
    layers, layer = Layers(), Layer("block", 1, 0, 1)
    layers.tell(layer, (2, 64, 64), Measurement(layer, 7, "balanced", error, True, 0.5, 0, None))
    assert layers.rows()[0]["tried"] == [{"step": 7, "profile": "balanced", "error": None}] and layers.worst is None
