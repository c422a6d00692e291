"""Wan's video transformer in plain torch, for training where there is no ComfyUI: the keys and the arithmetic are those
of ComfyUI's WanModel, and a test compares the two outputs.

x `[B, 16, T, H, W]` (patches 1x2x2), t `[B]` = 1000 sigma, context `[B, L, 4096]`; the result is the flow's velocity
`[B, 16, T, H, W]`, noise minus clip.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

FILE = "tiny_wan.safetensors"
HEAD_DIM = 128  # ComfyUI's loader reckons heads = dim / 128
TEXT_WIDTH = 4096  # and expects umt5-xxl's width
FREQUENCIES = 256
EPSILON = 1e-6
PATCH = 2
DIM, FFN_DIM, LAYERS = 256, 640, 6  # the trained model

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]  # q, k, v `[B, H, N, D]`


def exact_attention(layer: int) -> Attention:
    """The attention of every layer."""
    return functional.scaled_dot_product_attention


class Norm(nn.RMSNorm):
    """RMSNorm in the type of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


class Projections(nn.Module):
    """q, k, v, o of one attention, with Wan's norm over all heads of q and k."""

    def __init__(self, dim: int):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.norm_q, self.norm_k = (Norm(dim, eps=EPSILON) for _ in range(2))

    def forward(self, x: torch.Tensor, context: torch.Tensor, attention: Attention, rotation=None) -> torch.Tensor:
        q, k = self.norm_q(self.q(x)), self.norm_k(self.k(context))
        q, k, v = (part.unflatten(-1, (-1, HEAD_DIM)).transpose(1, 2) for part in (q, k, self.v(context)))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        return self.o(attention(q.to(v.dtype), k.to(v.dtype), v).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Self-attention over the clip, attention to the text, a perceptron; the noise level shifts, scales and gates."""

    def __init__(self, dim: int, ffn_dim: int):
        super().__init__()
        self.self_attn, self.cross_attn = Projections(dim), Projections(dim)
        self.norm1, self.norm2 = (nn.LayerNorm(dim, EPSILON, elementwise_affine=False) for _ in range(2))
        self.norm3 = nn.LayerNorm(dim, EPSILON)
        self.ffn = nn.Sequential(nn.Linear(dim, ffn_dim), nn.GELU("tanh"), nn.Linear(ffn_dim, dim))
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(self, x, level, context, rotation, attention: Attention) -> torch.Tensor:
        shift, scale, gate, shift2, scale2, gate2 = (self.modulation + level).chunk(6, 1)
        y = self.norm1(x) * (1 + scale) + shift
        x = x + gate * self.self_attn(y, y, attention, rotation)
        x = x + self.cross_attn(self.norm3(x), context, functional.scaled_dot_product_attention)
        return x + gate2 * self.ffn(self.norm2(x) * (1 + scale2) + shift2)


class Head(nn.Module):
    """Tokens to patches."""

    def __init__(self, dim: int, channels: int):
        super().__init__()
        self.norm = nn.LayerNorm(dim, EPSILON, elementwise_affine=False)
        self.head = nn.Linear(dim, channels * PATCH * PATCH)
        self.modulation = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def forward(self, x: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        shift, scale = (self.modulation + level[:, None]).chunk(2, 1)
        return self.head(self.norm(x) * (1 + scale) + shift)


class TinyWan(nn.Module):
    """`attention(layer)` gives the self-attention of a layer, which is how other arithmetic gets in."""

    def __init__(self, dim: int = DIM, ffn_dim: int = FFN_DIM, layers: int = LAYERS, channels: int = 16):
        super().__init__()
        self.patch_embedding = nn.Conv3d(channels, dim, (1, PATCH, PATCH), (1, PATCH, PATCH))
        self.text_embedding = nn.Sequential(nn.Linear(TEXT_WIDTH, dim), nn.GELU("tanh"), nn.Linear(dim, dim))
        self.time_embedding = nn.Sequential(nn.Linear(FREQUENCIES, dim), nn.SiLU(), nn.Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), nn.Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(dim, ffn_dim) for _ in range(layers))
        self.head = Head(dim, channels)
        nn.init.zeros_(self.head.head.weight)
        nn.init.zeros_(self.head.head.bias)

    def forward(self, x, t, context, attention: Callable[[int], Attention] = exact_attention) -> torch.Tensor:
        tokens = self.patch_embedding(x)
        grid = tokens.shape[2:]
        tokens = tokens.flatten(2).transpose(1, 2)
        level = self.time_embedding(_sinusoids(t).to(x.dtype))
        levels = self.time_projection(level).unflatten(1, (6, -1))
        context, rotation = self.text_embedding(context), rotations(tuple(grid), x.device)
        for layer, block in enumerate(self.blocks):
            tokens = block(tokens, levels, context, rotation, attention(layer))
        patches = self.head(tokens, level).unflatten(1, grid).unflatten(-1, (1, PATCH, PATCH, -1))
        return torch.einsum("bfhwpqrc->bcfphqwr", patches).reshape(x.shape)


def _sinusoids(t: torch.Tensor) -> torch.Tensor:
    half = FREQUENCIES // 2
    rates = torch.pow(10000, -torch.arange(half, device=t.device).float() / half)
    angles = t.float()[:, None] * rates
    return torch.cat([angles.cos(), angles.sin()], 1)


def rotations(grid: tuple[int, ...], device) -> torch.Tensor:
    """Every token's rotations, complex64 `[N, D/2]`: the head is split between the axes t, y and x."""
    side = 2 * (HEAD_DIM // 6)
    places = torch.cartesian_prod(*(torch.arange(n, device=device, dtype=torch.float64) for n in grid))
    angles = []
    for axis, width in enumerate((HEAD_DIM - 2 * side, side, side)):
        rates = 10000.0 ** -(torch.arange(0, width, 2, device=device, dtype=torch.float64) / width)
        angles.append(places[:, axis, None] * rates)
    angles = torch.cat(angles, 1)
    return torch.complex(angles.cos().float(), angles.sin().float())


def rotate(x: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rotates neighbouring channels of `[B, H, N, D]` in fp32."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotation).flatten(-2).to(x.dtype)


def initialise(model: TinyWan) -> TinyWan:
    """Starting weights: small projections, and gates that open slowly."""
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 and not name.startswith("head."):
            nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[1]))
        elif name.endswith("bias"):
            nn.init.zeros_(parameter)
    nn.init.normal_(model.time_projection[1].weight, std=0.02)
    return model


def save(state: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
    """The file that ComfyUI's UNETLoader takes, bf16."""
    save_file({key: value.bfloat16().contiguous().cpu() for key, value in state.items()}, str(path), metadata)


def load(path: Path, device: torch.device | str = "cpu") -> TinyWan:
    """The trained model, fp32, as ComfyUI computes on a CPU."""
    state = {key: value.float() for key, value in load_file(str(path)).items()}
    layers = 1 + max(int(key.split(".")[1]) for key in state if key.startswith("blocks."))
    model = TinyWan(state["head.modulation"].shape[-1], state["blocks.0.ffn.0.weight"].shape[0], layers)
    model.load_state_dict(state)
    return model.requires_grad_(False).eval().to(device)
