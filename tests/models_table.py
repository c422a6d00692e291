"""The tables of docs/models.md, which tests write and compare."""

from __future__ import annotations

import itertools
from pathlib import Path

DOCUMENT = Path(__file__).parents[1] / "docs" / "models.md"
HEAD = "| model | calls taken over | left alone |\n|---|---|---|\n"


def render(rows: list[tuple[str, int, dict[str, int]]]) -> str:
    """One row per variant: name, attention calls of a model call taken over, and how many are left alone and why."""
    lines = []
    for name, accelerated, left_alone in rows:
        reasons = "; ".join(f"{count} {reason}" for reason, count in left_alone.items())
        lines.append(f"| {name} | {accelerated} | {reasons} |\n")
    return HEAD + "".join(lines)


def written(marker: str) -> str:
    """The table of docs/models.md that follows the marker."""
    text = DOCUMENT.read_text(encoding="utf-8").split(f"<!-- {marker} -->\n", 1)[1]
    return "".join(itertools.takewhile(lambda line: line.startswith("|"), text.splitlines(keepends=True)))
