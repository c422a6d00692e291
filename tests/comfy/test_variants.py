"""What the patch does to every variant of the models, on ComfyUI's own classes; docs/models.md shows the result."""

import json
import subprocess
import sys

import pytest

from tests import models_table
from tests.comfy.variants import VARIANTS

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


@pytest.fixture(scope="module")
def observed(comfy_environment):
    """In a process of its own, because ComfyUI is imported there."""
    command = [sys.executable, "-m", "tests.comfy.variants"]
    result = subprocess.run(command, cwd=comfy_environment.ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout)


def test_comfyui_detects_what_the_variants_are_meant_to_be(observed):
    assert [row["detected"] for row in observed] == [variant.config for variant in VARIANTS]
    families = ["HunyuanVideo" if "hunyuan" in variant.network else "Wan" for variant in VARIANTS]
    assert [row["row"] for row in observed] == families


def test_every_self_attention_layer_is_taken_over_and_the_table_says_so(observed):
    rows = [(row["variant"], row["accelerated"], row["left alone"]) for row in observed]
    assert models_table.written("tests/comfy/test_variants.py") == models_table.render(rows)
