"""The parameter structs of csrc/smxx/params.cuh and those that Python packs are one description in two languages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vc_attention import stages
from vc_attention.build.source import CSRC
from vc_attention.params import Params

KINDS = {"i64": "q", "int": "i", "float": "f"}
NAMES = {
    "View": "VIEW", "SampleSumsParams": "SAMPLE_SUMS", "ChannelStatsParams": "CHANNEL_STATS",
    "PrepareQParams": "PREPARE_Q", "PrepareKParams": "PREPARE_K", "PrepareKStepParams": "PREPARE_K_STEP",
    "PrepareVParams": "PREPARE_V",
    "QCenterParams": "Q_CENTER", "PrepareQNvfp4Params": "PREPARE_Q_NVFP4", "PrepareKNvfp4Params": "PREPARE_K_NVFP4",
    "KMeansMomentsParams": "KMEANS_MOMENTS", "KMeansInitParams": "KMEANS_INIT", "KMeansAssignParams": "KMEANS_ASSIGN",
    "KMeansUpdateParams": "KMEANS_UPDATE", "KMeansChainParams": "KMEANS_CHAIN", "SortParams": "SORT",
}  # fmt: skip


def structs() -> dict[str, list[tuple[str, str]]]:
    """{struct: [(field, struct code)]} as the header declares them; a pointer is Q, a struct its size in bytes."""
    text = re.sub(r"//[^\n]*", "", Path(CSRC / "smxx/params.cuh").read_text(encoding="utf-8"))
    found = {}
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", text, re.DOTALL):
        fields = []
        for declaration in filter(None, (part.strip() for part in body.split(";"))):
            kind, names = re.fullmatch(r"(?:const )?(\w+)(\*? .*)", declaration).groups()
            for field in names.lstrip("*").split(","):
                code = "Q" if names.startswith("*") else KINDS.get(kind) or f"{stages.VIEW.size}s"
                fields.append((field.strip(), code))
        found[name] = fields
    return found


def test_every_struct_is_packed():
    assert structs().keys() == NAMES.keys()


@pytest.mark.parametrize("name", NAMES)
def test_fields_agree(name):
    packed: Params = getattr(stages, NAMES[name])
    assert [(field, letter) for field, (letter, _) in packed._fields.items()] == structs()[name]


def test_constants_agree():
    text = Path(CSRC / "smxx/assign.cuh").read_text(encoding="utf-8")
    constants = {name: int(value) for name, value in re.findall(r"constexpr int (\w+) = (\d+);", text)}
    assert stages.ASSIGN_THREADS == constants["kAssignThreads"]
    chunk = constants["kAssignThreads"] // 32 * constants["kWarpTokens"] * constants["kRounds"]
    assert stages.ASSIGN_CHUNK == chunk
