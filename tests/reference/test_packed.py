"""ExpCast from scores of 16 bits: codes lie on the line at any slope, and are what the halves of kernels give."""

from __future__ import annotations

import math

import pytest
import torch

from tests.reference.fidelity import Heads, exact_attention
from vc_attention.config import PROFILES
from vc_attention.reference.formats import HALF_SUMS_VALUE_MAX, from_e4m3, to_e4m3
from vc_attention.reference.probability import (
    MAX_PACKED_SLOPE,
    PACK,
    STEEP_TOP,
    TOP_CODE,
    expcast_packed,
    fixed_point,
)

LARGEST = 128 * 127 * 127  # dot product
SLOPES = {"flat": (0.0, 0.06), "usual": (0.06, 2.0), "steep": (2.0, 40.0)}  # codes a unit


def dots(rows: int = 64, seed: int = 0) -> torch.Tensor:
    """Dot products `[rows, 256]` of any spread, some rows with a key far above or below all others."""
    random = torch.Generator().manual_seed(seed)
    spread = 10 ** torch.empty(rows, 1).uniform_(1, 5.7, generator=random)
    dot = (torch.randn(rows, 256, generator=random) * spread).round().clamp(-LARGEST, LARGEST)
    dot[::4, 77], dot[1::4, 99] = LARGEST, -LARGEST
    dot[3] = dot[3, :1]
    return dot


def slopes(kind: str, rows: int = 64) -> torch.Tensor:
    """Log2 units of a unit of a dot product, fp32 `[rows]`."""
    return torch.empty(rows).uniform_(*SLOPES[kind], generator=torch.Generator().manual_seed(1)) / (8 * PACK)


@pytest.mark.parametrize("kind", SLOPES)
def test_codes_lie_on_the_line(kind):
    dot, slope = dots(), slopes(kind)
    codes, reference = expcast_packed(dot, slope)
    exact = slope.clamp(max=MAX_PACKED_SLOPE / (8 * PACK))
    octaves = codes.double() / 8 + reference[:, None].double()
    wanted = dot.double() * exact[:, None]
    unit = exact[:, None] * PACK * (8 if kind == "flat" else 1)
    # Half a code, a unit cut off, and what rounding the slope moves over the distance to the maximum.
    bound = 0.5 / 8 + unit + (dot.amax(-1, keepdim=True) - dot) / PACK / (8 if kind == "flat" else 1) * 2**-12 / 8
    seen = codes > 0
    assert ((octaves - wanted).abs() <= bound + exact[:, None] * dot.abs() * 2**-11 + 1e-4)[seen].all()
    assert (wanted - reference[:, None] <= bound + 0.5 / 8 + 1e-4)[~seen].all(), "zero where less is worth nothing"


def test_the_maximum_has_the_top_code():
    for kind, top in (("flat", TOP_CODE["tile"]), ("usual", TOP_CODE["tile"]), ("steep", STEEP_TOP)):
        assert (expcast_packed(dots(), slopes(kind))[0].amax(-1) == top).all(), kind


def test_256_products_fit_fp16():
    """Also while they are being summed: all partial sums lie between numbers that fp16 has."""
    codes = expcast_packed(torch.zeros(1, 256), slopes("usual", 1))[0]
    largest = from_e4m3(codes).sum() * from_e4m3(to_e4m3(torch.tensor([HALF_SUMS_VALUE_MAX])))
    assert largest == 256 * 112 * 2.25 == largest.half().float()


@pytest.mark.parametrize(("codes", "most"), [(0.5, 2**-13), (1.0, 2**-13), (2.0, 2**-12), (4.0, 2**-12), (8.0, 2**-12)])
def test_a_step_loses_little_to_underflow(codes, most):
    """One key above 255 others, of which the subnormal codes say too little, or nothing."""
    slope = torch.tensor([codes / (8 * PACK)])
    for distance in range(int(80 / codes), int(140 / codes)):
        dot = torch.full((1, 256), -PACK * distance)
        dot[0, 0] = 0.0
        exact = torch.exp2((dot * slope).double())
        bytes_ = expcast_packed(dot, slope)[0]
        small = bytes_ < 8
        p = from_e4m3(bytes_).double() / from_e4m3(bytes_).amax()
        assert (exact - p)[small].sum() / exact.sum() < 255 * most


