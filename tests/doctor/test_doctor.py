"""The doctor's page as artists get it: from a process, on machines where something is missing or broken."""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest

# What stands for PyTorch: the real one takes seconds, and only these lines matter.
TORCH = """
class version: cuda = {cuda!r}; hip = None
__version__ = {release!r}
class cuda:
    def is_available(): return {available}
"""


@pytest.fixture
def pack(make_pack, tmp_path):
    """A copy of the pack in a folder under a home with a telling name. pack.torch("source") gives it a PyTorch."""
    made = make_pack("vc-attention")
    made.home = tmp_path / "jane.doe"
    made.home.mkdir()
    shutil.move(made.root.parents[1] / "custom_nodes", made.home / "custom_nodes")
    made.root = made.home / "custom_nodes" / "vc-attention"
    site = tmp_path / "site"
    (site / "torch").mkdir(parents=True)

    def torch(source):
        (site / "torch" / "__init__.py").write_text(source)

    def doctor(*arguments, **env):
        env = {"USER": "jane.doe", "USERNAME": "jane.doe", "PYTHONPATH": str(site), **env}
        return made._run([str(made.root / "vc_attention" / "doctor"), *arguments], env.pop("gpus", ""), env)

    made.torch, made.doctor, made.site = torch, doctor, str(site)
    torch(TORCH.format(cuda="13.0", release="2.11.0+cu130", available=False))
    return made


def bad(process):
    """Lines marked BAD, by what they are about."""
    assert process.returncode == 1, process.stdout + process.stderr
    lines = [line.strip().removeprefix("BAD").strip() for line in process.stdout.splitlines() if "  BAD " in line]
    assert lines, process.stdout
    for line in lines:
        assert re.search(r" -> \S.+$", line), f"no remedy: {line}"
    return {line.split(":")[0]: line for line in lines}


def test_without_a_gpu_it_says_so_and_how_to_go_on(pack):
    process = pack.doctor()
    found = bad(process)
    assert "driver" in found["NVIDIA driver"] and "torch" in found
    assert "Attention cannot be accelerated here" in process.stdout
    assert "doctor: looking at the machine" in process.stderr and "starting PyTorch" in process.stderr


def test_without_kernels_every_one_names_the_command(pack):
    found = bad(pack.doctor(gpus="9.0,12.0"))
    for name in ("selftest sm_90a", "selftest sm_120a"):
        assert "never built" in found[name] and '"<python>" "<pack>/install.py" and restart ComfyUI' in found[name]


def test_built_kernels_say_how_they_were_built(pack):
    assert pack.install(gpus="9.0").returncode == 0
    process = pack.doctor(gpus="9.0,12.0")
    built = r"ok   selftest sm_90a: by nvrtc [\d.]+: 1 kernel, at most \d+ registers, no spills"
    assert re.search(built, process.stdout)
    assert "selftest sm_120a" in bad(process)
    assert "GPU 0: Fake 0, compute capability 9.0" in process.stdout
    elsewhere = pack.doctor(gpus="12.0").stdout
    assert re.search(r"note selftest sm_90a: .*for no GPU here", elsewhere)


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"file": 3}', b'{"file": "../x", "unit": "selftest"}'])
def test_a_broken_cache_is_told(pack, damage):
    pack.install(gpus="9.0")
    for stamp in pack.kernels.glob("*.json"):
        stamp.write_bytes(damage)
    assert "selftest sm_90a" in bad(pack.doctor(gpus="9.0"))


def test_a_cut_kernel_and_one_that_vanished_are_told(pack):
    pack.install(gpus="9.0")
    (cubin,) = pack.kernels.glob("selftest-*.cubin")
    cubin.write_bytes(cubin.read_bytes()[:100])
    assert "damaged: 100 bytes" in bad(pack.doctor(gpus="9.0"))["selftest sm_90a"]
    cubin.unlink()
    assert "antivirus" in bad(pack.doctor(gpus="9.0"))["selftest sm_90a"]


