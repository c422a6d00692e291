"""Finding compilers in faked environments, and the table of who may compile what."""

import sys
from pathlib import Path

import pytest

from vc_attention.build import cache, compilers, diagnose, kernels, ninja, preflight, toolchain
from vc_attention.build.nvrtc import CompileError
from vc_attention.build.tasks import Task
from vc_attention.build.toolchain import Nvcc, Toolchain
from vc_attention.build.units import UNITS

TASK = {arch: Task(UNITS["selftest"], arch) for arch in ("80", "89", "90a", "120a", "121a")}


def program(path: Path, says: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return path


def nvcc(root: Path, version: str) -> Path:
    return program(root / "bin" / "nvcc", f"Cuda compilation tools, release {version}, V{version}.99")


@pytest.fixture(autouse=True)
def no_system_toolkit(monkeypatch):
    """Only what a test puts there is found."""
    real = toolchain._nvcc_places
    monkeypatch.setattr(
        toolchain, "_nvcc_places", lambda *a: [(o, p) for o, p in real(*a) if not str(p).startswith("/usr/local")]
    )


def probe(tmp_path, packages=(), **env):
    return toolchain.probe(
        env={"PATH": str(tmp_path / "path"), **env}, platform="linux", path=[str(p) for p in packages]
    )


def test_nothing_is_there(tmp_path):
    tools = probe(tmp_path)
    assert (tools.nvccs, tools.host_compiler, tools.pybind11) == ([], None, None)


def test_a_bogus_cuda_home_is_noted_and_the_next_place_used(tmp_path):
    nvcc(tmp_path / "real toolkit", "12.8")
    tools = probe(tmp_path, CUDA_HOME=str(tmp_path / "gone"), CUDA_PATH=str(tmp_path / "real toolkit"))
    assert [found.release for found in tools.nvccs] == ["12.8.99"]
    assert tools.notes[0] == f"CUDA_HOME points to {tmp_path / 'gone' / 'bin' / 'nvcc'}, which is not there"


def test_an_nvcc_that_does_not_run_or_says_nothing_is_noted(tmp_path):
    program(tmp_path / "silent" / "bin" / "nvcc", "hello")
    broken = tmp_path / "broken" / "bin" / "nvcc"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"\x7fELF")
    broken.chmod(0o755)
    tools = probe(tmp_path, CUDA_HOME=str(tmp_path / "silent"), CUDA_PATH=str(tmp_path / "broken"))
    assert tools.nvccs == []
    assert "does not say its version" in tools.notes[0] and "does not run" in tools.notes[1]


def test_the_toolkit_of_wheels_is_found(tmp_path):
    nvcc(tmp_path / "site" / "nvidia" / "cu13", "13.0")
    (tmp_path / "site" / "pybind11" / "include").mkdir(parents=True)
    tools = probe(tmp_path, packages=[tmp_path / "site"])
    assert tools.nvccs[0].version == (13, 0)
    assert tools.pybind11 == tmp_path / "site" / "pybind11" / "include"


def test_an_nvrtc_that_does_not_load_is_noted(tmp_path):
    library = tmp_path / "site" / "nvidia" / "cu13" / "lib" / "libnvrtc.so.13"
    library.parent.mkdir(parents=True)
    library.write_text("quarantined")
    (library.parent / "libnvrtc-builtins.so.13.0").write_text("")
    tools = probe(tmp_path, packages=[tmp_path / "site"])
    assert any(f"{library} does not load" in note for note in tools.notes)
    assert not any("builtins" in note for note in tools.notes)


@pytest.mark.parametrize(
    ("names", "newest"),
    [
        (["nvrtc64_120_0.dll", "nvrtc64_130_0.dll", "nvrtc64_112_0.dll"], "nvrtc64_130_0.dll"),
        (["libnvrtc.so.12", "libnvrtc.so.13", "libnvrtc-b51b459d.so.12"], "libnvrtc.so.13"),
    ],
)
def test_the_newest_nvrtc_is_tried_first(names, newest):
    assert max(map(Path, names), key=toolchain._nvrtc_number).name == newest


