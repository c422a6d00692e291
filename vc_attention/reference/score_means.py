"""NVFP4 Q and K without their means, which get products of their own (`Numerics.smooth_q` "head").

With b the mean of a head's queries and m that of a tile's keys

    q . k = (q - b) . (k - m) + (q - b) . m + b . k

The first product is left to four bits alone. The second is one number a query and tile: it takes q - b and m each as
the sum of two NVFP4 vectors, the second what the first lost. The third is one number a key, in fp32.
"""

from __future__ import annotations

import torch

from ..config import Numerics
from .arithmetic import block_sizes, blocks, tree_sum
from .formats import encode_nvfp4, encode_nvfp4_twice, qmax, reciprocal_scale

BLOCK = 128


def quantize_without_means(
    q: torch.Tensor, k: torch.Tensor, q_mean: torch.Tensor, numerics: Numerics
) -> dict[str, torch.Tensor]:
    """The fields of `Operands` that speak of Q and K.

    q `[B, H, Nq, D]` less its mean, k `[B, H, Nk, D]` in the order of the operands, q_mean `[B, H, 1, D]`; all rotated.
    One fp32 scale serves all queries of a head and one the keys of a tile; E4M3 scales have the range for a mean beside
    much smaller residuals.
    """
    length, top = k.shape[-2], qmax("nvfp4", numerics.four_over_six)
    tiles, sizes = blocks(k, BLOCK), block_sizes(length, BLOCK, k.device)[:, None]
    k_mean = tree_sum(tiles, -2) / sizes
    exists = torch.arange(BLOCK, device=k.device)[:, None] < sizes[..., None]
    residual = torch.where(exists, tiles - k_mean[..., None, :], 0.0)
    q_amax = torch.maximum(q.abs().amax((-1, -2)), q_mean.abs().amax((-1, -2)))
    k_amax = torch.maximum(residual.abs().amax((-1, -2)), k_mean.abs().amax(-1))
    q_inverse, q_scale = reciprocal_scale(q_amax, top)
    k_inverse, k_scale = reciprocal_scale(k_amax, top)

    q_names = ("q_codes", "q_micro", "q_rest_codes", "q_rest_micro")
    k_codes, k_micro = encode_nvfp4(residual * k_inverse[..., None, None], numerics.four_over_six)
    mean = encode_nvfp4_twice(k_mean * k_inverse[..., None], numerics.four_over_six)
    bias = tree_sum(tiles * q_mean[..., None, :], -1) * k_inverse[..., None] * q_inverse[..., None, None]
    return dict(
        zip(q_names, encode_nvfp4_twice(q * q_inverse[..., None, None], numerics.four_over_six), strict=True),
        q_scale=q_scale[..., None].expand(q.shape[:-1]),
        k_codes=k_codes.flatten(-3, -2)[..., :length, :],
        k_micro=k_micro.flatten(-3, -2)[..., :length, :],
        k_scale=k_scale[..., None],
        k_mean_codes=torch.stack(mean[::2], -2),
        k_mean_micro=torch.stack(mean[1::2], -2),
        k_bias=bias.flatten(-2)[..., :length],
    )
