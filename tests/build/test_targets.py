"""Which target a GPU gets, and which toolkit may compile it: decided before anything runs."""

import pytest

from vc_attention.build import targets, tasks
from vc_attention.build.units import UNITS


@pytest.mark.parametrize("text", ["12.0", "12.0a", "12.0+PTX", "sm_120a", "120", "120a", "compute_120", "120f"])
def test_every_spelling_of_blackwell_is_one_gpu_and_gets_the_a_target(text):
    assert targets.parse(text) == [(12, 0)]
    assert UNITS["selftest"].arch_for((12, 0)) == "120a"


def test_lists_keep_their_order_and_drop_repeats():
    assert targets.parse("8.9;12.0") == [(8, 9), (12, 0)]
    assert targets.parse(" 90a, 8.9 9.0 ") == [(9, 0), (8, 9)]
    assert targets.parse("") == []


@pytest.mark.parametrize("text", ["native", "9", "hopper", "90a,'; rm -rf /'", "12.0a.1"])
def test_what_is_no_arch_is_refused_by_name(text):
    with pytest.raises(ValueError, match="arch: '.+' is not a GPU target; write"):
        targets.parse(text)


@pytest.mark.parametrize(
    ("gpu", "target"),
    [
        ((8, 0), "80"), ((8, 6), "80"), ((8, 7), "80"), ((8, 9), "89"), ((9, 0), "90a"), ((10, 0), "100a"),
        ((10, 3), "103a"), ((12, 0), "120a"), ((12, 1), "121a"), ((7, 5), None), ((11, 0), None), ((13, 0), None),
    ],
)  # fmt: skip
def test_a_gpu_gets_the_most_specific_target_that_runs_on_it(gpu, target):
    assert targets.best(targets.ANY_ARCH, gpu) == target


def test_an_a_target_runs_on_its_own_capability_only():
    assert targets.best(("90a", "120a"), (12, 1)) is None
    assert not targets.runs_on("100a", (10, 3))
    assert not targets.runs_on("89", (8, 6))


@pytest.mark.parametrize(
    ("toolkit", "known"),
    [
        ((11, 8), {"80", "89"}),
        ((12, 4), {"80", "89", "90a"}),
        ((12, 8), {"80", "89", "90a", "100a", "120a"}),
        ((12, 9), set(targets.ANY_ARCH)),
        ((13, 0), set(targets.ANY_ARCH)),
    ],
)
def test_toolkit_against_target(toolkit, known):
    allowed = {target for target in targets.ANY_ARCH if targets.refusal(target, toolkit) is None}
    assert allowed == known
    for target in set(targets.ANY_ARCH) - known:
        assert f"sm_{target} needs CUDA" in targets.refusal(target, toolkit)


def test_every_target_of_every_unit_is_in_the_toolkit_table():
    assert {arch for unit in UNITS.values() for arch in unit.arches} <= set(targets.TOOLKIT_NEEDED)


@pytest.mark.parametrize(
    ("cores", "free_gb", "max_jobs", "jobs"),
    [(16, 16.0, None, 8), (16, 16.0, 3, 3), (2, 64.0, None, 2), (8, 0.5, None, 1), (32, None, None, 4), (4, 64, 0, 4)],
)
def test_jobs_are_bounded_by_cores_memory_and_max_jobs(cores, free_gb, max_jobs, jobs):
    assert tasks.jobs(cores, free_gb, max_jobs) == jobs


def test_free_memory_is_read_here():
    assert 0 < tasks.free_memory_gb() < 100_000
