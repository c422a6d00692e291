"""Every figure that the paper states about ExpCast-FP8, and the bounds of its tile-local form."""

import itertools
import math

import pytest
import torch

from vc_attention.config import Numerics
from vc_attention.reference.formats import from_e4m3, to_e4m3
from vc_attention.reference.probability import BETA, LOG2_GAIN, expcast, probabilities

# One doubling, sampled finely, well inside the normal range: u in [-5, -4).
DOUBLING = torch.arange(-5, -4, 2.0**-20, dtype=torch.float64).float()
A, B = 0.9290, 1.0746  # Eq. 11
BOUND = 0.0364  # Eq. 13


def exp_then_cast(u):
    return to_e4m3(torch.exp2(u.double() + 8).float())


def rows(sigma: float, n: int = 4096, count: int = 64) -> torch.Tensor:
    """u of softmax rows with normal scores of `sigma` nats."""
    score = sigma * torch.randn(count, n, generator=torch.Generator().manual_seed(7))
    return (score - score.amax(-1, keepdim=True)) * math.log2(math.e)


def total_variation(u: torch.Tensor, decoded: torch.Tensor) -> torch.Tensor:
    exact = torch.exp2(u.double())
    p, q = exact / exact.sum(-1, keepdim=True), decoded.double() / decoded.double().sum(-1, keepdim=True)
    return 0.5 * (p - q).abs().sum(-1)


def test_equation_7_by_hand():
    assert expcast(torch.tensor([-1.60])).item() == 107  # 106.85
    assert from_e4m3(expcast(torch.tensor([-1.60]))).item() == 88
    assert exp_then_cast(torch.tensor([-1.60])).item() == 107
    assert expcast(torch.tensor([0.0])).item() == 120  # 119.65: 2^8
    assert expcast(torch.tensor([-15.0, -100.0, -torch.inf])).tolist() == [0, 0, 0]


def test_the_row_maximum_is_exact():
    assert from_e4m3(expcast(torch.zeros(1), "running")).item() == 256
    assert from_e4m3(expcast(torch.zeros(1), "tile")).item() == 112


def test_same_byte_on_79_6_percent_and_never_two_codes_apart():
    difference = expcast(DOUBLING).int() - exp_then_cast(DOUBLING).int()
    assert difference.abs().amax() == 1
    assert (difference == 0).double().mean().item() == pytest.approx(0.796, abs=5e-4)


def test_element_error_is_below_7_5_percent():
    ratio = from_e4m3(expcast(DOUBLING)).double() / torch.exp2(DOUBLING.double() + 8)
    assert ratio.min().item() == pytest.approx(A, abs=1e-4)
    assert ratio.max().item() == pytest.approx(B, abs=1e-4)
    assert (ratio - 1).abs().amax() < 0.075


def test_beta_is_the_minimax_shift():
    f = torch.linspace(0, 1, 1 << 20, dtype=torch.float64)
    error = 8 * (f - (torch.exp2(f) - 1))  # Eq. 9
    assert error.amin().item() == pytest.approx(0, abs=1e-9)
    assert error.amax().item() == pytest.approx(0.6886, abs=1e-4)
    assert -error.amax().item() / 2 == pytest.approx(-0.3443, abs=1e-4)
    assert abs(BETA["running"] + error.amax().item() / 2) < 0.006


def test_beta_of_the_tile_form_decodes_right_on_average():
    biased, unbiased = (
        (from_e4m3(expcast(DOUBLING, s)).double() / torch.exp2(DOUBLING.double() + LOG2_GAIN[s])).mean().item()
        for s in ("running", "tile")
    )
    assert biased == pytest.approx(1.0093, abs=2e-4)
    assert unbiased == pytest.approx(1.0, abs=5e-4)


def test_row_bound_follows_from_the_element_bound():
    assert (math.sqrt(B) - math.sqrt(A)) / (math.sqrt(B) + math.sqrt(A)) < BOUND  # Eq. 13
    q = math.sqrt(A) / (math.sqrt(A) + math.sqrt(B))
    assert q * (1 - q) * (B - A) / (A + q * (B - A)) < BOUND  # Eq. 12 at its maximum


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0, 3.0, 5.0])
def test_no_row_exceeds_the_bound_plus_its_tail(sigma):
    u = rows(sigma)
    decoded = from_e4m3(expcast(u))
    exact = torch.exp2(u.double())
    tail = u < -14
    masses = [(x * tail).sum(-1) / x.sum(-1) for x in (exact, decoded.double())]
    assert (total_variation(u, decoded) - torch.maximum(*masses) < BOUND).all()


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.0, 3.0, 5.0])
def test_tile_local_codes_keep_every_row_below_4_42_percent(sigma):
    u = rows(sigma).unflatten(-1, (-1, 128))
    local = u - u.amax(-1, keepdim=True)
    decoded = from_e4m3(expcast(local, "tile")) / 112 * torch.exp2(u.amax(-1, keepdim=True))
    worst = total_variation(u.flatten(-2), decoded.flatten(-2)).amax()
    assert worst < BOUND + 127 * 2.0**-13
    assert worst < 0.016


def numerics_of(format, p_scale="tile", row_sum="exact"):
    pv = {"u8": "int8", "nvfp4": "nvfp4"}.get(format, "e4m3")
    return Numerics(pv=pv, probability=format, p_scale=p_scale, row_sum=row_sum)


@pytest.mark.parametrize(
    "format, p_scale, row_sum",
    [
        *itertools.product(("expcast", "exact", "nvfp4", "none"), ("running", "tile"), ("exact", "decoded")),
        ("u8", "tile", "exact"),
    ],
)
def test_formats_agree_with_the_exponential(format, p_scale, row_sum):
    u = rows(0.7, 1024, 16)
    numerics = numerics_of(format, p_scale, row_sum)
    p, r = probabilities(u, numerics)
    exact = torch.exp2(u.double())
    gain = p.double().sum(-1) / exact.sum(-1)
    limit = {"none": 1e-6, "u8": 0.01, "exact": 0.02, "expcast": BOUND, "nvfp4": 0.07}[format]
    assert (total_variation(u, p) < limit).all()
    assert ((r.double() / exact.sum(-1) / gain - 1).abs() < limit).all()
    assert torch.equal(r, p.sum(-1)) == (format in ("expcast", "none") or row_sum == "decoded")


@pytest.mark.parametrize("format", ["expcast", "exact", "u8", "nvfp4", "none"])
def test_masked_keys_have_no_probability(format):
    u = torch.full((1, 32), -torch.inf)
    u[0, 3] = 0.0
    p, r = probabilities(u, numerics_of(format))
    assert (p[0] != 0).nonzero().flatten().tolist() == [3]
    assert r.item() == pytest.approx(p[0, 3].item())
