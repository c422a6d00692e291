"""A toy video model that calls attention as ComfyUI models do, and the widgets it is patched with."""

import torch
from vc_pack.nodes.settings import settings

from tests.nodes import fakes

SIGMAS = [1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]


def make_settings(**changes):
    widgets = dict(
        bits="auto", grouping_window=0.25, clusters=0, refresh_interval=4, probability="auto", smoothing="balanced",
        min_tokens=0, blocks_left_alone="", backend="reference", error_budget="off",
    )  # fmt: skip
    return settings(**{**widgets, **changes})


class WanModel:
    """Two blocks, each with one self-attention and one cross-attention call, as ComfyUI 0.3.75 makes them."""

    def __init__(self, attention, tokens=32, text=8, blocks=2, numbered=False, boxed=False):
        self.attention, self.tokens, self.text, self.blocks = attention, tokens, text, blocks
        self.numbered, self.boxed = numbered, boxed

    def __call__(self, x, sigma, options):
        batch = len(options.get("uuids", ["cond"]))
        generator = torch.Generator().manual_seed(0)
        out = None
        for block in range(self.blocks):
            if self.numbered:
                options = {**options, "block_type": "double", "block_index": block}
            for keys in (self.tokens, self.text):
                q, k, v = (torch.randn(batch, n, 256, generator=generator) for n in (self.tokens, keys, keys))
                if self.boxed:
                    q, k, v = map(fakes.Box, (q, k, v))
                out = self.attention(q, k, v, heads=2, transformer_options=options)
        return out
