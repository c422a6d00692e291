"""Findings as a page for people or as JSON, without what would tell who made it."""

from __future__ import annotations

import dataclasses
import getpass
import json
import os
import re
import sys
from datetime import date
from pathlib import Path
from typing import Any

from ..build import cache
from .finding import Finding

SIGNS = {"ok": "ok  ", "note": "note", "bad": "BAD "}
LEGEND = "<pack> is VC-Attention's folder in custom_nodes, <python> the Python that ran this."


def accelerates(findings: list[Finding]) -> bool:
    """Whether any profile has a kernel that passed its self-test."""
    return any(finding.data.get("accelerates") for finding in findings)


def text(findings: list[Finding], version: str) -> str:
    """The page, ASCII: a verdict, then one line a finding, grouped by section."""
    lines = [f"VC-Attention {version}, doctor's page of {date.today()}", verdict(findings)]
    for section in dict.fromkeys(finding.section for finding in findings):
        lines += ["", section]
        for finding in (f for f in findings if f.section == section):
            line = f"  {SIGNS[finding.state]} {finding.name}: {' '.join(finding.text.split())}"
            lines.append(line + (f" -> {finding.remedy}" if finding.remedy else ""))
    page = anonymous("\n".join([*lines, "", LEGEND]))
    return page.encode("ascii", "backslashreplace").decode()


def as_json(findings: list[Finding], version: str) -> str:
    """The same as JSON, with the numbers behind it."""
    whole = {
        "version": version,
        "date": str(date.today()),
        "accelerates": accelerates(findings),
        "verdict": verdict(findings),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return json.dumps(_anonymous_values(whole), indent=1)


def verdict(findings: list[Finding]) -> str:
    """One sentence."""
    able = [finding.name for finding in findings if finding.data.get("accelerates")]
    if able:
        return f"Attention can be accelerated: {', '.join(able)}."
    return "Attention cannot be accelerated here: what is marked BAD stands in the way."


def anonymous(text: str) -> str:
    """`text` with short names for folders, and without the user's."""
    home = Path(os.path.expanduser("~"))
    for path, name in ((cache.PACK, "<pack>"), (Path(sys.executable), "<python>"), (home, "~")):
        for spelling in {str(path), os.path.realpath(path), path.as_posix(), str(path).replace("\\", "\\\\")}:
            if len(spelling) > 1:  # the home of some services is /
                text = re.sub(rf"{re.escape(spelling)}(?![\w-])", lambda _, name=name: name, text, flags=_CASE)
    text = _HOMES.sub(r"\1<user>", text)
    for user in filter(None, {_user(), home.name}):
        text = re.sub(rf"(?<=[\\/]){re.escape(user)}(?![\w.-])", "<user>", text, flags=_CASE)
    return text


_CASE = re.IGNORECASE if sys.platform == "win32" else 0
# Others' homes, and one's own where Windows shortens it (JOHNDO~1).
_HOMES = re.compile(r"([\\/](?:Users|home)[\\/]+)(?:[^\\/\"':;,]+(?=[\\/])|[^\\/\"':;,\s]+)")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name
        return ""


def _anonymous_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _anonymous_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_anonymous_values(item) for item in value]
    return anonymous(value) if isinstance(value, str) else value
