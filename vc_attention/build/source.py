"""One flat text per compile unit: the source with every include of csrc/ put in its place.

Both compilers get this text, so neither needs an include path (on which folders with quotes or non-ASCII names break),
and its hash covers everything that the cubin is made of. `#line` keeps error messages pointing at the real files.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path, PurePosixPath

from ..errors import VCAttentionError

CSRC = Path(__file__).resolve().parents[2] / "csrc"

_INCLUDE = re.compile(r'\s*#\s*include\s+(?:"([^"]+)"|<([^>]+)>)')
_PRAGMA_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")


class SourceError(VCAttentionError, RuntimeError):
    """An include that a unit must not or cannot have."""


def flatten(source: str, csrc: Path = CSRC) -> str:
    """The text of `source` (relative to `csrc`), each header of csrc/ in place of its first include and nowhere else.

    A quoted include is looked for beside its file, then under csrc/. Raises SourceError naming file and line.
    """
    lines: list[str] = []
    _append(PurePosixPath(source), csrc, set(), lines)
    return "\n".join(lines) + "\n"


def sha256(text: str) -> str:
    """Hash of a flat text: the identity of a unit's code."""
    return hashlib.sha256(text.encode()).hexdigest()


def _append(path: PurePosixPath, csrc: Path, seen: set[PurePosixPath], out: list[str]) -> None:
    seen.add(path)
    out.append(f'#line 1 "csrc/{path}"')
    # Universal newlines: a checkout with CRLF must hash as one with LF.
    for number, line in enumerate(_read(csrc / path).splitlines(), start=1):
        match = _INCLUDE.match(line)
        if match is None:
            out.append("" if _PRAGMA_ONCE.match(line) else line)
            continue
        header = _resolve(match, path, number, csrc)
        if header not in seen:
            _append(header, csrc, seen, out)
        out.append(f'#line {number + 1} "csrc/{path}"')


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SourceError(f"a part of the pack is missing, install it again: {error}") from error


def _resolve(match: re.Match[str], path: PurePosixPath, number: int, csrc: Path) -> PurePosixPath:
    here = f"csrc/{path}:{number}"
    if match[2] is not None:
        raise SourceError(
            f"{here}: <{match[2]}> comes from outside csrc/; NVRTC has no such headers, write what is needed in csrc/"
        )
    for base in (path.parent, PurePosixPath()):
        parts: list[str] = []
        for part in (base / match[1]).parts:
            if part == ".." and parts:
                parts.pop()
            elif part != ".":
                parts.append(part)
        candidate = PurePosixPath(*parts)
        if (csrc / candidate).is_file():
            return candidate
    raise SourceError(f'{here}: "{match[1]}" is neither beside this file nor under csrc/')
