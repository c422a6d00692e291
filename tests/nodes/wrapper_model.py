"""A stand-in for ComfyUI-WanVideoWrapper: its module of models and its sampler, restated from what they do.

Self-attention gets the sampler's options, cross-attention does not; tensors are [B, N, H, D]; the options of the model
are copied deeply once per sampling run; a step calls the model for cond and, with guidance, for uncond.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

TOKENS = 8  # of a latent frame
CALLS: list[tuple] = []  # shapes of q of the calls that reached the wrapper's own attention


def attention(q, k, v, k_lens=None, attention_mode="sdpa", heads=None, frame_tokens=None, transformer_options={}):  # noqa: B006
    CALLS.append(tuple(q.shape))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).contiguous()


class WanSelfAttention(nn.Module):
    def __init__(self, heads: int, mode: str) -> None:
        super().__init__()
        self.num_heads, self.attention_mode = heads, mode

    def forward(self, q, k, v, seq_lens, transformer_options={}, attention_mode_override=None, frame_tokens=1536):  # noqa: B006
        out = attention(
            q, k, v, k_lens=seq_lens, attention_mode=attention_mode_override or self.attention_mode,
            heads=self.num_heads, frame_tokens=frame_tokens, transformer_options=transformer_options,
        )  # fmt: skip
        return out.flatten(2)


class WanT2VCrossAttention(WanSelfAttention):
    def forward(self, x, text):
        q, k = (y.unflatten(-1, (self.num_heads, -1)) for y in (x, text))
        return attention(q, k, k, attention_mode=self.attention_mode, heads=self.num_heads).flatten(2)


class WanAttentionBlock(nn.Module):
    def __init__(self, heads: int, mode: str) -> None:
        super().__init__()
        self.self_attn, self.cross_attn = WanSelfAttention(heads, mode), WanT2VCrossAttention(heads, mode)

    def forward(self, x, text, cond: int, transformer_options):
        q, k, v = (y.unflatten(-1, (self.self_attn.num_heads, -1)) for y in (x, x.flip(-1), x + 1))
        lengths = torch.tensor([x.shape[1]])

        def attend(queries: slice, keys: slice):
            return self.self_attn(
                q[:, queries].contiguous(), k[:, keys], v[:, keys], lengths, transformer_options=transformer_options
            )

        # Frames that are given see one another alone, the others see all: a picture's frame, or a reference and the end
        # of another clip. Where frames must not repeat the reference, their queries do without its keys.
        ref, given = TOKENS, cond * TOKENS
        every = slice(None)
        if cond == 0:
            parts = [attend(every, every)]
        elif cond == 1:
            parts = [attend(slice(0, given), slice(0, given)), attend(slice(given, None), every)]
        else:
            parts = [attend(slice(0, ref), slice(0, ref)), attend(slice(ref, given), slice(ref, given))]
            parts += [attend(slice(given, given + ref), every)]
            parts += [attend(slice(given + ref, None), slice(ref, None))]
        y = torch.cat(parts, dim=1)
        return x + y + self.cross_attn(x, text)


class WanModel(nn.Module):
    def __init__(self, blocks=2, heads=2, mode="sdpa") -> None:
        super().__init__()
        self.dim = 4096  # what marks LongCat
        self.blocks = nn.ModuleList(WanAttentionBlock(heads, mode) for _ in range(blocks))

    def forward(
        self, x, t, context, is_uncond=False, current_step_percentage=0.0, current_step=0, last_step=0,
        longcat_num_cond_latents=0, transformer_options={},  # noqa: B006
    ):  # fmt: skip
        h = x[0][None]
        for block in self.blocks:
            h = block(h, context[0][None], longcat_num_cond_latents, transformer_options) / 4
        return [h[0]]


class Patcher:
    """The ModelPatcher around such a model. `version` as in fakes.py."""

    def __init__(self, network, version: str = "0.38") -> None:
        self.model = type("WanVideoModel", (), {"diffusion_model": network})()
        self.version = version
        self.model_options = {"transformer_options": {"merge_loras": False}}

    def clone(self) -> Patcher:
        other = Patcher(self.model.diffusion_model, self.version)
        options = self.model_options["transformer_options"]
        copied = copy.deepcopy(options) if self.version == "0.3.75" else dict(options)
        other.model_options = {"transformer_options": copied}
        return other


def sample(patcher, *, steps=8, frames=4, cfg=1.0, cond=0, windows=1, fail_at=None) -> torch.Tensor:
    """One run of WanVideoSampler. windows: context windows, each a model call; fail_at: step of an interruption."""
    transformer = patcher.model.diffusion_model
    transformer_options = copy.deepcopy(patcher.model_options["transformer_options"])
    generator = torch.Generator().manual_seed(1)
    x, text = (torch.randn(n, 256, generator=generator) for n in (frames * TOKENS, 6))
    for index in range(steps):
        if index == fail_at:
            raise KeyboardInterrupt
        for _ in range(windows):
            for uncond in [False, True][: 1 if cfg == 1.0 else 2]:
                x = transformer(
                    x=[x], t=torch.tensor([1000.0 * (steps - index) / steps]), context=[text], is_uncond=uncond,
                    current_step=index, current_step_percentage=index / steps, last_step=index == steps - 1,
                    longcat_num_cond_latents=cond, transformer_options=transformer_options,
                )[0]  # fmt: skip
    return x
