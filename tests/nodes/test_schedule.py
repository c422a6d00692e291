"""Step, window and refresh, from sigma alone. tests/comfy/test_samplers.py checks the same against real samplers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vc_pack.vc_attention.config import Action
from vc_pack.vc_attention.errors import ParameterError
from vc_pack.vc_attention.schedule import AfterWindow, Schedule, Step, locate, step_index


def shifted(t: float, shift: float) -> float:
    """Sigma at time t (1 noise .. 0 picture) of a flow model with ModelSamplingSD3's shift."""
    return shift * t / (1 + (shift - 1) * t)


def simple(steps: int, shift: float = 5.0) -> list[float]:
    """The `simple` scheduler's sigmas."""
    return [shifted(1 - i / steps, shift) for i in range(steps + 1)]


def decisions(calls, sigmas, schedule, shift=5.0):
    """["0G*", "1r*", ...]: step index, action, * inside the window, for one layer that makes these calls."""
    last, words = None, []
    for sigma in calls:
        step = locate(sigma, sigmas, shifted(1 - schedule.window, shift) if schedule.window else 1.0)
        action = schedule.decide(step, last)
        if action in (Action.GROUP, Action.ASSIGN):
            last = step.index
        letter = {"group": "G", "assign": "A", "reuse": "r", "plain": "p"}[action.value]
        words.append(f"{step.index}{letter}{'*' if step.in_window else ''}")
    return " ".join(words)


TWENTY = "0G* 1r* 2r* 3r* 4G* 5r 6r 7r 8A 9r 10r 11r 12A 13r 14r 15r 16A 17r 18r 19r"


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0, 8.0, 12.0])
def test_a_quarter_of_twenty_steps_is_five_steps_at_any_shift(shift):
    sigmas = simple(20, shift)
    assert decisions(sigmas[:-1], sigmas, Schedule(), shift) == TWENTY


CASES = {
    # name: (sampler's own sigmas, sigmas of the model calls, expected)
    "two experts, high": (simple(20)[:11], simple(20)[:10], "0G* 1r* 2r* 3r* 4G* 5r 6r 7r 8A 9r"),
    "two experts, low": (simple(20)[10:], simple(20)[10:20], "0G 1r 2r 3r 4A 5r 6r 7r 8A 9r"),
    "high expert, heun ends on the last sigma": (simple(4)[:3], simple(4)[:3], "0G* 1r 1r"),
    "denoise 0.5": (simple(16)[8:], simple(16)[8:16], "0G 1r 2r 3r 4A 5r 6r 7r"),
    "4-step LoRA": (simple(4), simple(4)[:4], "0G* 1r 2r 3r"),
    "8-step LoRA": (simple(8), simple(8)[:8], "0G* 1r* 2r 3r 4A 5r 6r 7r"),
    "a cache skips the step that was due": (
        simple(20),
        [s for i, s in enumerate(simple(20)[:20]) if i not in (4, 5)],
        "0G* 1r* 2r* 3r* 6A 7r 8r 9r 10A 11r 12r 13r 14A 15r 16r 17r 18A 19r",
    ),
    "added noise above the first sigma": (simple(8), [1.05, *simple(8)[1:8]], "0G* 1r* 2r 3r 4A 5r 6r 7r"),
    "a restart goes back": (simple(8), [*simple(8)[:6], *simple(8)[1:4]], "0G* 1r* 2r 3r 4A 5r 1r* 2r 3r"),
    "first sigma rounded down": (simple(8), [0.99998, *simple(8)[1:8]], "0G* 1r* 2r 3r 4A 5r 6r 7r"),
}


@pytest.mark.parametrize("name", CASES)
def test_split_and_shortened_schedules(name):
    sigmas, calls, expected = CASES[name]
    assert decisions(calls, sigmas, Schedule()) == expected


def test_second_evaluation_at_the_next_sigma_refreshes_once():
    """heun evaluates step i's end and step i + 1's start at one sigma: only the first of the two calls is due."""
    sigmas = simple(8)
    calls = [s for i in range(7) for s in (sigmas[i], sigmas[i + 1])] + [sigmas[7]]
    assert decisions(calls, sigmas, Schedule()) == "0G* 1r* 1r* 2r 2r 3r 3r 4A 4r 5r 5r 6r 6r 7r 7r"