def test_a_cache_that_is_a_file_is_told(pack):
    pack.kernels.parent.mkdir()
    pack.kernels.write_text("in the way")
    (pack.home / ".cache").write_text("here, too")
    found = bad(pack.doctor(gpus="9.0"))
    assert "folder for kernels" in found and "selftest sm_90a" in found


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('libtorch_cuda.so: cannot open shared object file')", "libtorch_cuda.so"),
        ("raise OSError('[WinError 126] c10.dll')", "c10.dll"),
        ("", "no attribute '__version__'"),
        ("import torch.nothing", "torch.nothing"),
        ("raise SystemExit(3)", "ended with 3"),
        ("import os; os.abort()", "ended with signal 6"),
        ("print('noise {'); __version__ = '2.11'", "no attribute 'version'"),
        (TORCH.format(cuda=None, release="2.13.0+cpu", available=False), "2.13.0+cpu, without CUDA"),
        (TORCH.format(cuda="12.1", release="2.3.1", available=True), "update PyTorch to 2.4"),
        (TORCH.format(cuda="13.0", release="2.11.0", available=False), "finds no GPU that it can use"),
    ],
)
def test_a_pytorch_that_does_not_work_is_told_in_its_own_words(pack, source, words):
    pack.torch(source)
    process = pack.doctor(gpus="9.0")
    found = bad(process)
    assert words in found.get("torch", "") + found.get("its process", "")
    assert "Kernels" in process.stdout, "the rest of the page is there all the same"


def test_a_pytorch_that_is_not_there(pack):
    pack.torch("raise ModuleNotFoundError(\"No module named 'torch'\")")
    assert "No module named 'torch'" in bad(pack.doctor())["torch"]


def test_the_page_tells_nobody_who_made_it(pack):
    pack.torch(f"raise ImportError({str(pack.home / 'lib.so')!r} + ' and ' + '/mnt/jane.doe/lib.so')")
    for arguments in ((), ("--json",)):
        process = pack.doctor(*arguments, gpus="9.0", CUDA_HOME=str(pack.home / "cuda"))
        assert "jane.doe" not in process.stdout and str(pack.home) not in process.stdout
        assert "~/lib.so and /mnt/<user>/lib.so" in process.stdout and "~/cuda" in process.stdout
        assert process.stdout.isascii()


def test_json_says_the_same_with_numbers(pack):
    pack.install(gpus="9.0")
    page, process = pack.doctor(gpus="9.0"), pack.doctor("--json", gpus="9.0")
    told = json.loads(process.stdout)
    assert process.returncode == 1 and told["accelerates"] is False
    assert {f["name"] for f in told["findings"] if f["state"] == "bad"} == set(bad(page))
    assert all(f["remedy"] for f in told["findings"] if f["state"] == "bad")
    (built,) = [f for f in told["findings"] if f["name"] == "selftest sm_90a"]
    assert built["data"]["resources"]["vc_selftest"]["registers"] > 0


def test_comfyui_is_found_without_importing_it(pack):
    assert "ComfyUI: none around" in pack.doctor().stdout
    (pack.home / "comfyui_version.py").write_text('raise SystemExit\n__version__ = "0.3.75"\n')
    assert "ok   ComfyUI: 0.3.75" in pack.doctor().stdout
    elsewhere = pack.home / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "comfyui_version.py").write_text('__version__ = "0.38.0"')
    assert "ok   ComfyUI: 0.38.0" in pack.doctor(COMFYUI_PATH=str(elsewhere)).stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the fake nvidia-smi is a shell script")
def test_nvidia_smi_adds_the_drivers_release_and_the_memory(pack, tmp_path):
    program = tmp_path / "bin" / "nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'Fake 0, 580.95.05, 32607 MiB, 575.00 W'\n")
    program.chmod(0o755)
    said = pack.doctor(gpus="12.0", PATH=str(program.parent)).stdout
    assert "NVIDIA driver: 580.95.05, runs CUDA 13.0" in said
    assert "GPU 0: Fake 0, compute capability 12.0, 32607 MiB, 575.00 W" in said
    program.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert "NVIDIA driver: release unknown, runs CUDA 13.0" in pack.doctor(gpus="12.0", PATH=str(program.parent)).stdout


def test_a_gpu_without_kernels_is_no_mistake_of_the_artist(pack):
    assert "the model's own attention is used" in bad(pack.doctor(gpus="7.5"))["GPU 0"]


@pytest.mark.parametrize("way", ["a folder, without the current one in sys.path", "a module"])
def test_both_ways_to_start_it(pack, way):
    started = ["-m", "vc_attention.doctor"] if way == "a module" else ["-I", str(pack.root / "vc_attention" / "doctor")]
    process = pack._run(started, "", {"PYTHONPATH": pack.site})
    assert "doctor's page" in process.stdout and "this check" not in bad(process)
