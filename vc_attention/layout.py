"""Tile images: the bytes of a tile exactly as a kernel's shared memory wants them (csrc/README.md)."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

TILE = 128
CHUNK = 16  # bytes that a swizzle moves together


def key_slots(device=None) -> torch.Tensor:
    """slot(p) for the 128 image rows of a key tile, int64: `slot(16g + 8i + 2t + e) = 16g + 4t + 2i + e`."""
    p = torch.arange(TILE, device=device)
    return (p & ~15) + 4 * (p >> 1 & 3) + 2 * (p >> 3 & 1) + (p & 1)


def swizzle(rows: torch.Tensor) -> torch.Tensor:
    """Moves the 16-byte chunks of byte rows `[..., R, 128 or 64]`; its own inverse.

    Chunk c of row r goes to `c ^ (r & 7)` in rows of 128 bytes, to `c ^ ((r >> 1) & 3)` in rows of 64.
    """
    count, width = rows.shape[-2:]
    r = torch.arange(count, device=rows.device)[:, None]
    chunk = torch.arange(width // CHUNK, device=rows.device)
    source = chunk ^ (r & 7 if width == 128 else r >> 1 & 3)
    chunks = rows.unflatten(-1, (-1, CHUNK))
    return chunks.gather(-2, source[..., None].expand(chunks.shape)).flatten(-2)


def tiles(codes: torch.Tensor) -> torch.Tensor:
    """Byte codes `[..., N, D]` -> uint8 `[..., ceil(N/128), 128, D]`, zero rows at the end."""
    codes = codes.view(torch.uint8)
    return pad(codes, (0, 0, 0, -codes.shape[-2] % TILE)).unflatten(-2, (-1, TILE))


def q_image(codes: torch.Tensor) -> torch.Tensor:
    """Codes `[B, H, Nq, D]` -> q_codes `[B, H, nQ, 128, D]`."""
    return swizzle(tiles(codes))


def k_image(codes: torch.Tensor) -> torch.Tensor:
    """Codes `[B, H, Nk, D]` in perm order -> k_codes `[B, H, nK, 128, D]`, rows in key slots."""
    return swizzle(tiles(codes)[..., key_slots(codes.device), :])


def v_image(codes: torch.Tensor) -> torch.Tensor:
    """Codes `[B, H, Nk, D]` in perm order -> v_codes `[B, H, nK, D, 128]`, rows are channels."""
    return swizzle(tiles(codes).mT)


def tf32(x: torch.Tensor) -> torch.Tensor:
    """fp32 rounded to nearest even at TF32's 10 mantissa bits. Tensor cores would cut the rest off, which is biased."""
    bits = x.contiguous().view(torch.int32)
    return (bits + 0xFFF + (bits >> 13 & 1) & ~0x1FFF).view(torch.float32)


def mean_image(mean: torch.Tensor) -> torch.Tensor:
    """Block means fp32 `[B, H, nK, D]` -> v_mean `[B, H, ceil(nK/32), D, 32]`: 32 tiles side by side, row = channel."""
    groups = tf32(pad(mean, (0, 0, 0, -mean.shape[-2] % 32))).unflatten(-2, (-1, 32))
    return swizzle(groups.mT.contiguous().view(torch.uint8)).view(torch.float32)


def q_codes(image: torch.Tensor, seqlen: int) -> torch.Tensor:
    """Inverse of `q_image`: uint8 `[B, H, seqlen, D]`."""
    return swizzle(image).flatten(-3, -2)[..., :seqlen, :]


def k_codes(image: torch.Tensor, seqlen: int) -> torch.Tensor:
    """Inverse of `k_image`: uint8 `[B, H, seqlen, D]`."""
    rows = swizzle(image)[..., key_slots(image.device).argsort(), :]
    return rows.flatten(-3, -2)[..., :seqlen, :]


def v_codes(image: torch.Tensor, seqlen: int) -> torch.Tensor:
    """Inverse of `v_image`: uint8 `[B, H, seqlen, D]`."""
    return swizzle(image).mT.flatten(-3, -2)[..., :seqlen, :]


def images(operands) -> dict[str, torch.Tensor]:
    """8-bit `reference.Operands` -> the kernels' operands by name, shapes and padding as in csrc/README.md."""
    q_scale = operands.q_scale
    return {
        "q_codes": q_image(operands.q_codes),
        "q_scale": pad(q_scale, (0, -q_scale.shape[-1] % TILE)),
        "k_codes": k_image(operands.k_codes),
        "k_scale": operands.k_scale,
        "v_codes": v_image(operands.v_codes),
        "v_scale": operands.v_scale,
        "v_mean": mean_image(operands.v_mean),
    }
