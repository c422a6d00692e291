"""The guard's number against the true error: over the generator's heads, planted layers and every profile."""

import math
from functools import cache

import pytest
import torch

from tests.generator import qkv
from tests.reference.fidelity import exact_attention
from vc_attention import attention, guard
from vc_attention.config import PROFILES, Action

GRID, SEEDS = (4, 16, 32), (10, 11)
DRAWS = 20


@cache
def inputs(planted: bool):
    """q, k, v `[1, 2, 2048, 128]`, four channels of K x 50 when planted, and exact attention."""
    q, k, v = qkv(GRID, SEEDS)
    if planted:
        k = k.clone()
        k[..., [3, 40, 77, 101]] *= 50
    return q, k, v, exact_attention(q, k, v)


def estimate(q, k, v, out, seed: int) -> float:
    squares, norm = guard.squared_error(q, k, v, out, seed)
    return math.sqrt(squares / norm)


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("profile", ["balanced", "quality", "4bit", "int8-nvfp4", "paper-8bit"])
def test_the_estimate_is_within_15_percent_of_the_truth(profile, planted):
    q, k, v, exact = inputs(planted)
    out, _ = attention.attend(q, k, v, numerics=PROFILES[profile], action=Action.GROUP, backend="reference")
    true = float((out.double() - exact).norm() / exact.norm())
    found = [estimate(q, k, v, out, 7919 * draw) for draw in range(DRAWS)]
    assert max(abs(x / true - 1) for x in found) < 0.15, (true, found)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("scores", [1 << 10, 1 << 24])
def test_exact_rows_are_exact(dtype, scores, monkeypatch):
    monkeypatch.setattr(guard, "SCORES", scores)
    q, k, v = (torch.randn(2, 3, n, 64, generator=torch.Generator().manual_seed(n)).to(dtype) for n in (5, 300, 300))
    out = guard.exact_rows(4.0 * q, k, v)
    exact = exact_attention(4.0 * q, k, v)
    assert out.dtype == torch.float32 and (out - exact).norm() / exact.norm() < 1e-5


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_one_value_that_is_not_finite_is_seen_wherever_it_is(bad):
    q, k, v = (
        torch.randn(1, 1, 3 * guard.CANDIDATES, 64, generator=torch.Generator().manual_seed(n)) for n in range(3)
    )
    drawn = set(guard.sample_rows(v, 1)[0].flatten().tolist())
    row = next(row for row in range(v.shape[2]) if row not in drawn)
    out = v.clone()
    out[..., row, 3] = bad
    assert row not in guard.sample_rows(out, 1)[0] and math.isnan(guard.squared_error(q, k, v, out, 1)[0])


def test_extreme_inputs():
    q, k, v = (torch.randn(1, 1, 300, 64, generator=torch.Generator().manual_seed(n)) for n in range(3))
    zero = torch.zeros_like(v)
    assert [float(x) for x in guard.squared_error(q, k, zero, zero, 1)] == [0.0, 0.0]
    big = guard.exact_rows(1e4 * q[:, :, :4], k, v)  # scores of thousands: one key takes all
    assert (big - v[:, :, (q[:, :, :4] @ k.mT).argmax(-1).flatten()]).abs().max() < 1e-6
    out = v.clone()
    out[..., 77, 3] = torch.nan
    assert math.isnan(guard.squared_error(q, k, v, out, 1)[0])


@pytest.mark.parametrize("length", [1, 2, 100, 1023, 1024, 5000])
def test_rows_are_drawn_by_the_size_of_the_output(length):
    out = torch.ones(1, 2, length, 8)
    out[:, 1, length // 2] *= 100.0
    rows, weight = guard.sample_rows(out, 12345)
    assert rows.shape == weight.shape == (1, 2, guard.ROWS // 2)
    assert rows.min() >= 0 and rows.max() < length and (rows.diff() >= 0).all()
    again, _ = guard.sample_rows(out, 12345)
    other, _ = guard.sample_rows(out, 54321)
    assert torch.equal(rows, again) and (length < 3 or not torch.equal(rows, other))
    if 2 < length <= guard.CANDIDATES:  # 10,000 of it and a quarter of the mean for each of the others
        assert 0.6 < (rows[0, 1] == length // 2).float().mean() < 1
    # Every row counts for one over its chance: the mean over the draws is the number of candidates.
    assert torch.allclose(weight.mean(-1), torch.full((1, 2), float(min(length, guard.CANDIDATES))), rtol=0.1)
