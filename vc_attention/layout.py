"""Tile images: the bytes of a tile exactly as a kernel's shared memory wants them (csrc/README.md)."""

from __future__ import annotations

import torch
from torch.nn.functional import pad

TILE = 128
CHUNK = 16  # bytes that a swizzle moves together


def key_slots(device=None, lane_keys: int = 4) -> torch.Tensor:
    """slot(p) for the 128 image rows of a key tile, int64.

    With L = lane_keys (`Numerics.lane_keys`): `slot(4L g + 8i + 2t + e) = 4L g + L t + 2i + e`, i below L / 2.
    """
    p = torch.arange(TILE, device=device)
    return (p & -4 * lane_keys) + lane_keys * (p >> 1 & 3) + 2 * (p >> 3 & lane_keys // 2 - 1) + (p & 1)


def nibbles(codes: torch.Tensor) -> torch.Tensor:
    """Codes 0..15 `[..., 2n]` -> bytes `[..., n]`, the even one of two in the low half."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def swizzle(rows: torch.Tensor) -> torch.Tensor:
    """Moves the 16-byte chunks of byte rows `[..., R, 128, 64 or 32]`; its own inverse.

    Chunk c of row r goes to `c ^ (r & 7)` in rows of 128 bytes, to `c ^ ((r >> 1) & 3)` in rows of 64, to
    `c ^ ((r >> 2) & 1)` in rows of 32.
    """
    count, width = rows.shape[-2:]
    r = torch.arange(count, device=rows.device)[:, None]
    chunk = torch.arange(width // CHUNK, device=rows.device)
    source = chunk ^ {128: r & 7, 64: r >> 1 & 3, 32: r >> 2 & 1}[width]
    chunks = rows.unflatten(-1, (-1, CHUNK))
    return chunks.gather(-2, source[..., None].expand(chunks.shape)).flatten(-2)


def tiles(codes: torch.Tensor) -> torch.Tensor:
    """Byte codes `[..., N, D]` -> uint8 `[..., ceil(N/128), 128, D]`, zero rows at the end."""
    codes = codes.view(torch.uint8)
    return pad(codes, (0, 0, 0, -codes.shape[-2] % TILE)).unflatten(-2, (-1, TILE))


def q_image(codes: torch.Tensor) -> torch.Tensor:
    """Codes `[B, H, Nq, D]` -> q_codes `[B, H, nQ, 128, D]`."""
    return swizzle(tiles(codes))


def k_image(codes: torch.Tensor, lane_keys: int = 4) -> torch.Tensor:
    """Codes `[B, H, Nk, D]` in perm order -> k_codes `[B, H, nK, 128, D]`, rows in key slots."""
    return swizzle(tiles(codes)[..., key_slots(codes.device, lane_keys), :])


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


def q_nvfp4(operands) -> dict[str, torch.Tensor]:
    """q_codes `[B, H, nQ, 2, 128, D/2]` and q_micro `[B, H, nQ, 2, 128, D/16]`: queries, and what rounding lost."""
    codes = torch.stack([tiles(operands.q_codes), tiles(operands.q_rest_codes)], -3)
    micro = torch.stack([tiles(operands.q_micro), tiles(operands.q_rest_micro)], -3)
    return {"q_codes": swizzle(nibbles(codes)), "q_micro": micro}


def k_nvfp4(operands) -> dict[str, torch.Tensor]:
    """k_codes `[B, H, nK, 136, D/2]` and k_micro `[B, H, nK, 136, D/16]`: keys in slots, then both vectors of the mean.

    The latter four times. k_bias is fp32 `[B, H, nK, 128]` in slots; k_scale `[B, H, nK, 4]`, four times the tile's.
    """
    slots = key_slots(operands.k_codes.device, lane_keys=8)
    rows = {}
    for name in ("codes", "micro"):
        keys, mean = (getattr(operands, f"{prefix}_{name}") for prefix in ("k", "k_mean"))
        rows[name] = torch.cat([tiles(keys)[..., slots, :], mean.repeat(1, 1, 1, 4, 1)], -2)
    bias = pad(operands.k_bias, (0, -operands.k_bias.shape[-1] % TILE)).unflatten(-1, (-1, TILE))
    return {
        "k_codes": swizzle(nibbles(rows["codes"])),
        "k_micro": rows["micro"],
        "k_bias": bias[..., slots],
        "k_scale": operands.k_scale.expand(*operands.k_scale.shape[:-1], 4),
    }


def v_nvfp4(operands) -> dict[str, torch.Tensor]:
    """v_codes `[B, H, nK, D, 64]`, rows are channels, and v_micro `[B, H, nK, D, 8]`."""
    micro = pad(operands.v_micro, (0, -operands.v_micro.shape[-1] % 8))
    return {
        "v_codes": swizzle(nibbles(tiles(operands.v_codes).mT)),
        "v_micro": micro.unflatten(-1, (-1, 8)).transpose(-3, -2).contiguous(),
    }


def images(operands) -> dict[str, torch.Tensor]:
    """`reference.Operands` -> the kernels' operands by name, shapes and padding as in csrc/README.md."""
    lane_keys = 4 if operands.v_micro is None else 8
    q_scale = operands.q_scale
    made = {
        "q_codes": q_image(operands.q_codes),
        "q_scale": pad(q_scale, (0, -q_scale.shape[-1] % TILE)),
        "k_codes": k_image(operands.k_codes, lane_keys),
        "k_scale": operands.k_scale,
        "v_codes": v_image(operands.v_codes),
        "v_scale": operands.v_scale,
        "v_mean": mean_image(operands.v_mean),
    }
    if operands.v_micro is not None:
        made |= v_nvfp4(operands)
    if operands.k_bias is not None:
        made |= q_nvfp4(operands) | k_nvfp4(operands)
    return made