def test_windows_places(tmp_path):
    (tmp_path / "site" / "torch" / "lib").mkdir(parents=True)
    (tmp_path / "site" / "torch" / "lib" / "nvrtc64_120_0.dll").write_text("")
    (tmp_path / "site" / "torch" / "lib" / "nvrtc-builtins64_128.dll").write_text("")
    (tmp_path / "site" / "nvidia" / "cu13" / "bin" / "x86_64").mkdir(parents=True)
    (tmp_path / "site" / "nvidia" / "cu13" / "bin" / "x86_64" / "nvrtc64_130_0.dll").write_text("")
    (tmp_path / "CUDA" / "bin").mkdir(parents=True)
    places = toolchain._nvrtc_places({"CUDA_PATH": str(tmp_path / "CUDA")}, "win32", [tmp_path / "site"])
    assert [place.name for _, place in places] == ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    assert toolchain._host_compilers({"CXX": "g++"}, "win32") == ["cl"]
    usual = tmp_path / "NVIDIA GPU Computing Toolkit" / "CUDA"
    for version in ("v12.4", "v13.0"):
        (usual / version).mkdir(parents=True)
    nvccs = [place for _, place in toolchain._nvcc_places({"ProgramFiles": str(tmp_path)}, "win32", [])]
    assert nvccs == [usual / "v13.0" / "bin" / "nvcc.exe", usual / "v12.4" / "bin" / "nvcc.exe"]


class FakeNvrtc:
    def __init__(self, *version):
        self.version, self.path = version, Path("libnvrtc.so")


def tools(*versions, ninja_path="/usr/bin/ninja", host="/usr/bin/g++", nvrtcs=()):
    nvccs = [Nvcc(f"/cuda{major}.{minor}/nvcc", (major, minor), f"{major}.{minor}.1") for major, minor in versions]
    return Toolchain(nvccs, [FakeNvrtc(*v) for v in nvrtcs], host, ninja_path)


@pytest.mark.parametrize(
    ("toolkit", "driver", "known"),
    [
        ((11, 8), (12, 8), {"80", "89"}),
        ((12, 4), (12, 8), {"80", "89", "90a"}),
        ((12, 8), (13, 0), {"80", "89", "90a", "120a"}),
        ((13, 0), (13, 0), {"80", "89", "90a", "120a", "121a"}),
        ((13, 0), (12, 8), set()),  # its cubins would not load
        ((13, 0), None, {"80", "89", "90a", "120a", "121a"}),  # built for elsewhere
    ],
)
def test_toolkit_driver_and_target_are_judged_before_compiling(toolkit, driver, known):
    usable, refused = compilers.available(tools(toolkit), "auto", driver)
    given, homeless = compilers.assign(list(TASK.values()), usable)
    assert {task.arch for share in given.values() for task in share} == known
    assert {task.arch for task in homeless} == set(TASK) - known
    assert bool(refused) == (not known)
    for reasons in homeless.values():
        assert all("needs CUDA" in reason for reason in reasons)


def test_an_old_toolkit_leaves_new_gpus_to_nvrtc():
    usable, _ = compilers.available(tools((12, 4), nvrtcs=[(13, 0)]), "auto", (13, 0))
    given, homeless = compilers.assign([TASK["90a"], TASK["120a"]], usable)
    assert {compiler.id: [task.arch for task in share] for compiler, share in given.items()} == {
        "nvcc 12.4.1": ["90a"],
        "nvrtc 13.0": ["120a"],
    }
    assert homeless == {}


@pytest.mark.parametrize("missing", [{"ninja_path": None}, {"host": None}])
def test_without_ninja_or_a_cxx_compiler_nvcc_is_not_used(missing):
    usable, _ = compilers.available(tools((13, 0), nvrtcs=[(13, 0)], **missing), "auto", None)
    assert [compiler.kind for compiler in usable] == ["nvrtc"]


def test_a_wanted_kind_excludes_the_other():
    both = tools((13, 0), nvrtcs=[(13, 0)])
    assert [c.kind for c in compilers.available(both, "nvrtc", None)[0]] == ["nvrtc"]
    assert [c.kind for c in compilers.available(both, "nvcc", None)[0]] == ["nvcc"]


