"""Errors against fp64 attention, on rows that are spread over the sequence and end with the last one."""

from __future__ import annotations

import math

import torch

ROWS = 256
CHUNK = 16_384


def sample_rows(seqlen: int) -> torch.Tensor:
    return torch.linspace(0, seqlen - 1, min(ROWS, seqlen), device="cuda").long()


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """fp64 attention of q `[H, R, D]` over all of k, v `[H, N, D]`, keys in chunks."""
    q = q.double() / math.sqrt(q.shape[-1])
    scores = torch.cat([q @ part.double().mT for part in k.split(CHUNK, 1)], -1).softmax(-1)
    pairs = zip(scores.split(CHUNK, -1), v.split(CHUNK, 1), strict=True)
    return sum(weights @ part.double() for weights, part in pairs)


def errors(out: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """{rel_l2, cosine} of out against expected, both `[H, R, D]`."""
    out, expected = out.double().flatten(), expected.flatten()
    return {
        "rel_l2": float((out - expected).norm() / expected.norm()),
        "cosine": float(torch.nn.functional.cosine_similarity(out, expected, dim=0)),
    }


class Judge:
    """Compares outputs `[1, H, N, D]` of the same q, k, v with fp64 on the first and the last head."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        self.heads = sorted({0, q.shape[1] - 1})
        self.rows = sample_rows(q.shape[2])
        self.expected = exact(q[0, self.heads][:, self.rows], k[0, self.heads], v[0, self.heads])

    def __call__(self, out: torch.Tensor) -> dict[str, float]:
        return errors(out[0, self.heads][:, self.rows], self.expected)
