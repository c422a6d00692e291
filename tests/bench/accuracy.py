"""Errors against fp64 attention, on random rows and the last one."""

from __future__ import annotations

import math

import torch

from vc_attention import reference
from vc_attention.config import PROFILES, Action

ROWS = 1024
CHUNK = 16_384


def sample_rows(seqlen: int) -> torch.Tensor:
    """Those of tests/reference/fidelity.py, but for the last, which is the last of the sequence."""
    rows = torch.randperm(seqlen, generator=torch.Generator().manual_seed(0))[:ROWS]
    rows[-1] = seqlen - 1
    return rows.cuda()


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """fp64 attention of q `[H, R, D]` over all of k, v `[H, N, D]`, keys in chunks."""
    q = q.double() / math.sqrt(q.shape[-1])
    scores = torch.cat([q @ part.double().mT for part in k.split(CHUNK, 1)], -1).softmax(-1)
    pairs = zip(scores.split(CHUNK, -1), v.split(CHUNK, 1), strict=True)
    return sum(weights @ part.double() for weights, part in pairs)


def errors(out: torch.Tensor, expected: torch.Tensor) -> dict[str, float]:
    """{rel_l2, cosine} of out against expected, both `[H, R, D]`: means over the heads."""
    out, expected = out.double().flatten(1), expected.flatten(1)
    return {
        "rel_l2": float(((out - expected).norm(dim=1) / expected.norm(dim=1)).mean()),
        "cosine": float(torch.nn.functional.cosine_similarity(out, expected, dim=1).mean()),
    }


class Judge:
    """Compares outputs `[1, H, N, D]` of the same q, k, v with fp64: on the first and last head, or on all of few."""

    def __init__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
        heads = q.shape[1]
        self.heads = list(range(heads)) if heads <= 3 else [0, heads - 1]
        self.rows = sample_rows(q.shape[2])
        self.q, self.k, self.v = (x[:, self.heads] for x in (q, k, v))
        self.expected = exact(self.q[0, :, self.rows], self.k[0], self.v[0])

    def __call__(self, out: torch.Tensor) -> dict[str, float]:
        return errors(out[0, self.heads][:, self.rows], self.expected)

    def by_reference(self, profile: str) -> dict[str, float]:
        """The errors of a profile that no kernel here computes, as vc_attention/reference does its arithmetic."""
        numerics = PROFILES[profile]
        grouping = reference.group(self.v, numerics, Action.GROUP)
        perm = None if grouping is None else grouping.perm
        operands = reference.prepare(self.q, self.k, self.v, numerics, perm, True)
        return errors(reference.attention(operands, numerics, rows=self.rows)[0], self.expected)
