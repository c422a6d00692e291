"""Random preparation calls: shapes, dtypes, memory layouts and contents, all from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

LENGTHS = (1, 2, 31, 127, 128, 129, 200, 256, 300, 517, 768, 769, 1000, 1537, 2049)
LAYOUTS = ("bhnd", "bnhd", "fused", "odd offset", "channels apart", "rows far apart", "expanded batch")
CONTENTS = ("clusters", "clusters", "clusters", "normal", "broken", "huge", "tiny", "zeros", "constant")


@dataclass(frozen=True)
class Case:
    seed: int
    batch: int
    heads: int
    seqlen_q: int
    seqlen_k: int
    head_dim: int
    dtype: torch.dtype
    layout: str
    content: str

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        shape = f"{self.batch}x{self.heads}x{self.seqlen_q}/{self.seqlen_k}x{self.head_dim}"
        return f"{self.seed}: {shape} {kind}, {self.layout}, {self.content}"

    def tensors(self, device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """q, k and v. Made on the CPU, so that every device sees the same values."""
        generator = torch.Generator().manual_seed(self.seed)
        shapes = [(self.batch, self.heads, n, self.head_dim) for n in (self.seqlen_q, self.seqlen_k, self.seqlen_k)]
        values = [fill(shape, self.content, generator) for shape in shapes]
        if self.layout == "fused" and self.seqlen_q == self.seqlen_k:
            return fused(values, self.dtype, device)
        return tuple(lay_out(x.to(self.dtype), self.layout, device) for x in values)


def draw(seed: int) -> Case:
    """The case of a seed."""
    pick = random.Random(seed)
    seqlen_k = pick.choice(LENGTHS) if pick.random() < 0.7 else pick.randint(1, 2500)
    seqlen_q = seqlen_k if pick.random() < 0.6 else pick.choice(LENGTHS)
    dtype = pick.choice((torch.bfloat16, torch.bfloat16, torch.float16, torch.float16, torch.float32))
    return Case(
        seed, pick.choice((1, 1, 2)), pick.choice((1, 2, 3)), seqlen_q, seqlen_k, pick.choice((64, 128)), dtype,
        pick.choice(LAYOUTS), pick.choice(CONTENTS),
    )  # fmt: skip


def fill(shape: tuple[int, ...], content: str, generator: torch.Generator) -> torch.Tensor:
    """fp32 values `shape` = [B, H, N, D]."""
    x = torch.randn(shape, generator=generator)
    if content in ("clusters", "broken"):
        centers = 2 * torch.randn(*shape[:2], 12, shape[3], generator=generator)
        which = torch.randint(12, shape[:3], generator=generator)
        x = 0.3 * x + centers.gather(2, which[..., None].expand(shape)) + 0.5
    if content == "broken":
        hit = torch.rand(shape, generator=generator)
        x[hit < 0.01], x[hit > 0.995], x[(hit > 0.99) & (hit <= 0.995)] = torch.nan, torch.inf, -torch.inf
    scale = {"huge": 1e30, "tiny": 1e-38, "zeros": 0.0}.get(content, 1.0)
    return torch.full(shape, 0.7) if content == "constant" else x * scale


def lay_out(x: torch.Tensor, layout: str, device: str) -> torch.Tensor:
    """x on `device`, as a view of the named memory layout."""
    batch, heads, seqlen, dim = x.shape
    if layout == "bnhd":
        return x.transpose(1, 2).contiguous().to(device).transpose(1, 2)
    if layout == "expanded batch":
        return x[:1].to(device).expand(x.shape)
    if layout == "channels apart":
        return x.mT.contiguous().to(device).mT
    if layout == "odd offset":
        room = torch.zeros(x.numel() + 3, dtype=x.dtype, device=device)
        room[3:] = x.reshape(-1).to(device)
        return room[3:].view(x.shape)
    if layout == "rows far apart":
        room = torch.zeros(batch, seqlen, heads * dim + 40, dtype=x.dtype, device=device)
        room[..., : heads * dim] = x.transpose(1, 2).flatten(2).to(device)
        return room[..., : heads * dim].unflatten(2, (heads, dim)).transpose(1, 2)
    return x.contiguous().to(device)


def fused(values: list[torch.Tensor], dtype: torch.dtype, device: str) -> tuple[torch.Tensor, ...]:
    """q, k, v as views of one buffer [B, N, 3 * H * D]."""
    heads, dim = values[0].shape[1], values[0].shape[3]
    room = torch.cat([x.transpose(1, 2).flatten(2) for x in values], -1).to(dtype).to(device)
    return tuple(part.unflatten(2, (heads, dim)).transpose(1, 2) for part in room.chunk(3, -1))
