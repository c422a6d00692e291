"""The table of the Report node's picture: a row a layer; what a step did to it, then what the whole run did."""

from __future__ import annotations

import math
from collections import Counter

import torch
from PIL import Image, ImageDraw

from .drawing import BACKGROUND, FAINT, PANEL, TEXT, font, label, ramp, to_pil

WIDTH, MARGIN, GAP = 1280, 28, 24
NAME, GRID, ENERGY, CLUSTERS, MS = 92, 312, 112, 152, 124  # widths of the columns
SMALL, NORMAL = 14, 17
STOCK = "stock"
# What ran -> (words for people, colour).
RAN = {
    "balanced": ("8 bit", "#4c8bf5"),
    "quality": ("8 bit, quality", "#2fb5a0"),
    "4bit": ("4 bit", "#f2a541"),
    "int8-nvfp4": ("4 bit, quality", "#e0743f"),
    "paper-8bit": ("8 bit, paper", "#b48cf2"),
    "paper-4bit": ("4 bit, paper", "#d873c2"),
    STOCK: ("stock", "#6b7484"),
}
TIMES = {"attention": "#4c8bf5", "preparation": "#2fb5a0", "grouping": "#f2a541", "guard": "#b48cf2"}


def new_strip(height: int) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    strip = Image.new("RGB", (WIDTH, int(height)), BACKGROUND)
    return strip, ImageDraw.Draw(strip)


