"""Whose grouping is whose, what a call starts from, and what the kept groupings may weigh."""

import copy
import threading

import pytest
import torch
from vc_pack.vc_attention.config import Action, Grouping
from vc_pack.vc_attention.schedule import AfterWindow, Schedule, Step
from vc_pack.vc_attention.session import RowKey, Session

KEYS, HEADS, DIM, CLUSTERS = 16, 2, 64, 4


def grouping(*marks: int) -> Grouping:
    """A grouping whose row i is filled with marks[i]."""
    value = torch.tensor(marks, dtype=torch.int32)
    return Grouping(
        centroids=value.to(torch.int8)[:, None, None, None].expand(-1, HEADS, CLUSTERS, DIM).contiguous(),
        step=value.float()[:, None].expand(-1, HEADS).contiguous(),
        rank=value[:, None, None].expand(-1, HEADS, CLUSTERS).contiguous(),
        perm=value[:, None, None].expand(-1, HEADS, KEYS).contiguous(),
    )


def key(condition="cond", layer=0, row=0, window=None, device="cpu", shape=(HEADS, KEYS, DIM)) -> RowKey:
    return RowKey(layer, condition, row, window, shape, device)


def marks(found: Grouping) -> list[int]:
    assert torch.equal(found.perm[:, 0, 0].float(), found.step[:, 0])
    return found.perm[:, 0, 0].tolist()


def test_cold_then_reuse_then_renew():
    session = Session(Schedule(refresh=2))
    assert session.plan([key()], Step(0, True)) == (Action.GROUP, None)
    session.keep([key()], grouping(7), Step(0, True))
    action, found = session.plan([key()], Step(1, True))
    assert action is Action.REUSE and marks(found) == [7]
    assert session.plan([key()], Step(2, True)) == (Action.GROUP, None)
    action, found = session.plan([key()], Step(2, False))
    assert action is Action.ASSIGN and marks(found) == [7]


@pytest.mark.parametrize("other", [
    {"condition": "uncond"}, {"layer": 1}, {"row": 1}, {"window": (0, (0, 1))}, {"device": "cuda:1"},
    {"shape": (HEADS, KEYS + 1, DIM)},
])  # fmt: skip
def test_nobody_gets_another_ones_grouping(other):
    session = Session(Schedule())
    session.keep([key()], grouping(1), Step(0, True))
    assert session.plan([key(**other)], Step(1, True)) == (Action.GROUP, None)


def test_rows_follow_their_condition_through_any_batching():
    session = Session(Schedule())
    cond, uncond = key("cond"), key("uncond")
    session.keep([cond, uncond], grouping(1, 2), Step(0, True))
    for batch, expected in [([cond, uncond], [1, 2]), ([uncond, cond], [2, 1]), ([uncond], [2]), ([cond], [1])]:
        action, found = session.plan(batch, Step(1, True))
        assert action is Action.REUSE and marks(found) == expected


def test_rows_of_separate_calls_join():
    session = Session(Schedule())
    session.keep([key("cond")], grouping(1), Step(0, True))
    session.keep([key("uncond")], grouping(2), Step(0, True))
    assert marks(session.plan([key("uncond"), key("cond")], Step(1, True))[1]) == [2, 1]


def test_the_same_batch_gets_the_very_object_back_without_a_copy():
    session = Session(Schedule())
    kept = grouping(1, 2)
    session.keep([key("cond"), key("uncond")], kept, Step(0, True))
    assert session.plan([key("cond"), key("uncond")], Step(1, True))[1] is kept


def test_the_row_that_needs_most_decides():
    session = Session(Schedule(refresh=4, after_window=AfterWindow.ASSIGN))
    session.keep([key("old")], grouping(1), Step(0, True))
    session.keep([key("new")], grouping(2), Step(3, True))
    assert session.plan([key("old"), key("new")], Step(4, False))[0] is Action.ASSIGN
    assert session.plan([key("new")], Step(4, False))[0] is Action.REUSE
    assert session.plan([key("new"), key("never seen")], Step(4, False)) == (Action.GROUP, None)


def test_bytes_are_counted_once_per_batch_and_freed_with_its_last_row():
    session = Session(Schedule())
    pair, single = grouping(1, 2), grouping(3)
    session.keep([key("cond"), key("uncond")], pair, Step(0, True))
    assert session.nbytes == pair.nbytes
    session.keep([key("cond")], single, Step(1, True))
    assert session.nbytes == pair.nbytes + single.nbytes  # uncond still points into the pair
    session.keep([key("uncond")], single, Step(1, True))
    assert session.nbytes == 2 * single.nbytes
    session.close()
    assert session.nbytes == 0 and len(session) == 0
    assert session.peak_nbytes == pair.nbytes + single.nbytes


def test_what_does_not_fit_is_not_kept_and_counted():
    one = grouping(1).nbytes
    session = Session(Schedule(), budget=2 * one)
    kept = [session.keep([key(layer=i)], grouping(i), Step(0, True)) for i in range(3)]
    assert kept == [True, True, False]
    assert (session.unkept, session.evicted, session.nbytes) == (1, 0, 2 * one)
    assert session.plan([key(layer=2)], Step(1, True)) == (Action.GROUP, None)
    assert (
        session.plan([key(layer=1)], Step(1, True))[0] is Action.REUSE
    )  # the first ones are not thrown out in a circle


def test_groupings_that_nobody_uses_any_more_make_room():
    """Context windows may change their sets from step to step."""
    one = grouping(1).nbytes
    session = Session(Schedule(), budget=2 * one)
    session.keep([key(window="a")], grouping(1), Step(0, True))
    session.keep([key(window="b")], grouping(2), Step(0, True))
    session.plan([key(window="b")], Step(2, True))
    assert session.keep([key(window="c")], grouping(3), Step(2, True))
    assert (session.evicted, session.unkept, session.nbytes) == (1, 0, 2 * one)
    assert session.plan([key(window="b")], Step(2, True))[0] is Action.REUSE
    assert session.plan([key(window="a")], Step(2, True))[0] is Action.GROUP


def test_a_renewed_grouping_replaces_itself_within_the_budget():
    one = grouping(1).nbytes
    session = Session(Schedule(), budget=one)
    for index in range(5):
        assert session.keep([key()], grouping(index), Step(index, True))
    assert session.nbytes == session.peak_nbytes == one and session.unkept == 0


def test_copies_of_options_share_the_session():
    session = Session(Schedule())
    session.keep([key()], grouping(1), Step(0, True))
    assert copy.deepcopy({"transformer_options": {"state": session}})["transformer_options"]["state"] is session


def test_threads_keep_their_own_devices_apart():
    session = Session(Schedule(refresh=1000))
    wrong = []

    def work(device: int) -> None:
        for index in range(200):
            mine = [key(layer=index % 5, device=f"cuda:{device}")]
            action, found = session.plan(mine, Step(index, True))
            if action is Action.REUSE and marks(found) != [device]:
                wrong.append(device)
            if action is Action.GROUP:
                session.keep(mine, grouping(device), Step(index, True))

    threads = [threading.Thread(target=work, args=(d,)) for d in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(session) == 40 and session.nbytes == 40 * grouping(0).nbytes
