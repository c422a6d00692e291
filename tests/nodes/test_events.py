"""What the browser hears of a run while it lasts, what the artist should know of, what the Report node finds."""

import sys
import types

import pytest
from vc_pack.nodes import events, history
from vc_pack.nodes.apply import patched

from tests.nodes import fakes
from tests.nodes.toy import SIGMAS, WanModel, make_settings


@pytest.fixture
def sent(monkeypatch):
    """Everything that goes to the browser, as (event, data), at one telling a second of the fake clock."""
    heard = []
    monkeypatch.setattr(events, "send", lambda event, node, data: heard.append((event, {"node": node, **data})))
    clock = iter(range(10_000))
    monkeypatch.setattr(events, "time", types.SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(history, "_runs", {})
    return heard


def of_kind(sent, event):
    return [data for kind, data in sent if kind == event]


def run(node="7", tokens=32, **changes):
    model = WanModel(fakes.Attention(), tokens=tokens)
    fakes.sample(patched(fakes.Patcher(model), make_settings(**changes), node), SIGMAS, model)


def test_progress_counts_steps_and_the_share_of_self_attention(spy, sent):
    run(blocks_left_alone="1")
    told = of_kind(sent, events.PROGRESS)
    assert [data["step"] for data in told] == list(range(1, 9)) and {data["steps"] for data in told} == {8}
    assert told[0]["share"] is None  # nothing has run yet
    assert told[-1]["share"] == 0.5 and told[-1]["node"] == "7"  # one of two blocks; cross-attention does not count
    assert told[-1]["kernel"] == "reference (torch operations)"


def test_progress_is_told_a_few_times_a_second_at_most(spy, sent, monkeypatch):
    monkeypatch.setattr(events, "time", types.SimpleNamespace(monotonic=lambda: 1.0))
    run()
    assert len(of_kind(sent, events.PROGRESS)) == 1


def test_missing_kernels_are_noticed_once_a_run(spy, sent, monkeypatch):
    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", lambda *args: ["not built: run install.py"])
    run(backend="auto")
    assert of_kind(sent, events.NOTICE) == [{"node": "7", "text": "not built: run install.py"}]


def test_a_clip_that_is_only_too_short_is_no_notice(spy, sent, monkeypatch):
    def select(device, numerics, head_dim, seqlen_k=None):
        fits = types.SimpleNamespace(unit="attention_sm90_expcast")
        return fits if seqlen_k is None else ["stock attention is faster below 12288 keys"]

    monkeypatch.setattr("vc_pack.vc_attention.dispatch.select", select)
    run(backend="auto")
    run(min_tokens=1 << 20)
    assert of_kind(sent, events.NOTICE) == [] and len(of_kind(sent, events.REPORT)) == 2


def test_a_run_inside_a_prompt_is_kept_for_the_report_node(spy, sent, monkeypatch):
    context = types.SimpleNamespace(prompt_id="p", node_id="9", list_index=None)
    execution = types.SimpleNamespace(get_executing_context=lambda: context)
    monkeypatch.setitem(sys.modules, "comfy_execution.utils", execution)
    run()
    (kept,) = history.runs_among({"7", "9"})
    (report,) = of_kind(sent, events.REPORT)
    assert report == {"node": "7", "text": kept["text"], **kept["report"]}


def test_a_message_goes_to_the_client_that_queued(monkeypatch):
    heard = []
    server = types.SimpleNamespace(client_id="me", send_sync=lambda *message: heard.append(message))
    module = types.SimpleNamespace(PromptServer=types.SimpleNamespace(instance=server))
    monkeypatch.setitem(sys.modules, "server", module)
    events.send(events.NOTICE, "7", {"text": "x"})
    events.send(events.NOTICE, None, {"text": "no node shows it"})
    assert heard == [(events.NOTICE, {"node": "7", "text": "x"}, "me")]
