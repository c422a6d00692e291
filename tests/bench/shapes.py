"""What is measured: the self-attention calls of video models, two short ones, and the calibrated generator.

Batch 1, head dim 128.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tests import generator

CLASSES = 256


@dataclass(frozen=True)
class Shape:
    name: str
    heads: int
    seqlen: int
    head_dim: int = 128
    seeds: tuple[int, ...] = ()  # of tests/generator.py, one a head; none: classes and noise
    dtype: torch.dtype = torch.bfloat16

    @property
    def flops(self) -> float:
        """Floating-point operations of one attention call, both products."""
        return 4.0 * self.heads * self.seqlen**2 * self.head_dim

    @property
    def bytes(self) -> int:
        """Bytes of one of q, k, v."""
        return 2 * self.heads * self.seqlen * self.head_dim

    def __str__(self) -> str:
        return f"{self.name} (H={self.heads}, N={self.seqlen:,})"


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("Wan2.2", 40, 75_600),
        Shape("LongCat", 32, 37_440),
        Shape("HunyuanVideo-1.5", 16, 111_600),
        Shape("MiniMax-H3", 56, 73_500),
        Shape("16k", 16, 16_384),
        Shape("4k", 16, 4_096),
        # For the errors: the heads of tests/reference/fidelity.py. fp16 shows the arithmetic without bf16's rounding of
        # the output, which is 0.17% alone.
        Shape("generator", 3, 16_384, seeds=(10, 11, 12)),
        Shape("generator-fp16", 3, 16_384, seeds=(10, 11, 12), dtype=torch.float16),
    )
}


def tensors(shape: Shape, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """q, k, v `[1, H, N, D]` as views of [1, N, H * D], the layout most models hand over.

    Values fall into classes, as video tokens do: plain noise would have nothing to group. Keys carry a common offset.
    """
    if shape.seeds:
        made = generator.qkv((16, 32, 32), shape.seeds)
        return tuple(x.to("cuda", shape.dtype).transpose(1, 2).contiguous().transpose(1, 2) for x in made)
    random = torch.Generator("cuda").manual_seed(seed)
    size = (1, shape.seqlen, shape.heads, shape.head_dim)
    q, k, v = (torch.empty(size, dtype=shape.dtype, device="cuda") for _ in range(3))
    for head in range(shape.heads):
        centers = torch.randn(CLASSES, shape.head_dim, generator=random, device="cuda")
        classes = torch.randint(CLASSES, (shape.seqlen,), generator=random, device="cuda")
        noise = [torch.randn(shape.seqlen, shape.head_dim, generator=random, device="cuda") for _ in range(3)]
        q[0, :, head] = 0.7 * noise[0] + 0.5 * centers[classes]
        k[0, :, head] = noise[1] + 0.5 * centers[classes] + 0.5
        v[0, :, head] = 0.7 * noise[2] + centers[classes]
    return tuple(x.transpose(1, 2) for x in (q, k, v))
