"""Fixtures shared by every room's tests."""

from pathlib import Path

import pytest

from tests.absent import absent
from tools import environment

STAND_INS = environment.TOOLS / "stand_ins"


def pytest_configure(config):
    """How long an example takes is the machine's affair, which may be busy with other work."""
    if config.pluginmanager.has_plugin("hypothesispytest"):  # GPU machines may do without
        from hypothesis import HealthCheck, settings

        settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
        settings.load_profile("unhurried")


def pytest_collection_modifyitems(items):
    import torch

    if not torch.cuda.is_available():
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def comfy_environment():
    """tools/environment.py, once its ComfyUI is there. `python tools/test.py` makes it."""
    if not environment.COMFYUI.exists() or not environment.MODELS.exists():
        absent("no ComfyUI to test against: run python tools/test.py, which sets one up")
    return environment


@pytest.fixture(scope="session")
def start_comfy(comfy_environment, tmp_path_factory):
    """start_comfy(**options) starts a ComfyServer with this pack and the stand-in nodes; all are killed at the end."""
    from tools.server import ComfyServer

    running = []

    def start(packs=(), **options):
        linked = {environment.PACK_FOLDER: environment.ROOT, "stand_ins": STAND_INS}
        linked.update({Path(pack).name: pack for pack in packs})
        server = ComfyServer(tmp_path_factory.mktemp("comfyui"), packs=linked, **options)
        running.append(server.__enter__())
        return server

    yield start
    for server in running:
        server.__exit__()


@pytest.fixture(scope="session")
def comfy_server(start_comfy):
    """A ComfyServer that is up, shared by the session. Its prompts are cached: vary a seed to sample again.

    tests/comfy/nodes, where it exists, is linked in as one more node pack (probes that only tests need).
    """
    probes = Path(__file__).parent / "comfy" / "nodes"
    return start_comfy(packs=[probes] if probes.exists() else [])


@pytest.fixture(scope="session")
def chromium():
    """Path of the browser for tests/browser."""
    path = environment.chromium()
    if path is None:
        absent(environment.NO_BROWSER)
    return path
