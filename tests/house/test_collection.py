"""Every folder of tests is run: pytest passes over folders with certain names, and says nothing."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

FOLDERS = [path for path in Path(__file__).resolve().parents[1].iterdir() if list(path.glob("test_*.py"))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.name)
def test_pytest_looks_into(folder, pytestconfig):
    passed_over = [pattern for pattern in pytestconfig.getini("norecursedirs") if fnmatch(folder.name, pattern)]
    assert not passed_over, f"pyproject.toml's norecursedirs must not match {folder.name}"