def test_masked_keys_count_for_nothing():
    dot, slope = dots(), slopes("flat")
    few = dot.clone()
    few[:, 40:] = -torch.inf
    codes, reference = expcast_packed(few, slope)
    alone, same = expcast_packed(dot[:, :40], slope)
    assert not codes[:, 40:].any()
    assert torch.equal(codes[:, :40], alone) and torch.equal(reference, same)


def test_every_slope_is_exact_in_halves():
    """All fp16 slopes: constants are fp16 numbers, and lose nothing."""
    bits = torch.arange(int(torch.tensor(MAX_PACKED_SLOPE).half().view(torch.int16)) + 1, dtype=torch.int16)
    half, zero, top = fixed_point(bits.view(torch.float16).float())
    assert torch.equal(half.half().float(), half)
    assert torch.equal((half * 2048).round(), half * 2048)
    assert torch.equal((zero * 2.0**-24).half().float() * 2**24, zero)
    assert torch.equal(half * 2048 + zero, top)


def in_halves(dot: torch.Tensor, slope: torch.Tensor) -> torch.Tensor:
    """The codes as csrc/sm90/packed_softmax.cuh makes them: int16 and fp16, every operation rounded once."""
    worth = (slope * (8 * PACK)).clamp(max=MAX_PACKED_SLOPE)

    def constants(worth):
        nearest = worth.half().double()
        top = torch.where(nearest < 2, TOP_CODE["tile"], STEEP_TOP).double()
        zero = (nearest * -(2.0**-13) + top * 2.0**-24).half()
        return (zero.double() * -(2.0**13) + top / 2048).half(), zero

    flat = constants(worth)[1] > 0
    half, zero = constants(torch.where(flat, worth * 8, worth))
    score = (dot.int() >> torch.where(flat, 3, 0)[:, None] >> 8).short()
    above = (score + (2048 - score.amax(-1, keepdim=True))).clamp(min=0)
    code = (above.view(torch.float16).double() * half[:, None].double() + zero[:, None].double()).half().relu()
    return code.view(torch.int16) & 0xFF  # -0 is a 0


@pytest.mark.parametrize("kind", SLOPES)
@pytest.mark.parametrize("seed", range(4))
def test_halves_give_the_reference_s_codes(kind, seed):
    dot, slope = dots(seed=seed), slopes(kind)
    assert torch.equal(in_halves(dot, slope), expcast_packed(dot, slope)[0].short())


def test_less_is_lost_than_by_int8():
    """A score cut to 256 units moves by 74 of them, rounding to INT8 moves one by 160 and more."""
    random = torch.Generator().manual_seed(0)
    q, k = (torch.randn(n, 128, generator=random).double() for n in (256, 4096))
    codes = [(x / (x.abs().amax() / 127)).round() for x in (q, k)]
    exact = (q / (q.abs().amax() / 127)) @ (k / (k.abs().amax() / 127)).T
    rounding = (codes[0] @ codes[1].T - exact).std()
    assert PACK / math.sqrt(12) < 0.6 * rounding


@pytest.mark.parametrize("gain, most", [(0.05, 1.2), (0.25, 1.25), (1.0, 1.1), (4.0, 1.25)])
def test_what_it_costs_at_any_steepness(gain, most):
    """Against fp32 scores of the same profile; units of 8 begin between the first gains and the third, within heads."""
    heads = Heads((4, 32, 32))
    heads.q *= gain
    heads.exact = exact_attention(heads.q[:, :, heads.rows], heads.k, heads.v)
    packed, exact = (heads.error(PROFILES["balanced"], block_n=256, packed=p).mean() for p in (True, False))
    assert packed < most * exact
