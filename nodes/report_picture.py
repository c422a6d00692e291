"""The picture of the Report node, from the data of docs/report.md: what ran, what it cost, what was left alone."""

from __future__ import annotations

from PIL import Image

from .drawing import BACKGROUND, FAINT, TEXT, font, label
from .report_table import MARGIN, NORMAL, RAN, SMALL, STOCK, TIMES, WIDTH, new_strip, percent, ran_words, seconds, table

LARGE, LINE = 26, 24  # letters; distance of lines


def draw(runs: list[tuple[str, dict]]) -> Image.Image:
    """All runs below each other, (title, report) each; a card that says so where there is none."""
    strips = []
    for title, report in runs:
        strips += [_head(title, report), table(report), _time(report), _notes(report)]
    strips = [strip for strip in strips if strip] or [_nothing()]
    picture = Image.new("RGB", (WIDTH, sum(strip.height for strip in strips) + 2 * MARGIN), BACKGROUND)
    y = MARGIN
    for strip in strips:
        picture.paste(strip, (0, y))
        y += strip.height
    return picture


def facts(report: dict) -> list[str]:
    """What matters most of a run, in a few words each."""
    found = [f"{report['calls_accelerated']:,} attention calls taken over, {report['calls_left_alone']:,} left alone"]
    worst, saved = report["guard"]["worst"], report["time"]["saved"]
    if worst:
        found.append(f"largest error {percent(worst['error'])} ({worst['layer']}, step {worst['step']})")
    if saved is not None:
        found.append(f"{seconds(abs(saved))} {'saved' if saved >= 0 else 'lost'} (estimate)")
    if report["stopped_early"]:
        found.append("stopped early")
    return found


def _nothing() -> Image.Image:
    strip, canvas = new_strip(3 * LINE)
    label(canvas, (MARGIN, 0), "Nothing to report", LARGE)
    label(canvas, (MARGIN, 42), "No sampler before this node ran a model with VC-Attention Patch.", NORMAL, FAINT)
    return strip


def _head(title: str, report: dict) -> Image.Image:
    strip, canvas = new_strip(104)
    label(canvas, (MARGIN, 0), title, LARGE)
    words = [report["model"] or "no model call", f"{report['forwards']} model calls", f"asked for: {report['profile']}"]
    label(canvas, (MARGIN, 38), "  |  ".join(words), NORMAL, FAINT)
    label(canvas, (MARGIN, 66), "  |  ".join(facts(report)), NORMAL)
    return strip


def _time(report: dict) -> Image.Image | None:
    """One bar: where the time of the calls that ran here went."""
    time = report["time"]
    parts = {name: time[name] for name in TIMES if time[name]}
    total = sum(parts.values())
    if not total:
        return None
    strip, canvas = new_strip(86)
    x, length = MARGIN, WIDTH - 2 * MARGIN
    label(canvas, (x, 0), f"time of the calls taken over: {seconds(total)}", NORMAL)
    legend = x
    for name, value in parts.items():
        width = max(2, round(length * value / total))
        canvas.rectangle((x, 28, min(x + width, WIDTH - MARGIN), 42), fill=TIMES[name])
        x += width
        words = f"{name} {seconds(value)} ({value / total:.1%})"
        canvas.rectangle((legend, 54, legend + 10, 64), fill=TIMES[name])
        label(canvas, (legend + 16, 50), words, SMALL, FAINT)
        legend += 40 + round(canvas.textlength(words, font=font(SMALL)))
    if time["stock_call"]:
        words = f"one call of stock attention, measured here: {seconds(time['stock_call'])}"
        label(canvas, (WIDTH - MARGIN, 0), words, NORMAL, FAINT, "ra")
    return strip


def _notes(report: dict) -> Image.Image:
    """Lists: what ran the calls, what was left alone and why, what the guard moved."""
    lines = [(f"{count:,} calls with {name}", TEXT) for name, count in report["kernels"].items()]
    lines += [(f"{count:,} calls left alone: {reason}", FAINT) for reason, count in report["left_alone"].items()]
    for layer in report["layers"]:
        tried = [f"{ran_words(t['profile'])[0]} {_was_off(t['error'])}" for t in layer["tried"]]
        if tried:
            now = next((name for name in reversed(layer["ran"]) if name), STOCK)
            lines.append((f"{layer['name']}: {', '.join(tried)}; moved to {ran_words(now)[0]}", RAN["4bit"][1]))
    strip, canvas = new_strip(LINE * len(lines) + 2 * MARGIN)
    for index, (words, colour) in enumerate(lines):
        label(canvas, (MARGIN, 8 + LINE * index), _shortened(canvas, words), NORMAL, colour)
    return strip


def _was_off(error: float | None) -> str:
    return "gave values that are not finite" if error is None else f"was off by {percent(error)}"


def _shortened(canvas, words: str) -> str:
    room = WIDTH - 2 * MARGIN
    if canvas.textlength(words, font=font(NORMAL)) <= room:
        return words
    while canvas.textlength(words + "...", font=font(NORMAL)) > room:
        words = words[:-8]
    return words + "..."
