"""Params against the C compiler: same size, same bytes."""

import ctypes
import subprocess

import pytest

from vc_attention.build import selftest
from vc_attention.errors import ParameterError
from vc_attention.params import Params

VIEW = Params(data="ptr", stride="i64[4]", heads="i32")

LAYOUT = Params(
    tiny="i8", view=VIEW, byte="u8", short="i16", word="u32", scale="f32", wide="f64", many="u16[3]", last="u8"
)

C = """
#include <string.h>
typedef struct { const void* data; long long stride[4]; int heads; } View;
typedef struct { signed char tiny; View view; unsigned char byte; short shorty; unsigned word; float scale; double wide;
                 unsigned short many[3]; unsigned char last; } All;
int size(void) { return sizeof(All); }
void fill(char* out) {
    All a; memset(&a, 0, sizeof a);
    a.tiny = -3; a.view.data = (void*)0x1234567890ULL; a.view.heads = 40; a.byte = 250; a.shorty = -30000;
    for (int i = 0; i < 4; i++) a.view.stride[i] = -(1LL << (40 + i));
    a.word = 4000000000u; a.scale = 0.1f; a.wide = 0.1; a.many[0] = 1; a.many[1] = 2; a.many[2] = 65535; a.last = 9;
    memcpy(out, &a, sizeof a);
}
"""


class Tensor:
    """Has an address, as a torch tensor has."""

    def data_ptr(self):
        return 0x1234567890


def values(**changed):
    view = VIEW.pack(data=Tensor(), stride=[-(1 << (40 + i)) for i in range(4)], heads=40)
    return {
        "tiny": -3, "view": view, "byte": 250, "short": -30000, "word": 4_000_000_000, "scale": 0.1, "wide": 0.1,
        "many": (1, 2, 65535), "last": 9, **changed,
    }  # fmt: skip


def test_packed_bytes_are_those_of_c(gcc, tmp_path):
    (tmp_path / "s.c").write_text(C)
    subprocess.run([gcc, "-shared", "-fPIC", "-o", tmp_path / "s.so", tmp_path / "s.c"], check=True)
    library = ctypes.CDLL(str(tmp_path / "s.so"))
    assert LAYOUT.size == library.size()
    out = ctypes.create_string_buffer(LAYOUT.size)
    library.fill(out)
    assert LAYOUT.pack(**values()) == out.raw


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"word": -1}, "word"), ({"tiny": 128}, "tiny"), ({"short": 1.5}, "short"), ({"many": (1, 2)}, "many"),
        ({"view": b"short"}, "view"), ({"many": (1, 2, 70000)}, "many"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_named(changed, named):
    with pytest.raises(ParameterError) as caught:
        LAYOUT.pack(**values(**changed))
    assert caught.value.parameter == named


def test_fields_must_be_exactly_those_declared():
    with pytest.raises(ParameterError, match=r"got \['extra'\]"):
        LAYOUT.pack(**values(extra=1))
    missing = values()
    del missing["last"]
    with pytest.raises(ParameterError, match=r"got \['last'\]"):
        LAYOUT.pack(**missing)


@pytest.mark.parametrize("declaration", ["int", "i32[0]", "f16", "i32 "])
def test_an_unknown_type_is_refused_when_declared(declaration):
    with pytest.raises(ParameterError, match="one of ptr"):
        Params(x=declaration)


def test_a_null_pointer_is_none():
    assert Params(p="ptr").pack(p=None) == bytes(8)


def test_the_self_test_struct_has_holes_that_a_wrong_packer_would_miss():
    assert selftest.LAYOUT.size == 32
