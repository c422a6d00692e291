"""The generator has the structure that the paper measured on Wan2.2, and V-Smooth finds it there."""

from dataclasses import replace

import pytest
import torch

from tests.reference.fidelity import relative_error
from vc_attention import reference
from vc_attention.config import PROFILES, Action, Numerics
from vc_attention.reference.attention import values
from vc_attention.reference.formats import from_e4m3, to_e4m3
from vc_attention.reference.operands import permute
from vc_attention.reference.probability import expcast

LOG2E = 1.4426950408889634
UNPERTURBED = dict(qk="none", pv="none", probability="none", cluster_order="none", mean="none", p_scale="running")


@pytest.fixture(scope="module")
def scores(heads):
    """fp32 scores of the sampled rows in nats, `[H, R, N]`."""
    q = heads.q[0][:, heads.rows[:256]].float()
    return q @ heads.k[0].float().mT / q.shape[-1] ** 0.5


def energy_share(v: torch.Tensor) -> float:
    """Share of the energy of blocks of 128 rows that their means carry (Eq. 5), averaged over blocks and heads."""
    blocks = v.float().unflatten(-2, (-1, 128))
    return (128 * blocks.mean(-2).square().sum(-1) / blocks.square().sum((-1, -2))).mean().item()


def cubes(v: torch.Tensor) -> torch.Tensor:
    """Tokens of the 16 x 32 x 32 grid reordered by cubes of 2 x 8 x 8."""
    return v.reshape(*v.shape[:2], 8, 2, 4, 8, 4, 8, 128).permute(0, 1, 2, 4, 6, 3, 5, 7, 8).reshape(v.shape)


def v_error(heads, numerics) -> torch.Tensor:
    """Mean square error of V over its energy, one a head, with keys in the order of the clusters."""
    numerics = replace(numerics, sort_keys=False)
    grouping = heads.grouping(numerics)
    v = permute(heads.v.float(), None if grouping is None else grouping.perm)
    operands = reference.prepare(heads.q[:, :, :1], heads.k, heads.v, numerics, grouping and grouping.perm, means=True)
    restored = values(operands, numerics) + operands.v_mean.repeat_interleave(128, -2)
    return (restored - v).square().sum((-1, -2)) / v.square().sum((-1, -2))


def test_block_means_carry_8_12_and_36_percent(heads):
    grouping = heads.grouping(PROFILES["paper-8bit"])
    assert energy_share(heads.v) == pytest.approx(0.08, abs=0.01)
    assert energy_share(cubes(heads.v)) == pytest.approx(0.12, abs=0.01)
    assert energy_share(permute(heads.v, grouping.perm)) == pytest.approx(0.36, abs=0.02)


def test_scores_are_as_peaked_as_calibrated(scores):
    weights = scores.softmax(-1)
    assert scores.std(-1).mean().item() == pytest.approx(1.9, abs=0.3)
    assert (scores.amax(-1) - scores.mean(-1)).mean().item() == pytest.approx(9.4, abs=1.0)
    assert 70 < (1 / weights.square().sum(-1)).median() < 200


def test_the_value_term_dominates_and_hadamard_shrinks_the_other(heads):
    """The paper: V carries 82% of the squared output error, Hadamard shrinks the QK term 1.6 times."""
    warp = dict(q_granularity="warp", k_granularity="warp", balance_qk=False, sort_keys=False)
    qk = heads.error(Numerics(**UNPERTURBED | warp | {"qk": "int8"})).mean()
    bare = heads.error(Numerics(**UNPERTURBED | warp | {"qk": "int8", "hadamard": False})).mean()
    v = heads.error(Numerics(**UNPERTURBED | {"pv": "e4m3"})).mean()
    assert v**2 / (v**2 + qk**2) == pytest.approx(0.84, abs=0.05)
    assert bare / qk == pytest.approx(1.6, abs=0.2)


def test_expcast_total_variation_is_1_6_percent(scores):
    """The paper: 1.6% on average for ExpCast, 1.1% for exponential and cast."""
    u = (scores - scores.amax(-1, keepdim=True)) * LOG2E
    exact = scores.double().softmax(-1)

    def total_variation(codes):
        p = from_e4m3(codes).double()
        return 50 * (p / p.sum(-1, keepdim=True) - exact).abs().sum(-1).mean().item()

    assert total_variation(expcast(u)) == pytest.approx(1.6, abs=0.15)
    assert total_variation(to_e4m3(torch.exp2(u + 8))) == pytest.approx(1.1, abs=0.05)


def test_sorting_lowers_the_value_error(heads):
    none = v_error(heads, Numerics(**UNPERTURBED | {"pv": "e4m3"}))
    ratio = {
        "sequence": v_error(heads, Numerics(cluster_order="none", mean="plain")) / none,
        "paper": v_error(heads, PROFILES["paper-8bit"]) / none,
        "balanced": v_error(heads, PROFILES["balanced"]) / none,
        "quality": v_error(heads, PROFILES["quality"]) / none,
    }
    assert {name: r.mean().item() for name, r in ratio.items()} == {
        "sequence": pytest.approx(0.923, abs=0.015),
        "paper": pytest.approx(0.637, abs=0.02),
        "balanced": pytest.approx(0.579, abs=0.015),
        "quality": pytest.approx(0.04, abs=0.02),
    }
    assert (ratio["sequence"] <= 0.95).all() and (ratio["paper"] <= 0.70).all()


def test_sorting_lowers_the_value_error_at_4_bits(heads):
    base = dict(qk="none", pv="nvfp4", probability="none")
    none = v_error(heads, Numerics(**base, cluster_order="none", mean="none"))
    ratio = v_error(heads, Numerics(**base)) / none
    assert (ratio <= 0.72).all()


def test_grouping_actions_share_a_permutation(heads):
    """A second call groups to the same bytes: nothing depends on the order of sums."""
    numerics = PROFILES["balanced"]
    again = reference.group(heads.v[:, :1], numerics, Action.GROUP)
    assert torch.equal(again.perm, heads.grouping(numerics).perm[:, :1])


def test_relative_error_is_per_head():
    exact = torch.ones(1, 2, 3, 4)
    out = exact.clone()
    out[0, 1] *= 1.01
    assert relative_error(out, exact).tolist() == pytest.approx([0.0, 1.0], abs=1e-4)
