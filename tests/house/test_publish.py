"""What the registry and ComfyUI-Manager see: which files ship, what they may contain, what pyproject.toml says."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = [
    r"__init__\.py|install\.py|LICENSE|README\.md|CHANGELOG\.md|pyproject\.toml|requirements\.txt|\.gitignore|\.comfyignore",
    r"(nodes|vc_attention)/.*\.py",
    r"csrc/.*\.(cu|cuh|h|cpp|md)",
    r"workflows/[\w.]+\.(json|jpg)",
    r"locales/\w+/\w+\.json",
    r"web/(js/\w+\.js|docs/\w+\.(md|png)|docs/\w+/\w+\.md)",
    r"docs/[\w-]+\.md",
]
# Written apart so that this file does not name what it looks for.
BANNED = [
    r"/wor" + r"k/",
    r"/op" + r"t/",
    r"/roo" + r"t/",
    r"/hom" + r"e/\w",
    r"C:\\\\Users",
    "pypi" + r"\.org",
    "pythonhosted" + r"\.org",
    "registry" + r"\.npmjs",
    "download" + r"\.pytorch",
    "index" + "-url",
]
MAX_BYTES = 100_000


def tracked() -> list[str]:
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [name for name in listing.splitlines() if (ROOT / name).exists()]


def shipped() -> list[str]:
    ignored = (ROOT / ".comfyignore").read_text().split()
    return [name for name in tracked() if not any(_matches(name, pattern) for pattern in ignored)]


def _matches(name: str, pattern: str) -> bool:
    return name.startswith(pattern) if pattern.endswith("/") else fnmatch.fnmatch(name, pattern)


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_only_known_kinds_of_files_ship():
    strange = [name for name in shipped() if not any(re.fullmatch(pattern, name) for pattern in SHIPPED)]
    assert not strange, "add them to .comfyignore, or to SHIPPED if artists need them"


def test_what_artists_need_ships():
    assert {"__init__.py", "requirements.txt", "web/js/status.js", "web/docs/VCAttentionPatch.md"} <= set(shipped())
    assert any(name.startswith("workflows/") for name in shipped())
    assert any(name.startswith("csrc/") for name in shipped())


@pytest.mark.parametrize("pattern", BANNED)
def test_no_machine_paths_and_no_package_hosts(pattern):
    text_files = [name for name in tracked() if not name.endswith((".png", ".jpg", ".safetensors"))]
    hits = [name for name in text_files if re.search(pattern, (ROOT / name).read_text(encoding="utf-8"))]
    assert not hits


def test_files_stay_small_enough_to_be_scanned():
    assert not [name for name in shipped() if (ROOT / name).stat().st_size > MAX_BYTES]


def test_python_files_print_on_every_console():
    """Windows consoles use cp1252; a character outside it in a message raises there."""
    for name in shipped():
        if name.endswith(".py"):
            (ROOT / name).read_text(encoding="utf-8").encode("cp1252")


def test_requirements_leave_torch_alone():
    names = {re.split(r"[<>=!~ ]", line)[0] for line in (ROOT / "requirements.txt").read_text().split()}
    assert names == set(project()["project"]["dependencies"])
    assert not {name for name in names if name.startswith(("torch", "nvidia", "triton"))}


def test_version_and_name():
    version = project()["project"]["version"]
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.fullmatch(r"[a-z][a-z0-9-]{1,99}", project()["project"]["name"])
    assert "comfyui" not in project()["project"]["name"]


@pytest.mark.comfy
def test_comfyui_reads_the_metadata(comfy_environment):
    """ComfyUI's own parser, which the registry's client uses too: what it drops silently must be there."""
    code = (
        "import sys; from comfy_config.config_parser import extract_node_configuration as read; "
        "c = read(sys.argv[1]); "
        "print(c.project.name, c.tool_comfy.publisher_id, c.tool_comfy.display_name, c.tool_comfy.web, "
        "c.project.supported_comfyui_version, len(c.project.supported_accelerators), bool(c.project.license.file), "
        "sep='|')"
    )
    command = [str(comfy_environment.python()), "-c", code, str(ROOT)]
    result = subprocess.run(command, cwd=comfy_environment.COMFYUI, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    name, publisher, display, web, comfyui, accelerators, license_file = result.stdout.strip().split("|")
    assert (name, display, web) == ("vc-attention", "VC-Attention", "web")
    assert publisher and comfyui == project()["tool"]["comfy"]["requires-comfyui"]
    assert (accelerators, license_file) == ("1", "True")


def test_this_interpreter_is_supported():
    low = project()["project"]["requires-python"].removeprefix(">=")
    assert sys.version_info >= tuple(map(int, low.split(".")))
