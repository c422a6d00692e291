"""One line of the doctor's page."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

REPORT = "report this page"


@dataclass(frozen=True)
class Finding:
    """What was found about one thing.

    section  heading that it stands under
    state    "ok"; "note": worth knowing; "bad": it keeps attention from being accelerated somewhere
    remedy   what to do about it; never empty where the state is "bad"
    data     numbers for --json
    """

    section: str
    name: str
    state: str
    text: str
    remedy: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.state == "bad" and not self.remedy:
            raise ValueError(f"{self.section}, {self.name}: a finding that is bad needs a remedy")


def guarded(section: str, look: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """What `look` finds; what it raises is one more finding, so that one broken thing does not hide the others."""
    try:
        yield from look()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"line {frame.lineno} of {frame.filename}"
        yield Finding(section, "this check", "bad", f"{type(error).__name__}: {error} ({where})", REPORT)
