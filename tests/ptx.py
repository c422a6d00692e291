"""The block-scaled FP4 product as the PTX ISA writes it, one warp, in plain Python; knows nothing of our layouts.

"Matrix Fragments for mma.m16n8k64" (9.7.14.5) says which element of a matrix is element i of a lane's fragment, "Block
Scaling for mma.sync" (9.7.14.3) which lanes' scale registers count.
"""

from __future__ import annotations

import torch

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
LANES = range(32)


def a_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of a_i, i below 32."""
    group, in_group = lane >> 2, lane % 4
    row = group if 0 <= i < 8 or 16 <= i < 24 else group + 8
    column = in_group * 8 + (i & 7) if i < 16 else in_group * 8 + (i & 7) + 32
    return row, column


def b_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of b_i, i below 16."""
    group, in_group = lane >> 2, lane % 4
    return (in_group * 8 + (i & 7) if i < 8 else in_group * 8 + (i & 7) + 32), group


def c_element(lane: int, i: int) -> tuple[int, int]:
    """(row, column) of c_i and d_i, i below 4."""
    group, in_group = lane >> 2, lane % 4
    return (group if i < 2 else group + 8), in_group * 2 + (i & 1)


def a_scale_lane(row: int, thread_id: int) -> int:
    """Lane whose scale register holds the four scales of a row of A."""
    return 4 * (row % 8) + 2 * thread_id + row // 8


def b_scale_lane(column: int, thread_id: int) -> int:
    """Lane whose scale register holds the four scales of a column of B."""
    return 4 * column + thread_id


def e2m1(nibble: int) -> float:
    return -E2M1[nibble & 7] if nibble & 8 else E2M1[nibble]


def ue4m3(byte: int) -> float:
    exponent, mantissa = byte >> 3 & 15, byte & 7
    return (1 + mantissa / 8) * 2.0 ** (exponent - 7) if exponent else mantissa / 8 * 2.0**-6


def mma(a, b, c, scale_a, scale_b, thread_a: int = 0, thread_b: int = 0) -> list[list[float]]:
    """D = (A scale_A)(B scale_B) + C, m16n8k64, scale_vec::4X: registers by lane, as integers; c and D floats by lane.

    a[lane][4], b[lane][2]: eight elements a register, "low to high". scale_a[lane], scale_b[lane]: byte k / 16.
    """
    matrix_a, matrix_b = torch.zeros(16, 64, dtype=torch.float64), torch.zeros(64, 8, dtype=torch.float64)
    for lane in LANES:
        for i in range(32):
            row, k = a_element(lane, i)
            scale = scale_a[a_scale_lane(row, thread_a)] >> 8 * (k // 16) & 255
            matrix_a[row, k] = e2m1(a[lane][i // 8] >> 4 * (i % 8) & 15) * ue4m3(scale)
        for i in range(16):
            k, column = b_element(lane, i)
            scale = scale_b[b_scale_lane(column, thread_b)] >> 8 * (k // 16) & 255
            matrix_b[k, column] = e2m1(b[lane][i // 8] >> 4 * (i % 8) & 15) * ue4m3(scale)
    product = matrix_a @ matrix_b
    return [[c[lane][i] + product[c_element(lane, i)].item() for i in range(4)] for lane in LANES]
