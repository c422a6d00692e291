"""The flat text of a unit: what both compilers get and what a cubin is known by."""

import pytest

from tests.gpu import emulated
from vc_attention import launch
from vc_attention.build import cache, compilers, kernels, source
from vc_attention.build.nvrtc import CompileError
from vc_attention.build.tasks import Task
from vc_attention.build.units import UNITS


@pytest.fixture
def csrc(tmp_path):
    """write(path, text) puts a file into a csrc of its own; .folder is it."""

    def write(path, text):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text.encode())
        return tmp_path

    return write


def test_headers_are_put_in_once_and_messages_name_their_files(csrc, nvrtc):
    csrc("common/a.cuh", "#pragma once\n__device__ int a() { return 1; }\n")
    csrc("sm90/b.cuh", '#pragma once\n#include "common/a.cuh"\n__device__ int b() { return a(); }\n')
    folder = csrc(
        "sm90/k.cu",
        '#include "b.cuh"\n#include "../common/a.cuh"\nextern "C" __global__ void k(int* o) { *o = b(); wrong; }\n',
    )
    text = source.flatten("sm90/k.cu", folder)
    assert text.count("int a()") == 1
    assert "#include" not in text
    with pytest.raises(CompileError, match=r"csrc/sm90/k\.cu\(3\): error: identifier \"wrong\""):
        nvrtc.compile(text, "sm90/k.cu", "90a", ())


def test_the_hash_covers_every_header_and_no_line_endings(csrc):
    csrc("common/a.cuh", "#pragma once\nint x;\n")
    folder = csrc("k.cu", '#include "common/a.cuh"\nint y;\n')
    first = source.sha256(source.flatten("k.cu", folder))
    csrc("k.cu", '#include "common/a.cuh"\r\nint y;\r\n')
    assert source.sha256(source.flatten("k.cu", folder)) == first
    csrc("common/a.cuh", "#pragma once\nint z;\n")
    assert source.sha256(source.flatten("k.cu", folder)) != first


def test_what_is_outside_csrc_is_refused_with_file_and_line(csrc):
    folder = csrc("k.cu", "\n#include <cstdint>\n")
    with pytest.raises(source.SourceError, match=r"csrc/k\.cu:2: <cstdint> comes from outside csrc/"):
        source.flatten("k.cu", folder)
    csrc("k.cu", '#include "../../etc/passwd"\n')
    with pytest.raises(source.SourceError, match=r'csrc/k\.cu:1: "../../etc/passwd" is neither'):
        source.flatten("k.cu", folder)
    with pytest.raises(source.SourceError, match="install it again"):
        source.flatten("gone.cu", folder)


def test_every_source_file_is_a_unit():
    files = {path.relative_to(source.CSRC).as_posix() for path in source.CSRC.rglob("*.cu")}
    assert files == {unit.source for unit in (*UNITS.values(), *emulated.UNITS.values())}


def test_a_stamp_speaks_of_the_text_that_was_compiled(folders, nvrtc, monkeypatch):
    """Somebody saves a header while the compiler runs."""
    task = Task(UNITS["selftest"], "90a")
    compiled = source.flatten(task.unit.source)

    class Slow(compilers.NvrtcCompiler):
        def compile(self, tasks, jobs, report):
            super().compile(tasks, jobs, report=lambda outcome: (edit(), report(outcome)))

    def edit():
        monkeypatch.setattr(source, "flatten", lambda *_: compiled + "// edited\n")

    assert kernels.build([task], [Slow(nvrtc)], lambda _: None) == []
    with pytest.raises(cache.CacheMiss, match="differs in source"):
        cache.find(task.name, **launch.identity(task.unit, task.arch))
    assert cache.entries()[0]["source"] == source.sha256(compiled)
