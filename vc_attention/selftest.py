"""What `dispatch` trusts kernels by: a small attention call on a GPU against the reference with the same operands, and
for 4 bits, before it, the matrix instruction itself against exact arithmetic."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from . import launch, layout, prepare, reference
from .config import PROFILES, Numerics
from .params import Params
from .reference.formats import NVFP4_GROUP, from_e2m1, from_e4m3, to_e2m1

if TYPE_CHECKING:
    from .dispatch import KernelSpec

QUERIES, KEYS = 150, 700  # a ragged last tile on both sides, an odd number of key tiles

MMA_UNIT, MMA_KERNEL = "mma_selftest", "vc_mma_selftest"
MMA = Params(  # MmaSelftestParams, csrc/README.md
    a="ptr", a_scale="ptr", b="ptr", b_scale="ptr", c="ptr", x="ptr", packed="ptr",
)  # fmt: skip
MMA_LIMIT = 2**-10  # of the sum of absolute products: room for tensor cores that cut bits off, not for a wrong operand
SCALES = 127  # UE4M3 codes that are numbers
PRODUCTS = 2 * SCALES + 64


def numerics_of(spec: KernelSpec) -> Numerics:
    """The default numerics with what the kernel computes; of 4 bits the profile that has it."""
    if spec.probability == "nvfp4":
        return PROFILES["4bit" if spec.qk == "nvfp4" else "int8-nvfp4"]
    pv = "int8" if spec.probability == "u8" else "e4m3"
    return Numerics(pv=pv, probability=spec.probability, p_scale=spec.p_scale)


def operands_on(device: torch.device, made: reference.Operands, means: bool) -> prepare.Operands:
    """Operands of the reference in the kernels' form, on `device`."""
    images = {name: tensor.contiguous().to(device) for name, tensor in layout.images(made).items()}
    if not means:
        images["v_mean"] = images["v_mean"][:, :, :0].contiguous()
    return prepare.Operands(**images, seqlen_q=made.q_codes.shape[-2], seqlen_k=made.k_codes.shape[-2])


def error(spec: KernelSpec, device: torch.device, means: bool) -> float:
    """Relative error of the kernel, ||out - reference|| / ||reference||; NaN when it is not finite."""
    from . import dispatch  # which asks this question

    random = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, spec.head_dim, generator=random) for n in (QUERIES, KEYS, KEYS))
    numerics = numerics_of(spec)
    made = reference.prepare(2.0 * q, k, v + 1.0, numerics, None, means, spec.block_n, spec.packed)
    made = dataclasses.replace(made, v_mean=layout.tf32(made.v_mean))
    expected = reference.attention(made, numerics, spec.block_n, packed=spec.packed).double()
    out = dispatch.run(operands_on(device, made, means), numerics, torch.bfloat16)
    torch.cuda.synchronize(device)
    return float((out.double().cpu() - expected).norm() / expected.norm())


@dataclass(frozen=True)
class MmaOperands:
    """Operands of block-scaled products `a b^T` in natural order, uint8, and values to round (csrc/README.md)."""

    a: torch.Tensor  # [PRODUCTS, 16, 32] two E2M1 codes a byte, the even k low
    a_scale: torch.Tensor  # [PRODUCTS, 16, 4] UE4M3
    b: torch.Tensor  # [PRODUCTS, 8, 32]
    b_scale: torch.Tensor  # [PRODUCTS, 8, 4]
    x: torch.Tensor  # fp32 [PRODUCTS, 32, 8]

    def exact(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(products, sums of the absolute terms), fp64 `[PRODUCTS, 16, 8]`."""
        a, b = _values(self.a, self.a_scale), _values(self.b, self.b_scale)
        return a @ b.mT, a.abs() @ b.abs().mT

    def packed(self) -> torch.Tensor:
        """x as E2M1 codes, the first of a row lowest, int32 `[PRODUCTS, 32]`."""
        codes = to_e2m1(self.x)
        pairs = codes[..., ::2] | codes[..., 1::2] << 4
        return pairs.contiguous().view(torch.int32)[..., 0]


def _values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
    return (from_e2m1(nibbles) * from_e4m3(scale).repeat_interleave(NVFP4_GROUP, -1)).double()


def mma_operands() -> MmaOperands:
    """Random elements; scales that differ from group to group, and on one side in turn every code that there is.

    x are random, multiples of 1/8 among them: those lie on every tie and every bound.
    """
    random = torch.Generator().manual_seed(0)

    def draw(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, (PRODUCTS, *shape), generator=random, dtype=torch.uint8)

    a_scale, b_scale = draw(0x30, 0x48, 16, 4), draw(0x30, 0x48, 8, 4)  # 0.5 to 3.75
    every = torch.arange(SCALES, dtype=torch.uint8)[:, None, None]
    a_scale[:SCALES], b_scale[SCALES : 2 * SCALES] = every, every
    x = 8 * torch.rand(PRODUCTS, 32, 8, generator=random)
    x[::2] = x[::2].mul(8).round() / 8
    return MmaOperands(draw(0, 256, 16, 32), a_scale, draw(0, 256, 8, 32), b_scale, x)


def mma_mismatch(device: torch.device) -> str | None:
    """How 4-bit products and roundings of `device` differ from exact ones, or None. Raises VCAttentionError."""
    operands = mma_operands()
    c = torch.full((PRODUCTS, 16, 8), torch.nan, device=device)
    packed = torch.full((PRODUCTS, 32), -1, dtype=torch.int32, device=device)
    given = {field.name: getattr(operands, field.name).to(device) for field in dataclasses.fields(operands)}
    stream = torch.cuda.current_stream(device).cuda_stream
    kernel = launch.kernel(MMA_UNIT, MMA_KERNEL, device.index)
    kernel.launch((PRODUCTS, 1, 1), (32, 1, 1), 0, stream, MMA.pack(**given, c=c, packed=packed))
    got, (expected, magnitude) = c.cpu().double(), operands.exact()
    wrong = ~((got - expected).abs() <= MMA_LIMIT * magnitude)  # NaN is wrong, too
    if wrong.any():
        p, row, column = wrong.nonzero()[0].tolist()
        return (
            f"its matrix instruction gives {int(wrong.sum())} of {wrong.numel()} values wrong, the first at product "
            f"{p}, row {row}, column {column}: {got[p, row, column]:g} instead of {expected[p, row, column]:g}"
        )
    wrong = packed.cpu() != operands.packed()
    if wrong.any():
        p, lane = wrong.nonzero()[0].tolist()
        codes = [f"{int(found[p, lane]) & 0xFFFFFFFF:08x}" for found in (packed, operands.packed())]
        return (
            f"its rounding to 4 bits gives {int(wrong.sum())} of {wrong.numel()} words wrong, the first of "
            f"{operands.x[p, lane].tolist()}: {codes[0]} instead of {codes[1]}"
        )
    return None
