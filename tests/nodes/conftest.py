"""Loads the repository as ComfyUI does, a package of its own, under the name vc_pack; and stands in for ComfyUI."""

import importlib.util
import sys
import types
from pathlib import Path

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
