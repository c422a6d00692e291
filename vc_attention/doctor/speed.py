"""How fast and how exact one call is beside PyTorch's attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..attention import attend
from ..config import Action, Numerics
from ..stopwatch import Stopwatch

HEADS, HEAD_DIM = 24, 128
TOKENS = (16384, 32768)
ROUNDS = 4
ROWS = 16  # query rows of every head that are compared with exact attention


@dataclass(frozen=True)
class Speed:
    """Milliseconds of one call on kept groups and of PyTorch's, and their relative errors on the sampled rows."""

    ours_ms: float
    stock_ms: float
    ours_error: float
    stock_error: float


def measure(device: torch.device, numerics: Numerics, tokens: int, backend: str = "cuda", heads: int = HEADS) -> Speed:
    """Both ways on the same bf16 inputs, in turns. Raises VCAttentionError and torch.cuda.OutOfMemoryError."""
    q, k, v = inputs(device, heads, tokens)
    _, grouping = attend(q, k, v, numerics=numerics, action=Action.GROUP, backend=backend)

    def ours() -> torch.Tensor:
        return attend(q, k, v, numerics=numerics, action=Action.REUSE, grouping=grouping, backend=backend)[0]

    def stock() -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v)

    errors = [error(call(), q, k, v) for call in (ours, stock)]  # and both are warm
    watch = Stopwatch(device)
    for _ in range(ROUNDS):
        for name, call in (("ours", ours), ("stock", stock)):
            call()
            watch.lap(name)
    total = watch.milliseconds()
    return Speed(total["ours"] / ROUNDS, total["stock"] / ROUNDS, *errors)


def inputs(device: torch.device, heads: int, tokens: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v bf16 `[1, heads, tokens, 128]`: tokens of 64 kinds in mixed order, which attend mostly to their own."""
    random = torch.Generator(device).manual_seed(0)
    kind = torch.randint(64, (tokens,), generator=random, device=device)
    for_scores, for_values = torch.randn(2, heads, 64, HEAD_DIM, generator=random, device=device)

    def near(centers: torch.Tensor, spread: float) -> torch.Tensor:
        noise = torch.randn(heads, tokens, HEAD_DIM, generator=random, device=device)
        return noise.add_(centers[:, kind], alpha=spread).bfloat16()[None]

    return near(for_scores, 0.6), near(for_scores, 0.6), near(for_values, 3.0)


def error(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> float:
    """||out - exact|| / ||exact|| over ROWS rows of every head, exact in fp64."""
    rows = torch.linspace(0, q.shape[2] - 1, ROWS, device=q.device).long()
    wrong = total = 0.0
    for head in range(q.shape[1]):
        few, keys, values = (x[:, head].double() for x in (q[:, :, rows], k, v))
        exact = scaled_dot_product_attention(few, keys, values)
        wrong += float((out[:, head, rows].double() - exact).square().sum())
        total += float(exact.square().sum())
    return (wrong / total) ** 0.5
