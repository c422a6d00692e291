"""Text is written and read alike on every system, whatever its locale."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ("*.py", "nodes/**/*.py", "vc_attention/**/*.py", "tools/**/*.py", "web/js/*.js", "workflows/*.json")
FILES = sorted(path for pattern in SHIPPED for path in ROOT.glob(pattern))


def without_encoding(source: str) -> list[str]:
    """Calls that read or write text in the encoding of whoever runs them."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or any(keyword.arg == "encoding" for keyword in node.keywords):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", None))
        modes = [a.value for a in node.args[-1:] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
        binary = any("b" in mode for mode in modes)
        opens = name == "open" and (isinstance(node.func, ast.Name) or modes) and not binary
        if opens or name in ("read_text", "write_text"):
            found.append(ast.unparse(node))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_what_the_pack_prints_and_reads_needs_no_locale(path):
    """A Windows console may know no more than ASCII; files are UTF-8."""
    text = path.read_text(encoding="utf-8")
    assert text.isascii()
    assert path.suffix != ".py" or without_encoding(text) == []


def test_a_console_of_few_letters_does_not_end_a_tool():
    code = (
        "from tools import environment; environment.active = lambda: True; environment.run_inside('x'); "
        "print(chr(0x2713), 'done')"
    )
    few = {**os.environ, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=few, capture_output=True, text=True)
    assert result.stdout.strip() == "? done", result.stderr


def test_the_check_sees_what_it_forbids():
    bad = ["path.read_text()", "path.write_text('x')", "open(name)", "open(name, 'w')", "path.open('a')"]
    good = ["open(name, 'rb')", "path.open('wb')", "Image.open(name)", "open(name, encoding='utf-8')"]
    assert without_encoding("\n".join(bad + good)) == bad
