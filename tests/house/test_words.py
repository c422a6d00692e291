"""Every node has its words: names and tooltips in each language, a help page, and nothing is said that has no words."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LANGUAGES = sorted(path.name for path in (ROOT / "locales").iterdir())


def words(language: str, name: str) -> dict:
    return json.loads((ROOT / "locales" / language / f"{name}.json").read_text(encoding="utf-8"))


def placeholders(text: str) -> set[str]:
    return set(re.findall(r"\{(\w+)\}", text))


def test_english_and_chinese():
    assert LANGUAGES == ["en", "zh"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_languages_say_the_same_things(language):
    english, other = words("en", "main")["vcAttention"], words(language, "main")["vcAttention"]
    assert list(other) == list(english)
    assert {key: placeholders(text) for key, text in other.items()} == {k: placeholders(t) for k, t in english.items()}


def test_the_interface_says_nothing_that_has_no_words():
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "web" / "js").glob("*.js"))
    keys = set(re.findall(r'say\("([\w.]+)"', source))
    families = set(re.findall(r"say\(`([\w.]+)\$", source))  # say(`preset.${name}`)
    known = words("en", "main")["vcAttention"]
    assert keys and families and keys <= set(known)
    assert {key for key in known if not key.startswith(tuple(families))} <= keys


@pytest.mark.comfy
def test_every_node_is_named_and_explained_in_every_language(comfy_server):
    nodes = {name: info for name, info in comfy_server.get("/object_info").items() if name.startswith("VCAttention")}
    assert len(nodes) >= 4
    chinese = words("zh", "nodeDefs")
    assert set(chinese) == set(words("en", "nodeDefs")) == set(nodes)
    for name, info in nodes.items():
        inputs = {**info["input"].get("required", {}), **info["input"].get("optional", {})}
        assert set(chinese[name]["inputs"]) == set(inputs), name
        assert all(entry["name"] and entry["tooltip"] for entry in chinese[name]["inputs"].values())
        assert len(chinese[name]["outputs"]) == len(info["output"]) and chinese[name]["description"]
        for page in (ROOT / "web" / "docs" / f"{name}.md", ROOT / "web" / "docs" / name / "zh.md"):
            assert page.read_text(encoding="utf-8").startswith("# VC-Attention"), page
            for picture in re.findall(r"!\[[^\]]+\]\((\w+\.png)\)", page.read_text(encoding="utf-8")):
                assert (ROOT / "web" / "docs" / picture).exists(), picture
