"""Two encodings of the NVFP4 layouts agree: tests/ptx.py, from the PTX ISA, and layout.py with the reference.

Registers are filled as csrc/README.md tells a kernel: whole words of tile images by lane, P from C fragments without a
shuffle. Their product by PTX's rules must be the reference's product of the matrices.
"""

from __future__ import annotations

import pytest
import torch

from tests import ptx
from vc_attention import layout, reference
from vc_attention.config import PROFILES
from vc_attention.reference.formats import decode, encode_nvfp4

ZERO = [[0.0] * 4 for _ in ptx.LANES]
CHUNK_FLIP = {64: lambda row: row >> 1 & 3, 32: lambda row: row >> 2 & 1}


def word(image: torch.Tensor, row: int, byte: int) -> int:
    """Four bytes of a swizzled image `[rows, 64 or 32]`, `byte` of the row before swizzling."""
    at = (byte // 16 ^ CHUNK_FLIP[image.shape[1]](row)) * 16 + byte % 16
    return int.from_bytes(bytes(image[row, at : at + 4].tolist()), "little")


def scales(micro: torch.Tensor, row: int, step: int) -> int:
    """The four micro scales of a row of `[rows, channels / 16]` in step `step` of 64."""
    return int.from_bytes(bytes(micro[row, 4 * step : 4 * step + 4].tolist()), "little")


def rows_fragment(image, first: int, step: int) -> list[list[int]]:
    """A registers of 16 rows: register r is word t of a 16-byte chunk of row g, g + 8, g, g + 8."""
    return [
        [word(image, first + lane // 4 + 8 * (r % 2), 32 * step + 16 * (r // 2) + 4 * (lane % 4)) for r in range(4)]
        for lane in ptx.LANES
    ]


def columns_fragment(image, first: int, step: int) -> list[list[int]]:
    """B registers of eight rows of the image, the columns of B."""
    return [
        [word(image, first + lane // 4, 32 * step + 16 * r + 4 * (lane % 4)) for r in range(2)] for lane in ptx.LANES
    ]


def row_scales(micro, first: int, step: int, thread: int) -> list[int]:
    """The lanes 2 thread and 2 thread + 1 of a quad give rows g and g + 8; the others hold what must not matter."""
    return [
        scales(micro, first + lane // 4 + 8 * (lane % 2), step) if lane % 4 // 2 == thread else 0x7F7F7F7F
        for lane in ptx.LANES
    ]


def column_scales(micro, first: int, step: int, thread: int) -> list[int]:
    return [scales(micro, first + lane // 4, step) if lane % 4 == thread else 0x7F7F7F7F for lane in ptx.LANES]


@pytest.fixture(scope="module", params=(64, 128))
def operands(request):
    generator = torch.Generator().manual_seed(request.param)
    q = torch.randn(1, 1, 40, request.param, generator=generator)
    k, v = torch.randn(2, 1, 1, 140, request.param, generator=generator)
    return reference.prepare(q, 0.5 * k + 1.0, v, PROFILES["4bit"], None, means=True)


def test_scores_of_images_by_ptx_are_those_of_the_reference(operands):
    made, head_dim = layout.images(operands), operands.q_codes.shape[-1]
    q, q_micro = made["q_codes"][0, 0, 0, 0], made["q_micro"][0, 0, 0, 0]
    k, k_micro, bias = (made[name][0, 0, 0] for name in ("k_codes", "k_micro", "k_bias"))
    slots, first = layout.key_slots(lane_keys=8).tolist(), 16
    wanted = (
        decode(operands.q_codes, operands.q_micro, "nvfp4") @ decode(operands.k_codes, operands.k_micro, "nvfp4").mT
    )
    wanted = (wanted + operands.k_bias[..., None, :])[0, 0].double()
    for n8 in (0, 3, 9, 15):
        thread_a, thread_b = n8 % 2, n8 % 4
        d = [[float(bias[8 * n8 + ptx.c_element(lane, i)[1]]) for i in range(4)] for lane in ptx.LANES]
        for step in range(head_dim // 64):
            d = ptx.mma(
                rows_fragment(q, first, step), columns_fragment(k, 8 * n8, step), d,
                row_scales(q_micro, first, step, thread_a), column_scales(k_micro, 8 * n8, step, thread_b),
                thread_a, thread_b,
            )  # fmt: skip
        for lane in ptx.LANES:
            for i in range(4):
                row, column = ptx.c_element(lane, i)
                expected = wanted[first + row, slots[8 * n8 + column]].item()
                assert d[lane][i] == pytest.approx(expected, rel=1e-5, abs=1e-2)


def test_every_lane_gets_the_term_of_the_means(operands):
    made, head_dim = layout.images(operands), operands.q_codes.shape[-1]
    k, k_micro = made["k_codes"][0, 0, 0], made["k_micro"][0, 0, 0]
    whole = sum(
        decode(getattr(operands, f"q{x}_codes"), getattr(operands, f"q{x}_micro"), "nvfp4") for x in ("", "_rest")
    )
    mean = decode(operands.k_mean_codes, operands.k_mean_micro, "nvfp4")[0, 0, 0].double().sum(0)
    wanted = whole[0, 0].double() @ mean
    d = ZERO
    for part in (0, 1):
        q, q_micro = made["q_codes"][0, 0, 0, part], made["q_micro"][0, 0, 0, part]
        for step in range(head_dim // 64):
            d = ptx.mma(
                rows_fragment(q, 0, step), columns_fragment(k, 128, step), d,
                row_scales(q_micro, 0, step, 0), column_scales(k_micro, 128, step, 0),
            )  # fmt: skip
    for lane in ptx.LANES:
        for i in (0, 2):
            row = ptx.c_element(lane, i)[0]
            assert d[lane][i] + d[lane][i + 1] == pytest.approx(wanted[row].item(), rel=1e-5, abs=1e-2)


def probabilities():
    """Codes and micro scales of 16 rows of 128 keys in perm order."""
    p = 2688 * torch.rand(16, 128, generator=torch.Generator().manual_seed(1)) ** 4
    return encode_nvfp4(p)


def test_probabilities_in_c_fragments_are_a_fragments(operands):
    made = layout.images(operands)
    v, v_micro = made["v_codes"][0, 0, 0], made["v_micro"][0, 0, 0]
    codes, micro = probabilities()
    slots = layout.key_slots(lane_keys=8).tolist()
    values = decode(operands.v_codes[0, 0, :128].mT, operands.v_micro[0, 0, :, :8], "nvfp4")
    wanted = decode(codes, micro, "nvfp4").double() @ values.double().mT
    d = ZERO
    for step in range(2):
        a, scale_a = [], []
        for lane in ptx.LANES:
            registers = []
            for r in range(4):  # rows g, g + 8; n8 tiles 8 step .. + 3, then + 4 .. + 7
                nibbles = [
                    codes[ptx.c_element(lane, 2 * (r % 2) + e)[0], slots[8 * (8 * step + 4 * (r // 2) + i)
                          + ptx.c_element(lane, e)[1]]].item()
                    for i in range(4)
                    for e in range(2)
                ]  # fmt: skip
                registers.append(sum(nibble << 4 * i for i, nibble in enumerate(nibbles)))
            a.append(registers)
            scale_a.append(scales(micro, lane // 4 + 8 * (lane % 2), step))
        d = ptx.mma(a, columns_fragment(v, 8, step), d, scale_a, column_scales(v_micro, 8, step, 0))
    for lane in ptx.LANES:
        for i in range(4):
            row, column = ptx.c_element(lane, i)
            assert d[lane][i] == pytest.approx(wanted[row, 8 + column].item(), rel=1e-5, abs=1e-3)


def test_a_lane_pair_owns_whole_scale_groups_of_p():
    slots = layout.key_slots(lane_keys=8)
    for lane in range(4):
        mine = torch.cat([slots[8 * n8 + 2 * lane : 8 * n8 + 2 * lane + 2] for n8 in range(16)])
        assert sorted(set((mine % 32 // 8).tolist())) == [lane]
        assert torch.equal(mine, mine.sort().values), "register, nibble order is key order"


@pytest.mark.parametrize("width", (64, 32))
def test_ldmatrix_rows_meet_every_bank_once(width):
    for first in range(0, 128, 8):
        for chunk in range(width // 16):
            banks = {((first + r) * width + (chunk ^ CHUNK_FLIP[width](first + r)) * 16) % 128 // 16 for r in range(8)}
            assert len(banks) == 8
