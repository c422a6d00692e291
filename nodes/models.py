"""One row per known video model: what ComfyUI's model code does not say at the attention call itself.

Every model here calls attention with head size 128 and rotary embedding already applied. How many heads there are comes
with the call (by keyword from Wan, by position from HunyuanVideo).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ModelRow:
    """How to read one family of models.

    name: for the report. tokens: order of the tokens in a self-attention call, for the report.
    transformer: class name of the diffusion model, or of one of its base classes.
    cross_attention: text is attended in calls of its own, which only their length tells from self-attention.
    block_number: (block_type, block_index, ordinal, transformer) -> the number an artist gives that block, or None.
        `ordinal` counts the self-attention calls of the same length within the forward.
    """

    name: str
    tokens: str
    transformer: str
    cross_attention: bool
    block_number: Callable[[str | None, int | None, int, object], int | None]


def _in_order(block_type, block_index, ordinal, transformer):
    # ComfyUI 0.3.75 does not number Wan's blocks, but calls them in order (VACE's control blocks among them).
    return ordinal if block_index is None else block_index


def _hunyuan_block(block_type, block_index, ordinal, transformer):
    if block_type is None or block_index is None:
        return None  # the text refiner, which runs before the blocks
    return block_index + (len(transformer.double_blocks) if block_type == "single" else 0)


WAN = ModelRow("Wan", "video (t, h, w)", "WanModel", True, _in_order)
HUNYUAN = ModelRow("HunyuanVideo", "video and text joined", "HunyuanVideo", False, _hunyuan_block)
GENERIC = ModelRow("other model", "as called", "", True, _in_order)

MODELS = (WAN, HUNYUAN)


def row_for(transformer: object) -> ModelRow:
    """The row of a diffusion model, compiled by torch or not; GENERIC when no row knows it."""
    original = getattr(transformer, "_orig_mod", transformer)
    names = {cls.__name__ for cls in type(original).__mro__}
    return next((row for row in MODELS if row.transformer in names), GENERIC)
