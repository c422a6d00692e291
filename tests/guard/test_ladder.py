"""What a layer does about its numbers: when it is measured, when a number counts, how it climbs."""

import threading

import pytest
import torch

from vc_attention import guard
from vc_attention.config import PROFILES
from vc_attention.guard import ABOVE, BUDGETS, INTERVAL, Guard

LADDER = ("low", "high")
Q, K, V = (torch.randn(1, 2, 64, 64, generator=torch.Generator().manual_seed(n)) for n in range(3))
EXACT = guard.exact_rows(Q, K, V)


class Layer:
    """A layer whose rungs have given errors; `calls` lists the rungs that ran."""

    def __init__(self, *errors: float) -> None:
        self.errors, self.calls, self.told = list(errors), [], []
        self.guard = Guard(0.1, self.told.append)

    def attempt(self, rung, qkv):
        self.calls.append(rung)
        qkv.clear()
        noise = torch.randn(EXACT.shape, generator=torch.Generator().manual_seed(rung))
        return EXACT + self.errors[rung] * EXACT.norm() / noise.norm() * noise, None

    def call(self, step: int):
        return self.guard.call("layer", step, [Q, K, V], self.attempt, LADDER)


def test_a_good_layer_is_measured_at_first_and_then_every_interval():
    layer = Layer(0.05, 0.01)
    for step in range(2 * INTERVAL + 1):
        assert layer.guard.due("layer", step) == (step % INTERVAL == 0)
        layer.call(step)
    layer.guard.close()
    assert layer.calls == [0] * (2 * INTERVAL + 1) and [told.step for told in layer.told] == [0, INTERVAL, 2 * INTERVAL]
    assert all(told.used and told.profile == "low" and abs(told.error - 0.05) < 0.01 for told in layer.told)


def test_a_step_is_recognised_by_its_index_also_where_calls_are_skipped_or_go_back():
    layer = Layer(0.05, 0.01)
    for step, due in ((19, True), (18, False), (INTERVAL, True), (INTERVAL, False), (19, True)):
        assert layer.guard.due("layer", step) == due
        layer.call(step)


@pytest.mark.parametrize(("errors", "rung"), [((0.3, 0.05), 1), ((0.3, 0.2), 2)])
def test_the_first_call_decides_before_its_output_is_used(errors, rung):
    layer = Layer(*errors)
    out = layer.call(4)
    assert layer.guard.rung("layer", 4) == rung and layer.calls == [0, 1]
    assert (out is None) == (rung == 2)
    assert [told.used for told in layer.told] == [False, rung == 1]


def test_a_later_number_counts_in_the_next_step_and_the_next_rung_proves_itself_at_once():
    layer = Layer(0.05, 0.02)
    layer.call(0)
    layer.errors[0] = 0.3
    for _ in range(3):  # as context windows do
        layer.call(INTERVAL)
    assert layer.guard.rung("layer", INTERVAL) == 0 and len(layer.told) == 1
    layer.call(INTERVAL + 1)
    assert layer.calls == [0, 0, 0, 0, 1] and layer.guard.rung("layer", INTERVAL + 1) == 1
    assert [(told.profile, told.step, told.used) for told in layer.told] == [
        ("low", 0, True), ("low", INTERVAL, True), ("high", INTERVAL + 1, True),
    ]  # fmt: skip


def test_an_error_that_is_no_number_is_over_every_budget():
    layer = Layer(torch.nan, 0.05)
    layer.call(0)
    assert layer.calls == [0, 1]


def test_off_measures_nothing_and_empties_the_list():
    layer, qkv = Layer(0.9, 0.9), [Q, K, V]
    watching = Guard(None, layer.told.append)
    assert not watching.due("layer", 0)
    watching.call("layer", 0, qkv, layer.attempt, LADDER)
    assert layer.calls == [0] and qkv == [] and layer.told == []


def test_a_measured_call_leaves_its_inputs_to_the_caller():
    layer, qkv = Layer(0.3, 0.3), [Q, K, V]
    layer.guard.call("layer", 0, qkv, layer.attempt, LADDER)
    assert [t is s for t, s in zip(qkv, (Q, K, V), strict=True)] == [True] * 3


def test_layers_on_several_threads_do_not_meet():
    layers = [Layer(0.3 if n % 2 else 0.05, 0.05) for n in range(8)]
    shared = Guard(0.1, lambda told: None)

    def work(n):
        for step in range(3):
            shared.call(n, step, [Q, K, V], layers[n].attempt, LADDER)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [shared.rung(n, 3) for n in range(8)] == [0, 1] * 4


def test_levels_and_ladders_are_in_order():
    limits = [BUDGETS[level] for level in ("fast", "balanced", "quality")]
    assert BUDGETS["off"] is None and limits == sorted(limits, reverse=True)
    for name, above in ABOVE.items():
        assert all(profile in PROFILES for profile in (name, *above)) and name not in above
        assert all(ABOVE[one] == above[n + 1 :] for n, one in enumerate(above))
