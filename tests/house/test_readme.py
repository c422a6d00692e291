"""What the README promises is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
# `python x.py`, `python -m a.b`, in indented blocks and in the text.
COMMANDS = sorted(set(re.findall(r"python (?:-m [\w.]+|[\w/]+\.py)", README)))


def test_the_two_commands_stand_in_the_readme():
    assert {"python tools/demo.py", "python tools/test.py"} <= set(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command):
    word = command.removeprefix("python ")
    path = ROOT / word
    if word.startswith("-m "):
        module = ROOT / word.removeprefix("-m ").replace(".", "/")
        path = module / "__main__.py" if module.is_dir() else module.with_suffix(".py")
    text = path.read_text(encoding="utf-8")
    assert path.name == "__main__.py" or '__name__ == "__main__"' in text


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\(([^)#]+)\)|src=\"([^\"]+)\"", README))))
def test_links_lead_somewhere(target):
    assert (ROOT / "".join(target)).exists()


def test_ci_runs_the_test_command():
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(r'"\$python" tools/test\.py 2>&1', script), "CI must run what the README tells people to run"
