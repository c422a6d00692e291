"""Number formats: INT8, E4M3 and NVFP4, rounded to nearest even. A scale is `amax / qmax` of the group it serves."""

from __future__ import annotations

import torch

from .arithmetic import TINY, divide, tree_sum

E4M3_MAX = 448.0
# Of values whose products are summed in fp16: 256 of them with the largest probability, 112, make 64,512.
HALF_SUMS_VALUE_MAX = 2.25
E2M1_MAX = 6.0
NVFP4_MAX = E4M3_MAX * E2M1_MAX  # two-level: fp32 scale x E4M3 scale per 16 x E2M1 element
NVFP4_GROUP = 16
QMAX = {"int8": 127.0, "e4m3": E4M3_MAX, "nvfp4": NVFP4_MAX}
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    """fp32 -> E4M3 bytes (uint8), saturating at 448."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).view(torch.uint8)


def from_e4m3(codes: torch.Tensor) -> torch.Tensor:
    """E4M3 bytes -> fp32, exact."""
    return codes.view(torch.float8_e4m3fn).float()


def to_e2m1(x: torch.Tensor) -> torch.Tensor:
    """fp32 -> E2M1 codes in uint8 0..15 (bit 3 is the sign), saturating at 6; a zero is always code 0."""
    a = x.abs()
    code = (a > 0.25).to(torch.uint8)
    for bound, tie_up in ((0.75, True), (1.25, False), (1.75, True), (2.5, False), (3.5, True), (5.0, False)):
        code += (a >= bound) if tie_up else (a > bound)
    return code + 8 * ((x < 0) & (code > 0)).to(torch.uint8)


def from_e2m1(codes: torch.Tensor) -> torch.Tensor:
    """E2M1 codes -> fp32, exact."""
    table = torch.tensor(_E2M1 + tuple(-v for v in _E2M1), device=codes.device)
    return table[codes.int()]


def qmax(format: str, four_over_six: bool = False) -> float:
    """What the amax of an operand's group is scaled to. 256 * 6 where NVFP4 may choose amax/4, which must fit E4M3."""
    return 256.0 * E2M1_MAX if format == "nvfp4" and four_over_six else QMAX[format]


def value_max(format: str, half_sums: bool, four_over_six: bool = False) -> float:
    """`qmax` of V; `half_sums` as of `Numerics`, of E4M3 values."""
    return HALF_SUMS_VALUE_MAX if half_sums and format == "e4m3" else qmax(format, four_over_six)


def reciprocal_scale(amax: torch.Tensor, qmax: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(`qmax / amax`, `amax / qmax`), both 0 where amax counts as zero."""
    zero = amax < TINY
    return torch.where(zero, 0.0, divide(qmax, amax)), torch.where(zero, 0.0, divide(amax, qmax))


def encode(x: torch.Tensor, format: str) -> torch.Tensor:
    """Scaled values -> codes: int8 for "int8", E4M3 bytes for "e4m3". The values themselves for "none"."""
    if format == "int8":
        return x.round().clamp(-127, 127).to(torch.int8)
    return to_e4m3(x) if format == "e4m3" else x


def decode(codes: torch.Tensor, micro: torch.Tensor | None, format: str) -> torch.Tensor:
    """Codes `[..., N, D]` -> fp32 values before the fp32 scale. NVFP4 groups run along the last dimension."""
    if format == "nvfp4":
        return from_e2m1(codes) * from_e4m3(micro).repeat_interleave(NVFP4_GROUP, dim=-1)
    return from_e4m3(codes) if format == "e4m3" else codes.float()


def encode_nvfp4(y: torch.Tensor, four_over_six: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Values within +-2688, `[..., n]` with n a multiple of 16 -> (E2M1 codes `[..., n]`, E4M3 scales `[..., n/16]`).

    The scale of a group of 16 is E4M3(amax / 6) and elements are multiplied by the reciprocal of the *decoded* scale.
    With `four_over_six` E4M3(amax / 4) is taken instead where its squared error (tree_sum over the group) is strictly
    smaller: it spreads the group over 0..4, where E2M1 is denser.
    """
    groups = y.unflatten(-1, (-1, NVFP4_GROUP))
    amax = groups.abs().amax(-1, keepdim=True)

    def at(top: float):
        micro = to_e4m3(divide(amax, top))
        scale = from_e4m3(micro)
        codes = to_e2m1(groups * torch.where(scale > 0, divide(1.0, scale), 0.0))
        return codes, micro, scale

    codes, micro, scale = at(E2M1_MAX)
    if four_over_six:
        codes4, micro4, scale4 = at(4.0)
        error = tree_sum((groups - from_e2m1(codes) * scale) ** 2, -1)
        error4 = tree_sum((groups - from_e2m1(codes4) * scale4) ** 2, -1)
        better = (error4 < error)[..., None]
        codes, micro = torch.where(better, codes4, codes), torch.where(better, micro4, micro)
    return codes.flatten(-2), micro[..., 0]


def encode_nvfp4_twice(y: torch.Tensor, four_over_six: bool) -> tuple[torch.Tensor, ...]:
    """`encode_nvfp4` of y `[..., n]`, and again of what the first rounding lost: (codes, micro, codes, micro)."""
    codes, micro = encode_nvfp4(y, four_over_six)
    return codes, micro, *encode_nvfp4(y - decode(codes, micro, "nvfp4"), four_over_six)