def test_second_evaluation_between_sigmas_belongs_to_its_step():
    sigmas = simple(8)
    calls = [s for i in range(7) for s in (sigmas[i], math.sqrt(sigmas[i] * sigmas[i + 1]))] + [sigmas[7]]
    assert decisions(calls, sigmas, Schedule()) == "0G* 0r* 1r* 1r* 2r 2r 3r 3r 4A 4r 5r 5r 6r 6r 7r"


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Schedule(window=0.0), "0G 1r 2r 3r 4A 5r 6r 7r"),
        (Schedule(window=0.5), "0G* 1r* 2r* 3r* 4A 5r 6r 7r"),
        (Schedule(window=1.0), "0G* 1r* 2r* 3r* 4G* 5r* 6r* 7r*"),
        (Schedule(refresh=1), "0G* 1G* 2A 3A 4A 5A 6A 7A"),
        (Schedule(refresh=100), "0G* 1r* 2r 3r 4r 5r 6r 7r"),
        (Schedule(after_window=AfterWindow.PLAIN), "0G* 1r* 2p 3p 4p 5p 6p 7p"),
        (Schedule(after_window=AfterWindow.REUSE), "0G* 1r* 2r 3r 4r 5r 6r 7r"),
    ],
)
def test_settings(schedule, expected):
    sigmas = simple(8)
    assert decisions(sigmas[:-1], sigmas, schedule) == expected


def test_a_cold_call_groups_even_past_the_window_of_the_paper():
    assert Schedule(after_window=AfterWindow.PLAIN).decide(Step(0, False), None) is Action.GROUP


@pytest.mark.parametrize(
    ("name", "value"),
    [("window", w) for w in (-0.1, 1.5, math.nan, "0.25", None)] + [("refresh", r) for r in (0, 2.5, True, None)],
)
def test_a_bad_setting_names_itself(name, value):
    with pytest.raises(ParameterError, match=f"{name} must be .*{value}"):
        Schedule(**{name: value})


@given(st.integers(1, 60), st.floats(1.0, 16.0), st.integers(0, 59))
def test_every_sigma_of_a_schedule_is_its_own_step(steps, shift, i):
    i = min(i, steps - 1)
    assert step_index(simple(steps, shift)[i], simple(steps, shift)) == i


@given(st.lists(st.floats(1e-3, 100.0), min_size=2, max_size=40), st.floats(0.0, 200.0))
def test_the_index_is_always_a_step(sigmas, sigma):
    assert 0 <= step_index(sigma, sorted(sigmas, reverse=True)) <= len(sigmas) - 2


@given(st.lists(st.floats(1e-3, 100.0), min_size=2, max_size=40))
def test_any_order_of_sigmas_gives_one_index_per_noise_level(sigmas):
    indices = {sigma: step_index(sigma, sigmas) for sigma in sigmas}
    ordered = [indices[sigma] for sigma in sorted(indices, reverse=True)]
    assert ordered == sorted(ordered) and 0 <= ordered[0] and ordered[-1] <= len(sigmas) - 2


def test_rising_sigmas_are_refreshed_as_often_as_falling_ones():
    falling = simple(8)
    rising = falling[::-1]
    both = [decisions(sigmas[:-1], sigmas, Schedule(window=1.0)) for sigmas in (falling, rising)]
    assert [line.count("G") for line in both] == [2, 2]


@given(st.floats(0.0, 1.0), st.integers(1, 9), st.lists(st.integers(0, 30), max_size=40))
def test_no_grouping_outlives_its_refresh(window, refresh, indices):
    """Whatever order the steps come in, a grouping that is used is never further away than the refresh interval."""
    schedule, last = Schedule(window, refresh), None
    for index in indices:
        action = schedule.decide(Step(index, index < 8), last)
        if action in (Action.GROUP, Action.ASSIGN):
            last = index
        assert abs(index - last) < refresh
