"""The VC-Attention Compare node."""

from __future__ import annotations

import comfy.model_management
import torch
from comfy_api.latest import io, ui
from PIL import Image, ImageDraw

from . import drawing, metrics
from .compat import accepted

CELL = 384  # pixels: width of a frame in the node's picture
GAP, HEAD = 10, 34


class VCAttentionCompare(io.ComfyNode):
    """IMAGE, IMAGE -> IMAGE, IMAGE, STRING: how far two clips of one seed lie apart, and where."""

    @classmethod
    def define_schema(cls):
        return accepted(
            io.Schema,
            node_id="VCAttentionCompare",
            display_name="VC-Attention Compare",
            category="image/analyze",
            search_aliases=["vc attention", "psnr", "ssim", "lpips", "difference", "a/b", "compare video"],
            description=(
                "Measures how alike two clips are (PSNR, SSIM, LPIPS) and shows where they differ. Feed it the same "
                "seed without and with VC-Attention Patch."
            ),
            inputs=[
                io.Image.Input("stock", tooltip="The clip made without the patch, or any clip to compare with."),
                io.Image.Input("patched", tooltip="The clip made with the patch: as many frames of the same size."),
                accepted(
                    io.Float.Input,
                    id="brightest_at",
                    display_name="brightest at",
                    default=0.0,
                    min=0.0,
                    max=1.0,
                    step=0.01,
                    tooltip="The difference, of 1, that the heat map shows brightest. 0 takes the clip's largest; fix "
                    "it to compare the maps of several clips.",
                ),
            ],
            outputs=[
                io.Image.Output(id="side_by_side", display_name="side by side", tooltip="Stock left, patched right."),
                io.Image.Output(id="difference", display_name="difference", tooltip="The heat map of every frame."),
                io.String.Output(id="text", display_name="text", tooltip="The numbers in words."),
            ],
            hidden=[io.Hidden.prompt, io.Hidden.extra_pnginfo],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, stock, patched, brightest_at):
        metrics.check(stock, patched)
        found = metrics.compare(stock, patched, comfy.model_management.get_torch_device())
        brightest = brightest_at or max(found.largest)
        side_by_side, heat = pictures(stock, patched, brightest)
        text = found.text() if found.identical else f"{found.text()}\nheat map: brightest at {brightest:.3f}"
        shown = overview(side_by_side, heat, found.worst_frame, brightest)
        preview = ui.PreviewImage(drawing.to_image(shown), cls=cls).as_dict()
        return io.NodeOutput(side_by_side, heat, text, ui={**preview, "text": (text,)})


def pictures(a: torch.Tensor, b: torch.Tensor, brightest: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(side by side [F, H, 2W, 3], heat map [F, H, W, 3]), fp32 in 0..1, of two clips that `metrics.check` accepts.

    The heat map shows the largest difference among a pixel's channels; `brightest` gets the brightest colour.
    """
    frames, height, width = a.shape[:3]
    side_by_side = torch.empty(frames, height, 2 * width, 3)
    heat = torch.empty(frames, height, width, 3)
    for index, (one, other) in enumerate(zip(a, b, strict=True)):
        one, other = metrics.pixels(one), metrics.pixels(other)
        side_by_side[index, :, :width], side_by_side[index, :, width:] = one, other
        heat[index] = drawing.ramp((one - other).abs().amax(-1) / (brightest or 1.0))
    return side_by_side, heat


def overview(side_by_side: torch.Tensor, heat: torch.Tensor, worst: int, brightest: float) -> Image.Image:
    """The node's picture: first frame, worst frame and last; stock, patched and heat map side by side."""
    frames, height, width = heat.shape[:3]
    chosen = sorted({0, worst, frames - 1})
    cell = (CELL, max(1, round(CELL * height / width)))
    row = cell[1] + GAP
    picture = Image.new("RGB", (3 * CELL + 4 * GAP, HEAD + len(chosen) * row + HEAD), drawing.BACKGROUND)
    draw = ImageDraw.Draw(picture)
    for column, title in enumerate(("stock", "patched", "difference")):
        drawing.label(draw, (GAP + column * (CELL + GAP), 8), title, 18)
    for line, index in enumerate(chosen):
        halves = (side_by_side[index, :, :width], side_by_side[index, :, width:], heat[index])
        y = HEAD + line * row
        for column, half in enumerate(halves):
            picture.paste(drawing.to_pil(half).resize(cell), (GAP + column * (CELL + GAP), y))
        note = f"frame {index}" + (", differs most" if index == worst and frames > 1 else "")
        box = draw.textbbox((GAP + 8, y + 6), note, font=drawing.font(15))
        draw.rectangle((box[0] - 5, box[1] - 4, box[2] + 5, box[3] + 4), fill=drawing.BACKGROUND)
        drawing.label(draw, (GAP + 8, y + 6), note, 15)
    _legend(picture, draw, brightest)
    return picture


def _legend(picture: Image.Image, draw: ImageDraw.ImageDraw, brightest: float) -> None:
    """The heat map's colours from 0 to `brightest`, below its column."""
    left, top, width = 2 * CELL + 3 * GAP, picture.height - HEAD + 6, CELL - 110
    bar = drawing.ramp(torch.linspace(0, 1, width)).expand(14, width, 3)
    picture.paste(drawing.to_pil(bar), (left + 26, top))
    drawing.label(draw, (left, top - 2), "0", 15, drawing.FAINT)
    drawing.label(draw, (left + 34 + width, top - 2), f"{brightest:.3f}", 15, drawing.FAINT)
