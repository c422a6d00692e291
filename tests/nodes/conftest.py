"""Loads the repository as ComfyUI does, a package of its own, under the name vc_pack; and stands in for ComfyUI."""

import importlib.util
import sys
import types
from pathlib import Path

import pytest
import torch

from tests.nodes import fakes

ROOT = Path(__file__).resolve().parents[2]


def _load_pack() -> None:
    spec = importlib.util.spec_from_file_location(
        "vc_pack", ROOT / "__init__.py", submodule_search_locations=[str(ROOT)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["vc_pack"] = module
    spec.loader.exec_module(module)


def _load_fake_comfy() -> None:
    """Only the two names that nodes/apply.py and nodes/override.py import, unless a real ComfyUI is there."""
    names = ("comfy", "comfy.patcher_extension", "comfy.ldm", "comfy.ldm.modules", "comfy.ldm.modules.attention")
    for name in names:
        sys.modules[name] = types.ModuleType(name)
    sys.modules["comfy.patcher_extension"].WrappersMP = types.SimpleNamespace(
        OUTER_SAMPLE="outer_sample", APPLY_MODEL="apply_model"
    )


if "vc_pack" not in sys.modules:
    _load_pack()
    _load_fake_comfy()


@pytest.fixture
def spy(monkeypatch):
    """Calls of attend(), each run by plain attention; a renewing call leaves a grouping behind."""
    from vc_pack.nodes import override
    from vc_pack.vc_attention.config import Action, Grouping

    calls = []

    def attend(q, k, v, *, numerics, action, grouping, backend, lap):
        calls.append(
            {"action": action, "grouping": grouping, "backend": backend, "numerics": numerics, "shape": tuple(q.shape)}
        )
        if action in (Action.GROUP, Action.ASSIGN):
            b, h, n, d = v.shape
            sizes = ((b, h, 4, d), (b, h), (b, h, 4), (b, h, n))
            types = (torch.int8, torch.float32, torch.int32, torch.int32)
            grouping = Grouping(*(torch.zeros(s, dtype=t) for s, t in zip(sizes, types, strict=True)))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v), grouping

    monkeypatch.setattr(override, "attend", attend)
    return calls


@pytest.fixture
def reports(monkeypatch):
    shown = []
    monkeypatch.setattr("vc_pack.nodes.run.show", lambda report, node_id: shown.append(report))
    return shown


@pytest.fixture(params=fakes.VERSIONS)
def version(request):
    return request.param