def test_the_preflight_lists_every_missing_part_with_one_remedy(monkeypatch):
    monkeypatch.setattr(preflight, "_writable", lambda: "")
    monkeypatch.setattr(preflight, "_temporary", lambda: "")
    parts = preflight.parts(Toolchain(), [], "no driver")
    lines = preflight.lines(parts, ["CUDA_HOME points nowhere"])
    assert len(lines) == len(parts) + 1
    for name in ("GPU", "NVRTC", "nvcc", "ninja", "C++ compiler", "pybind11", "Python.h", "temporary folder"):
        line = next(line for line in lines if line.startswith(f"missing  {name} "))
        assert line.split("): ", 1)[1], "a remedy"
    assert sys.executable in next(line for line in lines if "pip install ninja" in line)
    assert lines[-1] == "note     CUDA_HOME points nowhere"


def test_build_ninja_has_one_input_for_each_command():
    edges = [
        ninja.Edge(f"u-sm_{a}.cubin", "u.cu", ("/a b/nv'cc\"$x", "-arch", a, "-o", f"u-sm_{a}.cubin", "u.cu"))
        for a in TASK
    ]
    lines = ninja.render(edges, "linux").splitlines()
    builds = [line for line in lines if line.startswith("build ")]
    commands = [line for line in lines if line.startswith("  line = ")]
    assert builds == [f"build u-sm_{a}.cubin: run u.cu" for a in TASK]
    for command in commands:
        assert command.count(" u.cu") == 1
        assert "$$x" in command and "'/a b/nv'" in command
    windows = ninja.render([ninja.Edge("o", "i", ("C:\\Program Files\\nvcc.exe", "i"))], "win32")
    assert '  line = "C:\\Program Files\\nvcc.exe" i' in windows
    with pytest.raises(CompileError, match="line break"):
        ninja.render([ninja.Edge("o", "i", ("a\nb",))])


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("nvcc fatal   : Cannot find compiler 'cl.exe' in PATH", "cl.exe is not on PATH"),
        ("cl : Command line warning D9002 : ignoring unknown option '-fopenmp'", "does not know a flag"),
        ("g++: error: unrecognized command-line option '-lgomp2'", "does not know a flag"),
        ("#error -- unsupported GNU version! gcc versions later than 15", "so new a C++ compiler"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120a'", "does not know the GPU"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "MAX_JOBS=1"),
        ("ptxas error : Feature 'cvt with .e2m1x2' not supported on .target 'sm_120'", "lacks"),
        ("csrc/sm90/k.cu(3): error: identifier undefined", "does not compile"),
        ("", "did not say why"),
    ],
)
def test_a_log_gets_a_cause(log, said):
    assert said in diagnose.cause(log)


@pytest.mark.parametrize(("code", "text"), [(3221226505, "0xC0000409"), (-11, "signal 11"), (1, "1")])
def test_exit_codes_read_as_people_search_for_them(code, text):
    assert diagnose.exit_code(code) == text


@pytest.mark.parametrize(("kind", "needs"), [("nvcc", "real_path"), ("nvrtc", "nvrtc")])
def test_a_full_disk_stops_the_rest(kind, needs, folders, monkeypatch, request):
    """Neither compiler goes on when what it made cannot be kept."""
    monkeypatch.undo()
    request.getfixturevalue(needs)
    monkeypatch.setattr(cache, "folders", lambda: folders)
    usable, _ = compilers.available(toolchain.probe(), kind, None)
    stored = []

    def store(name, *_):
        stored.append(name)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "store", store)
    with pytest.raises(OSError, match="No space left"):
        kernels.build(list(TASK.values()), usable[:1], lambda _: None)
    assert len(stored) == 1
    assert not list(folders[0].glob(".build-*"))


EDGES = {
    "good": "echo > good.out",
    "bad": "echo the reason >&2; exit 3",
    "late": "echo a warning; echo > late.out",
}


def test_a_failing_edge_does_not_stop_the_others(folders):
    tools = toolchain.probe()
    outcomes = {}
    edges = [ninja.Edge(f"{name}.out", "in", ("sh", "-c", script)) for name, script in EDGES.items()]
    with compilers.Scratch() as folder:
        (folder / "in").write_text("")
        ninja.run(tools.ninja, folder, edges, 1, lambda edge, ok, log, _: outcomes.update({edge.output: (ok, log)}))
    assert outcomes["good.out"][0] and outcomes["late.out"][0]
    assert not outcomes["bad.out"][0] and "the reason" in outcomes["bad.out"][1]
    assert "warning" in outcomes["late.out"][1]
