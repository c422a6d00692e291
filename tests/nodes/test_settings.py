"""Widgets to settings, and what differs between ComfyUI versions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vc_pack.nodes.compat import accepted, outside_allocation_graph
from vc_pack.nodes.settings import BITS, PROBABILITY, SMOOTHING, parse_blocks
from vc_pack.vc_attention.errors import ParameterError
from vc_pack.vc_attention.schedule import AfterWindow

from tests.nodes.test_override import make_settings


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("smoothing", SMOOTHING)
def test_every_choice_of_width_and_smoothing_works(bits, smoothing):
    chosen = make_settings(bits=bits, smoothing=smoothing)
    assert set(chosen.numerics) == ({"8"} if bits == "8" else {"4", "8"})
    for width, numerics in chosen.numerics.items():
        assert ("nvfp4" in (numerics.qk, numerics.pv)) == (width == "4")
    assert (chosen.schedule.after_window is AfterWindow.PLAIN) == (smoothing == "paper")


def test_widgets_reach_the_numerics():
    chosen = make_settings(clusters=33, probability="exact", refresh_interval=7, grouping_window=0.5)
    assert (chosen.numerics["8"].clusters, chosen.numerics["8"].probability) == (33, "exact")
    assert (chosen.schedule.refresh, chosen.schedule.window) == (7, 0.5)


@pytest.mark.parametrize("probability", [p for p in PROBABILITY if p != "auto"])
@pytest.mark.parametrize("changes", [{"smoothing": "quality"}, {"bits": "4"}])
def test_a_probability_format_that_does_not_fit_is_refused_in_words(probability, changes):
    with pytest.raises(ParameterError, match="probability must be"):
        make_settings(probability=probability, **changes)


@pytest.mark.parametrize(
    ("text", "blocks"),
    [("", []), ("  ", []), ("0", [0]), ("0,1,38-39", [0, 1, 38, 39]), (" 3 , 1 - 2 ,", [1, 2, 3]), ("5-5", [5])],
)
def test_blocks(text, blocks):
    assert parse_blocks(text) == set(blocks)


@pytest.mark.parametrize(
    ("widget", "value"),
    [
        *(("bits", v) for v in (8, "16", None, ["8"])),
        *(("smoothing", v) for v in ("best", None)),
        *(("probability", v) for v in ("u8", None)),
        *(("backend", v) for v in ("gpu", None)),
        *(("clusters", v) for v in (513, -1, "64", 1.5, None)),
        *(("min_tokens", v) for v in (-1, "4096", math.nan, None)),
        *(("blocks_left_alone", v) for v in (3, None, [0])),
        *(("grouping_window", v) for v in (math.nan, 2.0, "0.25", None)),
        *(("refresh_interval", v) for v in (0, 4.0, "4", None)),
    ],
)
def test_a_value_that_no_widget_gives_is_refused_by_name(widget, value):
    names = {"grouping_window": "window", "refresh_interval": "refresh"}
    with pytest.raises(ParameterError) as caught:
        make_settings(**{widget: value})
    assert caught.value.parameter == names.get(widget, widget) and repr(value) in str(caught.value)


@pytest.mark.parametrize("text", ["a", "1;2", "3-1", "-1", "1-2-3", "1.5", "0 1", "1000", "0-999999999999", "9" * 5000])
def test_blocks_that_make_no_sense_say_how_to_write_them(text):
    with pytest.raises(ParameterError, match="0,1,38-39"):
        parse_blocks(text)


@given(st.sets(st.integers(0, 200)))
def test_any_set_of_blocks_can_be_written(blocks):
    assert parse_blocks(",".join(map(str, blocks))) == blocks


def test_arguments_that_an_older_comfyui_does_not_know_are_dropped():
    def old(id, default=None):
        return ("old", id, default)

    def new(id, default=None, advanced=False):
        return ("new", id, default, advanced)

    def open_ended(**anything):
        return anything

    arguments = dict(id="x", default=3, advanced=True)
    assert accepted(old, **arguments) == ("old", "x", 3)
    assert accepted(new, **arguments) == ("new", "x", 3, True)
    assert accepted(open_ended, **arguments) == arguments


def test_the_allocation_record_is_paused_where_there_is_one(monkeypatch):
    import contextlib
    import sys
    import types

    with outside_allocation_graph():
        pass
    paused = []

    @contextlib.contextmanager
    def pause_malloc_graph():
        paused.append("in")
        yield
        paused.append("out")

    monkeypatch.setitem(
        sys.modules, "comfy.model_prefetch", types.SimpleNamespace(pause_malloc_graph=pause_malloc_graph)
    )
    with outside_allocation_graph():
        assert paused == ["in"]
    assert paused == ["in", "out"]
