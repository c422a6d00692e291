"""An sm_120 tensor core in numpy, and the kernel that feeds it: csrc/mma/selftest.cu without a GPU.

`mma` is written from the text of the PTX ISA (9.7.14, mma with .block_scale, m16n8k64, .e2m1, scale_vec::4X): which
lane holds what, nibble by nibble. `Kernel` fills the registers from operands in natural order; a `belief` is a change
to the registers on their way, as a wrong reading of that text would make it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable

import numpy as np

LANES = np.arange(32)
G, T = LANES >> 2, LANES & 3
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])

NAN = np.uint32(0x7F7F7F7F)

Registers = dict[str, np.ndarray]
Belief = Callable[[Registers], None]


def ue4m3(codes: np.ndarray) -> np.ndarray:
    """Exponent of 4 bits with bias 7, mantissa of 3, no infinity; 0x7F is NaN."""
    exponent, mantissa = codes.astype(int) >> 3, codes.astype(int) & 7
    normal = (8 + mantissa) * 2.0 ** (exponent - 10)
    return np.where(codes == 0x7F, np.nan, np.where(exponent > 0, normal, mantissa * 2.0**-9))


def nibble(register: np.ndarray, index: int) -> np.ndarray:
    return E2M1[register >> np.uint32(4 * index) & np.uint32(15)]


def byte(register: np.ndarray, index: int) -> np.ndarray:
    return ue4m3(register >> np.uint32(8 * index) & np.uint32(255))


def mma(r: Registers, bits: int | None = None) -> np.ndarray:
    """Accumulators fp32 [n, 32, 4] of registers a [n, 32, 4], b [n, 32, 2], a_scale and b_scale [n, 32].

    bits: of a term that the accumulator keeps below the largest, all when None.
    """
    n = len(r["a"])
    a, b = np.zeros((n, 16, 64)), np.zeros((n, 8, 64))
    for i in range(32):  # a's elements of a lane
        rows = G + 8 * (i // 8 % 2)
        a[:, rows, 8 * T + i % 8 + 32 * (i // 16)] = nibble(r["a"][:, :, i // 8], i % 8)
    for i in range(16):
        b[:, G, 8 * T + i % 8 + 32 * (i // 8)] = nibble(r["b"][:, :, i // 8], i % 8)
    # thread-id-a selects a pair of each four lanes, which serve rows g and g + 8; thread-id-b one lane of the four.
    product, quad = np.arange(n)[:, None], 4 * np.arange(8)
    lane_a, lane_b = quad + 2 * r["thread_id_a"][:, None], quad + r["thread_id_b"][:, None]
    for block in range(4):
        k = slice(16 * block, 16 * block + 16)
        a[:, :8, k] *= byte(r["a_scale"][product, lane_a], block)[:, :, None]
        a[:, 8:, k] *= byte(r["a_scale"][product, lane_a + 1], block)[:, :, None]
        b[:, :, k] *= byte(r["b_scale"][product, lane_b], block)[:, :, None]
    c = a @ b.transpose(0, 2, 1) if bits is None else truncated(a[:, :, None] * b[:, None], bits)
    return np.stack([c[:, G + 8 * (i // 2), 2 * T + i % 2] for i in range(4)], -1).astype(np.float32)


def truncated(terms: np.ndarray, bits: int) -> np.ndarray:
    largest = np.abs(terms).max(-1, keepdims=True, initial=2.0**-60)
    step = 2.0 ** (np.ceil(np.log2(largest)) - bits)
    return np.trunc(terms / step).sum(-1) * step[..., 0]


def pack(x: np.ndarray) -> np.ndarray:
    """cvt.rn.satfinite.e2m1x2: the nearest of the eight values, a tie to the even code; the first of eight lowest."""
    distance = np.abs(x[..., None] - E2M1[:8])
    nearest = distance == distance.min(-1, keepdims=True)
    codes = np.where(nearest, np.arange(8) % 2 * 8 + np.arange(8), 99).argmin(-1)
    return (codes.astype(np.uint32) << (4 * np.arange(8, dtype=np.uint32))).sum(-1, dtype=np.uint32)


class Kernel:
    """What launch.kernel(...) gives: reads and writes the memory that its parameters point to."""

    def __init__(self, belief: Belief = lambda registers: None, bits: int | None = None, pack=pack) -> None:
        self.belief, self.bits, self.pack, self.launches = belief, bits, pack, 0

    def launch(self, grid, block, shared_bytes, stream, params) -> None:
        (n, _, _), pointers = grid, struct.unpack("<7Q", params)
        assert (block, shared_bytes) == ((32, 1, 1), 0)
        names = ("a", "a_scale", "b", "b_scale")
        shapes = ((n, 16, 8), (n, 16), (n, 8, 8), (n, 8))  # in words of four bytes
        memory = {name: _words(p, s) for name, p, s in zip(names, pointers, shapes, strict=False)}
        registers = {
            "a": np.stack([memory["a"][:, G + 8 * (i % 2), T + 4 * (i // 2)] for i in range(4)], -1),
            "b": np.stack([memory["b"][:, G, T + 4 * i] for i in range(2)], -1),
            "thread_id_a": np.arange(n) & 1,
            "thread_id_b": np.arange(n) >> 1 & 3,
            "x": _words(pointers[5], (n, 32, 8), np.float32),
        }
        of_a, of_b = T // 2 == registers["thread_id_a"][:, None], T == registers["thread_id_b"][:, None]
        registers["a_scale"] = np.where(of_a, memory["a_scale"][:, G + 8 * (T % 2)], NAN)
        registers["b_scale"] = np.where(of_b, memory["b_scale"][:, G], NAN)
        self.belief(registers)
        c = _words(pointers[4], (n, 16, 8), np.float32)
        accumulators = mma(registers, self.bits)
        for i in range(4):
            c[:, G + 8 * (i // 2), 2 * T + i % 2] = accumulators[:, :, i]
        _words(pointers[6], (n, 32))[:] = self.pack(registers["x"])
        self.launches += 1


def _words(address: int, shape: tuple[int, ...], dtype=np.uint32) -> np.ndarray:
    size = int(np.prod(shape))
    return np.frombuffer((ctypes.c_uint32 * size).from_address(address), dtype).reshape(shape)
