"""A stand-in for ComfyUI 0.38's MiniMax H3: how its blocks call attention, restated from what they do.

One sequence of text, references, sound and video; q, k and v are views of one fused buffer; the refiner runs before the
blocks over the text alone, while the options still name the last block of the step before; cond and uncond are calls of
their own, because a batch is always 1.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch

from tests.nodes import fakes

HEADS, DIM = 2, 128
TEXT, REFERENCE, SOUND, VIDEO = 6, 4, 8, 32
TOKENS = TEXT + REFERENCE + SOUND + VIDEO


class MiniMaxH3Model:
    def __init__(self, attention, blocks=50, boxed=True):
        self.attention, self.boxed = attention, boxed
        self.blocks = [None] * blocks
        self.left_over: dict = {}  # what a forward leaves in the options of the sampler's next model call
        self.options_seen: list[dict] = []

    def __call__(self, x, sigma, options):
        options = {**options, **self.left_over}
        generator = torch.Generator().manual_seed(3)
        hidden = torch.randn(TOKENS, HEADS * DIM, generator=generator)
        segments, start = [], 0
        for kind, count in (("text", TEXT), ("cond", REFERENCE), ("audio", SOUND), ("video", VIDEO)):
            segments.append((start, start + count, kind))
            start += count
        layout = SimpleNamespace(seq_len=TOKENS, segments=segments)
        options["minimax_h3_layout"] = layout
        for _ in range(2):
            hidden[:TEXT] += self.attend(hidden[:TEXT], options)
        for block in range(len(self.blocks)):
            options["block_index"] = block
            hidden = hidden + self.attend(hidden, options) / 8
        self.left_over = {"block_index": options["block_index"], "minimax_h3_layout": layout}
        return hidden

    def attend(self, hidden, options):
        fused = torch.cat([hidden, hidden.flip(-1), hidden + 1], dim=-1)
        q, k, v = (
            part.view(len(hidden), HEADS, DIM).transpose(0, 1).unsqueeze(0) for part in fused.split(HEADS * DIM, -1)
        )
        if self.boxed:
            q, k, v = map(fakes.Box, (q, k, v))
        return self.attention(q, k, v, HEADS, mask=None, skip_reshape=True, transformer_options=options)[0]
