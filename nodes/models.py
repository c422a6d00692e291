"""One row per known video model: what ComfyUI's model code does not say at the attention call itself.

Every model here calls attention with head size 128 and rotary embedding already applied. How many heads there are comes
with the call. No row keeps tokens out of grouping: text, sound and reference tokens that are joined with the video's
fall into clusters of their own (docs/models.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

NO_ROW = "(no row in the model table)"


@dataclass(frozen=True)
class ModelRow:
    """How to read one family of models.

    name: for the report. tokens: order of the tokens in a self-attention call, for the report.
    transformer: class name of the diffusion model, or of one of its base classes.
    block_number: (block_type, block_index, ordinal, transformer) -> the number an artist gives that block, or None.
        `ordinal` counts the self-attention calls of the same length within the forward.
    text_calls: what a call of as many tokens as the prompt has is. Only the length tells it from self-attention.
    fewer_queries: self-attention may have fewer queries than keys; text never arrives in a call of its own.
    sensitive: blocks, counted from the end where negative, that keep full precision unless the artist names others.
    """

    name: str
    tokens: str
    transformer: str
    block_number: Callable[[str | None, int | None, int, object], int | None]
    text_calls: str = "cross-attention"
    fewer_queries: bool = False
    sensitive: tuple[int, ...] = ()

    def sensitive_blocks(self, transformer: object) -> frozenset[int]:
        """Numbers of the sensitive blocks of this model."""
        return frozenset(block % len(transformer.blocks) for block in self.sensitive)


def _in_order(block_type, block_index, ordinal, transformer):
    # ComfyUI 0.3.75 does not number Wan's blocks, but calls them in order (VACE's control blocks among them).
    return ordinal if block_index is None else block_index


def _hunyuan_block(block_type, block_index, ordinal, transformer):
    if block_type is None or block_index is None:
        return None  # not in a block
    return block_index + (len(transformer.double_blocks) if block_type == "single" else 0)


# 1.3B, 5B and 14B, Wan2.1 and 2.2, text and image to video, Fun, Camera, VACE, Animate, S2V and HuMo. Control frames,
# references and motion frames lie before or behind the video's tokens.
WAN = ModelRow("Wan", "video (t, h, w)", "WanModel", _in_order)
# ComfyUI 0.3.75 has the video first, newer versions the text. The super-resolution stage is the same model.
HUNYUAN = ModelRow("HunyuanVideo", "video and text joined", "HunyuanVideo", _hunyuan_block, text_calls="text refiner")
# Rounding queries and keys costs 57% error in the last block and 3% in the others. ComfyUI's number of the block is
# left over from the step before while the refiner runs, which the refiner's length tells.
H3 = ModelRow(
    "MiniMax H3", "text, references, sound, video", "MiniMaxH3Model", _in_order, text_calls="text refiner",
    sensitive=(-1,),
)  # fmt: skip
# Wan's models and LongCat in ComfyUI-WanVideoWrapper, which hands over self-attention alone. LongCat's noisy frames are
# fewer than the frames they attend to when a clip continues a picture or another clip.
WRAPPER = ModelRow("WanVideoWrapper", "video (t, h, w)", "", _in_order, fewer_queries=True)
GENERIC = ModelRow("other model", "as called", "", _in_order)

MODELS = (WAN, HUNYUAN, H3)


def row_for(transformer: object) -> ModelRow:
    """The row of a diffusion model, compiled by torch or not; GENERIC, named after its class, when no row knows it."""
    original = getattr(transformer, "_orig_mod", transformer)
    names = [cls.__name__ for cls in type(original).__mro__]
    found = next((row for row in MODELS if row.transformer in names), None)
    return found or replace(GENERIC, name=f"{names[0]} {NO_ROW}")
