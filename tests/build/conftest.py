"""Fixtures of the build room: a driver without a GPU, and copies of the pack to install in odd places."""

import ctypes
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.absent import absent
from vc_attention import driver, launch, launchers
from vc_attention.build import cache, compilers, extension, kernels, toolchain
from vc_attention.build.tasks import Task
from vc_attention.build.units import UNITS

PACK = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def nvrtc():
    """NVRTC as the installer finds it."""
    if sys.platform == "darwin":
        pytest.skip("there is no NVRTC for macOS")
    libraries = toolchain.probe().nvrtcs
    assert libraries, "no NVRTC: pip install nvidia-cuda-nvrtc"
    return libraries[0]


@pytest.fixture(scope="session")
def gcc():
    """The C compiler, where what it makes is what the tests expect: a shared library of Linux."""
    program = shutil.which("gcc")
    return program if program and sys.platform == "linux" else absent("needs gcc on Linux")


@pytest.fixture(scope="session")
def fake_driver_folder(gcc, tmp_path_factory):
    """A folder with a libcuda.so.1 made of fake_driver.c."""
    folder = tmp_path_factory.mktemp("driver")
    command = [gcc, "-shared", "-fPIC", "-O1", "-o", str(folder / "libcuda.so.1"), "fake_driver.c", "-lm"]
    subprocess.run(command, cwd=Path(__file__).parent, check=True)
    return folder


@pytest.fixture
def fake_driver(fake_driver_folder, tmp_path, monkeypatch):
    """This process sees GPUs 9.0, 8.6 and 12.0 through the fake driver, and starts with nothing loaded."""
    monkeypatch.setenv("FAKE_GPUS", "9.0,8.6,12.0")
    # A copy has state of its own.
    library = str(shutil.copy(fake_driver_folder / "libcuda.so.1", tmp_path / "libfake.so"))
    driver.load.cache_clear()
    cuda = driver.load(library)
    monkeypatch.setattr(driver, "load", lambda: cuda)
    monkeypatch.setattr(launch, "choose", lambda: launchers.CtypesLauncher(library, "tests ask for ctypes"))
    launch.missing.cache_clear()
    monkeypatch.setattr(launch, "_modules", {})
    monkeypatch.setattr(launch, "_kernels", {})
    return ctypes.CDLL(library)


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Empty cache folders: the pack's and the user's."""
    pair = [tmp_path / "pack" / "kernels", tmp_path / "user" / "kernels"]
    monkeypatch.setattr(cache, "folders", lambda: pair)
    return pair


@pytest.fixture
def built(folders, nvrtc):
    """built("90a") compiles the self-test unit for a target into the cache; returns its entry."""

    def build(arch):
        task = Task(UNITS["selftest"], arch)
        said = []
        failed = kernels.build([task], [compilers.NvrtcCompiler(nvrtc)], said.append)
        assert not failed, said
        return cache.find(task.name, **launch.identity(task.unit, task.arch))

    return build


class Pack:
    """A copy of what an install needs, and a way to run it as ComfyUI-Manager does."""

    def __init__(self, root: Path, home: Path, driver_folder: Path, all_units: bool) -> None:
        self.root, self.home, self._driver = root, home, driver_folder
        for part in ("install.py", "csrc", "vc_attention"):
            source = PACK / part
            copy = shutil.copytree if source.is_dir() else shutil.copy
            copy(source, root / part, **({"ignore": shutil.ignore_patterns("__pycache__")} if source.is_dir() else {}))
        if not all_units:
            # How an install behaves does not depend on how much there is to compile.
            with (root / "vc_attention" / "build" / "units.py").open("a") as units:
                units.write('\nUNITS = {"selftest": UNITS["selftest"]}\n')

    @property
    def kernels(self) -> Path:
        return self.root / ".cache" / "kernels"

    def install(self, *arguments, gpus="", flags=(), **env):
        """Run install.py with no compiler on PATH unless `env` gives one; returns the finished process."""
        return self._run([*flags, "install.py", *arguments], gpus, env)

    def python(self, code, *arguments, gpus="", flags=(), **env):
        """Run Python code beside this copy."""
        return self._run([*flags, "-c", code, *arguments], gpus, env)

    def _run(self, arguments, gpus, env):
        env = {"HOME": str(self.home), "USERPROFILE": str(self.home), "PATH": "", **env}
        if gpus:
            env |= {"LD_LIBRARY_PATH": str(self._driver), "FAKE_GPUS": gpus}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture
def make_pack(tmp_path, fake_driver_folder):
    """make_pack("folder name") copies the pack there, with the self-test as its one unit unless `all_units`."""

    def make(name="pack", all_units=False):
        root = tmp_path / "custom_nodes" / name
        root.mkdir(parents=True)
        return Pack(root, tmp_path / "home", fake_driver_folder, all_units)

    return make


@pytest.fixture(scope="session")
def real_path():
    """The PATH of this machine, for the tests that want its compilers."""
    found = toolchain.probe()
    if not (found.nvccs and not extension.lacking(found)):
        absent("needs nvcc, ninja, a C++ compiler and Python's headers")
    return os.environ["PATH"]


@pytest.fixture(scope="session")
def compiled_module(tmp_path_factory):
    """The folder pair in which the compiled launcher was built, once for all tests (about 20 s)."""
    folder = tmp_path_factory.mktemp("launcher")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "folders", lambda: [folder])
        tools = toolchain.probe()
        if lacking := extension.lacking(tools):
            absent(f"needs {', '.join(lacking)}")
        assert extension.build(tools) is None
        assert extension.built()
    return folder
