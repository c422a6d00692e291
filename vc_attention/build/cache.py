"""Built files on disk: cubins and launchers, each under a key of everything it was made of, each with a stamp.

A file is named by its content and its stamp by its key, and both appear by rename, so that installs side by side, a
full disk or a killed process leave either a whole entry or none. What a stamp says is checked again at every load.

The folder is `.cache/` of the pack, or the user's cache folder when the pack is read-only. Nothing here knows the
version of Python or torch, so the upgrade of neither makes a cubin stale.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

PACK = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Entry:
    """A built file that was found whole: its path, its bytes and what its stamp says."""

    path: Path
    data: bytes
    stamp: dict[str, Any]


class CacheMiss(LookupError):
    """There is no usable entry; the text says why."""


def folders() -> list[Path]:
    """Where entries are looked for, first the pack's own."""
    home = Path.home()
    user = {"win32": home / "AppData" / "Local", "darwin": home / "Library" / "Caches"}.get(
        sys.platform, home / ".cache"
    )
    return [PACK / ".cache" / "kernels", user / "vc-attention" / "kernels"]


def writable() -> Path:
    """The first folder that can be written. Raises OSError naming all when none can."""
    refusals = []
    for folder in folders():
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except OSError as error:
            refusals.append(str(error))
    raise OSError("no folder for built kernels can be written: " + "; ".join(refusals))


def key(identity: dict[str, Any]) -> str:
    """Short hash of what an entry was made of."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def store(name: str, suffix: str, data: bytes, identity: dict[str, Any], facts: dict[str, Any]) -> Entry:
    """Write `data` as an entry called `name`, made of `identity`; `facts` are only reported. Returns it."""
    folder = writable()
    digest = hashlib.sha256(data).hexdigest()
    path = folder / f"{name}-{digest[:16]}{suffix}"
    built = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    stamp = {**facts, **identity, "built": built, "file": path.name, "sha256": digest, "bytes": len(data)}
    _write(path, data)
    _write(folder / f"{name}-{key(identity)}.json", json.dumps(stamp, indent=1).encode())
    return Entry(path, data, stamp)


def find(name: str, **wanted: Any) -> Entry:
    """The entry called `name` whose stamp holds all of `wanted`. Raises CacheMiss with the most telling reason."""
    reason = "it was never built"
    for folder in folders():
        for stamp in _newest_first(folder.glob(f"{name}-*.json")):
            differing = [field for field, value in wanted.items() if stamp.get(field) != value]
            if differing:
                reason = f"what was built differs in {', '.join(differing)} (the pack was updated since)"
                continue
            try:
                return Entry(folder / stamp["file"], _read_whole(folder, stamp), stamp)
            except CacheMiss as miss:
                reason = str(miss)
    raise CacheMiss(reason)


def entries() -> list[dict[str, Any]]:
    """All readable stamps of all folders."""
    return [stamp for folder in folders() for path in sorted(folder.glob("*.json")) if (stamp := _read_stamp(path))]


def prune(name: str, **current: Any) -> None:
    """Drop the entries called `name` in the pack's folder whose stamps differ from `current`: the sources moved on."""
    folder = folders()[0]
    stamps = {path: _read_stamp(path) for path in folder.glob(f"{name}-*.json")}
    stale = {
        path for path, stamp in stamps.items() if any(stamp.get(field) != value for field, value in current.items())
    }
    kept = {stamp.get("file") for path, stamp in stamps.items() if path not in stale}
    for path in stale:
        _remove(path)
        file = stamps[path].get("file")
        if file is not None and file not in kept:  # a changed comment gives the same cubin
            _remove(folder / file)


def log(name: str, text: str) -> Path:
    """Keep a compiler's whole log; returns where."""
    path = writable() / f"{name}.log"
    _write(path, text.encode(errors="replace"))
    return path


def clean() -> list[Path]:
    """Delete all built files; returns the folders that were there. Raises OSError naming those that stayed."""
    there = [folder for folder in folders() if folder.is_dir()]
    for folder in there:
        shutil.rmtree(folder, ignore_errors=True)
    if left := [str(folder) for folder in there if folder.is_dir()]:
        raise OSError(f"cannot be removed whole: {', '.join(left)}; close ComfyUI and try again, or delete it by hand")
    return there


def _newest_first(paths: Iterable[Path]) -> list[dict[str, Any]]:
    stamps = [_read_stamp(path) for path in paths]
    return sorted(stamps, key=lambda stamp: str(stamp.get("built", "")), reverse=True)


def _read_stamp(path: Path) -> dict[str, Any]:
    try:
        stamp = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    # A stamp is a file anyone can edit: its file must stay in its folder.
    named = isinstance(stamp, dict) and isinstance(stamp.get("file"), str) and Path(stamp["file"]).name == stamp["file"]
    return stamp if named else {}


def _read_whole(folder: Path, stamp: dict[str, Any]) -> bytes:
    path = folder / stamp["file"]
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: no name for a file
        raise CacheMiss(
            f"{path} is gone though it was built (SHA-256 {stamp.get('sha256')}): an antivirus may have "
            f"quarantined it; restore it there, allow the folder, and build again ({error})"
        ) from error
    if hashlib.sha256(data).hexdigest() != stamp.get("sha256"):
        raise CacheMiss(f"{path} is damaged: {len(data)} bytes, {stamp.get('bytes')} were built")
    return data


def _write(path: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".part-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except PermissionError:
        # Windows does not replace a library in use; by its name it holds these very bytes.
        if not path.is_file() or path.read_bytes() != data:
            raise
    finally:
        _remove(Path(temporary))


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
