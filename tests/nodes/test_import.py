"""Importing the pack must change nothing: not even torch is loaded for a workflow that does not use it."""

import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]
PROBE = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("pack", sys.argv[1], submodule_search_locations=[])
module = importlib.util.module_from_spec(spec)
before = set(sys.modules)
spec.loader.exec_module(module)
print(sorted(set(sys.modules) - before), callable(module.comfy_entrypoint), module.WEB_DIRECTORY)
"""


def test_importing_the_pack_loads_no_other_module():
    result = subprocess.run(
        [sys.executable, "-c", PROBE, str(ROOT / "__init__.py")], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[] True ./web"


def test_importing_the_nodes_leaves_torch_as_it_was():
    import vc_pack.nodes.override  # noqa: F401

    assert torch.nn.functional.scaled_dot_product_attention is torch._C._nn.scaled_dot_product_attention
