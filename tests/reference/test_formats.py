"""Number formats against definitions written out independently, and the order of sums."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vc_attention.reference import arithmetic, formats

FINITE = st.floats(-1e4, 1e4, width=32)


def nearest_even(x: float, values: list[float]) -> int:
    """Index of the value nearest to x; a tie goes to the even index."""
    distance = [abs(x - v) for v in values]
    best = min(distance)
    candidates = [i for i, d in enumerate(distance) if d == best]
    return next((i for i in candidates if i % 2 == 0), candidates[0])


def e4m3_values() -> list[float]:
    """Non-negative finite E4M3 values by code: subnormals m * 2^-9, normals 2^(e-7) (1 + m/8)."""
    return [c * 2.0**-9 if c < 8 else 2.0 ** ((c >> 3) - 7) * (1 + (c & 7) / 8) for c in range(127)]


E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


@pytest.mark.parametrize(
    "values, to, of", [(e4m3_values(), formats.to_e4m3, formats.from_e4m3), (E2M1, formats.to_e2m1, formats.from_e2m1)]
)
def test_every_code_tie_and_neighbour(values, to, of):
    codes = torch.arange(len(values), dtype=torch.uint8)
    assert of(codes).tolist() == values
    middles = [(a + b) / 2 for a, b in zip(values, values[1:], strict=False)]
    points = np.array(values + middles, np.float32)
    points = np.concatenate([points, np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-1))])
    points = points[(points >= 0) & (points <= values[-1])]
    wanted = [nearest_even(float(x), values) for x in points]
    assert to(torch.from_numpy(points)).tolist() == wanted
    assert torch.equal(of(to(-torch.from_numpy(points))), -of(to(torch.from_numpy(points))))


@given(FINITE)
def test_saturation(x):
    assert formats.from_e4m3(formats.to_e4m3(torch.tensor([x]))).abs() <= 448
    assert formats.from_e2m1(formats.to_e2m1(torch.tensor([x]))).abs() <= 6


def test_int8_rounds_to_even_and_is_symmetric():
    x = torch.tensor([-200.0, -127.5, -2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 127.4, 200.0])
    assert formats.encode(x, "int8").tolist() == [-127, -127, -2, -2, 0, 0, 2, 2, 127, 127]


def test_reciprocal_scale_is_an_ieee_quotient():
    amax = torch.rand(4096, generator=torch.Generator().manual_seed(0)) * 30 + 1e-3
    inverse, scale = formats.reciprocal_scale(amax, 127.0)
    assert np.array_equal(inverse.numpy(), np.float32(127) / amax.numpy())
    assert np.array_equal(scale.numpy(), amax.numpy() / np.float32(127))


def test_an_amax_that_counts_as_zero_gives_zero():
    inverse, scale = formats.reciprocal_scale(torch.tensor([0.0, 2.0**-65, 2.0**-64]), 448.0)
    assert inverse[:2].tolist() == scale[:2].tolist() == [0.0, 0.0]
    assert inverse[2] == 448.0 * 2.0**64


@given(st.lists(st.floats(-2688, 2688, width=32), min_size=16, max_size=16))
def test_nvfp4_decodes_close_and_four_over_six_is_never_worse(values):
    x = torch.tensor([values])
    errors = []
    for choose in (False, True):
        codes, micro = formats.encode_nvfp4(x, choose)
        decoded = formats.decode(codes, micro, "nvfp4")
        amax = x.abs().amax()
        # Half the widest step (4..6) is amax/6 of a scale rounded by up to 1/16, and E4M3 ends at 2^-9.
        assert choose or (decoded - x).abs().amax() <= amax / 6 * 1.07 + 6 * 2.0**-10
        errors.append(arithmetic.tree_sum((x - decoded) ** 2, -1).item())
    assert errors[1] <= errors[0]


def test_nvfp4_divides_by_the_decoded_scale():
    x = torch.full((1, 16), 100.0)
    codes, micro = formats.encode_nvfp4(x)
    scale = formats.from_e4m3(micro)
    assert scale.item() == 16.0  # 16.67 rounded to E4M3
    assert formats.from_e2m1(codes).unique().tolist() == [6.0]


@settings(max_examples=50)
@given(st.lists(FINITE, min_size=1, max_size=70))
def test_tree_sum_adds_neighbours(values):
    level = np.array(values, np.float32)
    level = np.concatenate([level, np.zeros((1 << (len(level) - 1).bit_length()) - len(level), np.float32)])
    while len(level) > 1:
        level = level[0::2] + level[1::2]
    x = torch.tensor(values)
    assert arithmetic.tree_sum(x, 0).item() == level[0]
    assert arithmetic.tree_sum(x[None, :, None].expand(2, -1, 3), 1).unique().tolist() == [float(level[0])]


@pytest.mark.parametrize("size", [64, 128])
def test_hadamard_is_the_sylvester_matrix(size):
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while matrix.shape[0] < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64), matrix)
    x = torch.randint(-50, 50, (3, size)).double()
    assert torch.equal(arithmetic.hadamard(x), x @ matrix)
    assert torch.equal(arithmetic.hadamard(arithmetic.hadamard(x)), size * x)


def test_clean_rounds_fp32_and_tames_the_rest():
    x = torch.tensor([1.0 + 2.0**-9, float("nan"), float("inf"), -float("inf"), 2.0**41])
    assert arithmetic.clean(x).tolist() == [1.0, 0.0, 2.0**40, -(2.0**40), 2.0**40]
    half = torch.tensor([1.0 + 2.0**-10, 65504.0], dtype=torch.float16)
    assert arithmetic.clean(half).tolist() == half.tolist()
    same = torch.tensor([1.0, float("nan")], dtype=torch.bfloat16)
    arithmetic.clean(same)
    assert same.isnan().tolist() == [False, True]
