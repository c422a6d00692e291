"""What grouping achieves on the values of one call, on a sample: cluster sizes, energy in block means."""

from __future__ import annotations

import torch

from .config import Grouping
from .reference.grouping import assign, to_steps

TOKENS, HEADS = 4096, 8
BLOCKS, BLOCK = 16, 128


def cluster_shares(v: torch.Tensor, grouping: Grouping) -> torch.Tensor:
    """Share of the tokens in the smallest, the median and the largest cluster, fp32 `[3]`, mean over batch and heads.

    v `[B, H, Nk, D]`. About `TOKENS` tokens of about `HEADS` heads are assigned to the centroids anew, evenly spaced in
    the order of the groups: a cluster's count is then off by one at most, where a random sample would scatter.
    """
    heads = slice(None, None, -(-v.shape[1] // HEADS))
    v, perm = v[:, heads], grouping.perm[:, heads]
    sample = _rows(v, perm[..., :: max(1, perm.shape[-1] // TOKENS)])
    labels = assign(to_steps(sample, grouping.step[:, heads]), grouping.centroids[:, heads])
    ones = torch.ones_like(labels, dtype=torch.float32)
    counts = torch.zeros_like(grouping.rank[:, heads], dtype=torch.float32).scatter_add_(-1, labels, ones)
    shares = counts.sort(-1).values.flatten(0, 1).mean(0) / labels.shape[-1]
    return torch.stack((shares[0], shares[len(shares) // 2], shares[-1]))


def block_energy(v: torch.Tensor, perm: torch.Tensor | None) -> torch.Tensor:
    """Share of the energy of v `[B, H, Nk, D]` that block means hold (Eq. 4): sum of rows x |mean|^2 over sum of |v|^2.

    perm int32 `[B, H, Nk]`, or None for the order of the sequence. About `BLOCKS` evenly spaced blocks of 128 are read.
    Returns an fp32 scalar.
    """
    length = v.shape[2]
    size = min(BLOCK, length)
    blocks = length // size
    starts = size * torch.arange(0, blocks, -(-blocks // BLOCKS), device=v.device)
    places = (starts[:, None] + torch.arange(size, device=v.device)).flatten()
    rows = v[:, :, places].float() if perm is None else _rows(v, perm[:, :, places])
    tiles = rows.unflatten(2, (-1, size))
    return tiles.mean(-2).square().sum() * size / tiles.square().sum()


def _rows(v: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows `[B, H, R]` of v `[B, H, N, D]`, fp32 `[B, H, R, D]`."""
    return v.gather(2, rows.long()[..., None].expand(-1, -1, -1, v.shape[-1])).float()