def table(report: dict) -> Image.Image | None:
    """The table as a strip of the picture, or None where no layer was called."""
    layers, steps = report["layers"], report["steps"]
    if not layers or not steps:
        return None
    row = max(10, min(26, 620 // len(layers)))
    top, bottom = 64, 64
    strip, canvas = new_strip(top + row * len(layers) + bottom)
    _names(canvas, layers, top, row)
    x = MARGIN + NAME
    _errors(strip, canvas, report, (x, top), row)
    x += GRID + GAP
    _ran(canvas, report, (x, top), row)
    x += GRID + GAP
    _energy(canvas, layers, (x, top), row)
    x += ENERGY + GAP
    _clusters(canvas, layers, (x, top), row)
    x += CLUSTERS + GAP
    _milliseconds(canvas, layers, (x, top), row)
    return strip


def _names(canvas, layers: list[dict], top: int, row: int) -> None:
    every = 1 if row >= 15 else 5
    for index, layer in enumerate(layers):
        if index % every == 0 or index == len(layers) - 1:
            name = layer["name"] if layer["block"] is None else f"block {layer['block']}"
            label(canvas, (MARGIN, top + (index + 0.5) * row), name, SMALL, FAINT, "lm")


def _column(canvas, at: tuple[int, int], title: str, note: str = "") -> None:
    label(canvas, (at[0], at[1] - 58), title, NORMAL)
    label(canvas, (at[0], at[1] - 34), note, SMALL, FAINT)


def _cells(report: dict, at: tuple[int, int], row: int):
    """(layer, index of the step, rectangle) of every cell of a grid of layers x steps."""
    width = GRID / len(report["steps"])
    gap = 1 if min(row, width) >= 6 else 0
    for line, layer in enumerate(report["layers"]):
        for step in range(len(report["steps"])):
            x, y = at[0] + step * width, at[1] + line * row
            yield layer, step, (round(x), y, max(round(x), round(x + width) - 1 - gap), y + row - 1 - gap)


def _steps_axis(canvas, report: dict, at: tuple[int, int], row: int, note: str) -> None:
    steps, y = report["steps"], at[1] + row * len(report["layers"]) + 5
    width = GRID / len(steps)
    every = max(1, -(-len(steps) // 8))
    for index, step in enumerate(steps):
        if step["in_window"]:
            canvas.rectangle((at[0] + index * width, y, at[0] + (index + 1) * width - 1, y + 3), fill=TIMES["grouping"])
        if index % every == 0:
            label(canvas, (at[0] + index * width, y + 7), str(step["index"]), SMALL, FAINT)
    label(canvas, (at[0], y + 27), note, SMALL, FAINT)


def _errors(strip, canvas, report: dict, at: tuple[int, int], row: int) -> None:
    measured = [error for layer in report["layers"] for error in layer["errors"] if error is not None]
    budget = report["guard"]["budget"]
    _column(canvas, at, "measured error")
    if not measured:
        why = "the guard is off" if budget is None else "nothing was measured"
        canvas.rectangle((*at, at[0] + GRID - 2, at[1] + row * len(report["layers"]) - 2), fill=PANEL)
        label(canvas, (at[0], at[1] - 34), why, SMALL, FAINT)
        return
    scale = max([*measured, budget or 0.0, 1e-6])
    held = None  # the layer's last measured error
    for layer, step, box in _cells(report, at, row):
        error = layer["errors"][step]
        rejected = [tried["error"] for tried in layer["tried"] if tried["step"] == report["steps"][step]["index"]]
        held = error if error is not None else held if step else None
        shown = held if layer["ran"][step] not in (None, STOCK) else None
        colour = PANEL if shown is None else _mixed(shown / scale, 1.0 if error is not None else 0.45)
        canvas.rectangle(box, fill=colour, outline=RAN["4bit"][1] if rejected else None)
    _error_legend(strip, canvas, at, scale, budget)
    _steps_axis(canvas, report, at, row, "step; dim: not measured; frame: rejected")


def _error_legend(strip, canvas, at: tuple[int, int], scale: float, budget: float | None) -> None:
    x, y, width = at[0], at[1] - 31, 120
    strip.paste(to_pil(ramp(torch.linspace(0, 1, width)).expand(10, width, 3)), (x, y))
    words = f"0 to {percent(scale)}"
    if budget is not None:
        place = x + round(width * min(1.0, budget / scale))
        canvas.line((place, y - 3, place, y + 12), fill=TEXT, width=2)
        words = f"0 to {percent(scale)}, budget {percent(budget)}"
    label(canvas, (x + width + 10, y - 4), words, SMALL, FAINT)


def _ran(canvas, report: dict, at: tuple[int, int], row: int) -> None:
    _column(canvas, at, "what ran")
    counts: Counter[str] = Counter()
    for layer, step, box in _cells(report, at, row):
        name = layer["ran"][step]
        canvas.rectangle(box, fill=PANEL if name is None else ran_words(name)[1])
        if name is not None:
            counts[name] += 1
    x = at[0]
    for name, _ in counts.most_common(3):
        words, colour = ran_words(name)
        canvas.rectangle((x, at[1] - 31, x + 10, at[1] - 21), fill=colour)
        label(canvas, (x + 15, at[1] - 35), words, SMALL, FAINT)
        x += 27 + round(canvas.textlength(words, font=font(SMALL)))
    _steps_axis(canvas, report, at, row, "step; line: the grouping window")


def _energy(canvas, layers: list[dict], at: tuple[int, int], row: int) -> None:
    _column(canvas, at, "in the averages", "of V's energy")
    for line, layer in enumerate(layers):
        shares = [share for share in layer["block_energy"] or [] if share is not None]
        y = at[1] + line * row
        canvas.rectangle((at[0], y, at[0] + ENERGY, y + row - 2), fill=PANEL)
        if shares:
            share = sum(shares) / len(shares)
            canvas.rectangle((at[0], y, at[0] + round(ENERGY * share), y + row - 2), fill=RAN["quality"][1])
            if row >= 15:
                label(canvas, (at[0] + 6, y + row / 2 - 1), f"{share:.0%}", SMALL, TEXT, "lm")
    _ends(canvas, at, row * len(layers), ENERGY, "0", "100%")


def _clusters(canvas, layers: list[dict], at: tuple[int, int], row: int) -> None:
    """From the smallest to the largest cluster, as a share of the tokens on a logarithmic scale; a dot: the median."""
    sizes = [layer["clusters"] for layer in layers if layer["clusters"]]
    counts = sorted({size["count"] for size in sizes})
    _column(canvas, at, "cluster sizes", " and ".join(map(str, counts)) + " a head" if counts else "")
    for line in range(len(layers)):
        y = at[1] + line * row
        canvas.rectangle((at[0], y, at[0] + CLUSTERS, y + row - 2), fill=PANEL)
    if not sizes:
        return
    decades = max(1, math.ceil(-math.log10(max(1e-5, min(size["smallest"] for size in sizes)))))

    def place(share: float) -> float:
        return at[0] + CLUSTERS * (1 + max(-decades, math.log10(max(share, 1e-9))) / decades)

    for line, layer in enumerate(layers):
        if layer["clusters"]:
            y = at[1] + (line + 0.5) * row - 1
            low, middle, high = (place(layer["clusters"][key]) for key in ("smallest", "median", "largest"))
            canvas.line((low, y, high, y), fill=RAN["balanced"][1], width=3)
            canvas.ellipse((middle - 3, y - 3, middle + 3, y + 3), fill=TEXT)
    _ends(canvas, at, row * len(layers), CLUSTERS, f"{100 * 10**-decades:g}%", "100%")


def _milliseconds(canvas, layers: list[dict], at: tuple[int, int], row: int) -> None:
    _column(canvas, at, "time", "of all calls")
    totals = [sum(value or 0.0 for value in layer["ms"].values()) for layer in layers]
    longest = max(totals)
    for line, (layer, total) in enumerate(zip(layers, totals, strict=True)):
        x, y = at[0], at[1] + line * row
        canvas.rectangle((x, y, x + MS, y + row - 2), fill=PANEL)
        for part, colour in TIMES.items():
            width = round(MS * (layer["ms"].get(part) or 0.0) / longest) if longest else 0
            if width:
                canvas.rectangle((x, y, x + width, y + row - 2), fill=colour)
            x += width
        if row >= 15 and total:
            label(canvas, (at[0] + 6, y + row / 2 - 1), seconds(total), SMALL, TEXT, "lm")
    _ends(canvas, at, row * len(layers), MS, "0", seconds(longest) if longest else "not measured")


def _ends(canvas, at: tuple[int, int], height: int, width: int, low: str, high: str) -> None:
    label(canvas, (at[0], at[1] + height + 7), low, SMALL, FAINT)
    label(canvas, (at[0] + width, at[1] + height + 7), high, SMALL, FAINT, "ra")


def ran_words(name: str) -> tuple[str, str]:
    return RAN.get(name, (name, "#9aa4b5"))


def _mixed(value: float, strength: float) -> tuple[int, int, int]:
    """The ramp's colour of `value`, over the panel."""
    panel = torch.tensor([int(PANEL[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    colour = torch.lerp(panel, ramp(torch.tensor(value)), strength)
    return tuple((colour * 255).round().int().tolist())


def percent(share: float) -> str:
    return f"{share:.2%}" if share < 0.1 else f"{share:.0%}"


def seconds(ms: float) -> str:
    return f"{ms:.1f} ms" if ms < 1000 else f"{ms / 1000:.1f} s"
