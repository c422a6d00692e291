"""Parameter structs of kernels, packed as C packs them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import Any

from .errors import ParameterError

_CODES = {  # C type -> struct code; alignment equals size
    "ptr": "Q", "i64": "q", "u64": "Q", "f64": "d",
    "i32": "i", "u32": "I", "f32": "f",
    "i16": "h", "u16": "H", "i8": "b", "u8": "B",
}  # fmt: skip


class Params:
    """A kernel's parameter struct: its fields in C's order, with C's alignment.

    A field is `name="i32"` (ptr, i8..i64, u8..u64, f32, f64), an array `name="i64[3]"` or another struct `name=VIEW`
    (a Params). A ptr takes an address, a tensor or None; an array a sequence; a struct its packed bytes.
    """

    def __init__(self, **fields: str | Params) -> None:
        self._fields: dict[str, tuple[str, int]] = {}  # name -> (struct code of one element, length or 0)
        self._pointers: set[str] = set()
        code, self.size, self.alignment = "<", 0, 1
        for name, declaration in fields.items():
            letter, length, size, alignment = self._declare(name, declaration)
            padding = -self.size % alignment
            code += f"{padding}x{length}{letter}" if length else f"{padding}x{letter}"
            self.size += padding + size * (length or 1)
            self.alignment = max(self.alignment, alignment)
            self._fields[name] = (letter, length)
        padding = -self.size % self.alignment
        self.size += padding
        self._struct = struct.Struct(f"{code}{padding}x")

    def _declare(self, name: str, declaration: str | Params) -> tuple[str, int, int, int]:
        if isinstance(declaration, Params):
            return f"{declaration.size}s", 0, declaration.size, declaration.alignment
        match = re.fullmatch(r"(\w+)(?:\[([1-9]\d*)\])?", declaration)
        if match is None or match[1] not in _CODES:
            rule = f"one of {', '.join(_CODES)}, or an array of it"
            raise ParameterError(name, rule, declaration, "write as in 'i32' or 'i64[3]'")
        if match[1] == "ptr":
            self._pointers.add(name)
        letter = _CODES[match[1]]
        size = struct.calcsize(f"<{letter}")
        return letter, int(match[2] or 0), size, size

    def pack(self, **values: Any) -> bytes:
        """The struct as `size` bytes, from a value for every field. ParameterError names the one that is wrong."""
        if values.keys() != self._fields.keys():
            odd = sorted(values.keys() ^ self._fields.keys())
            raise ParameterError("values", f"the fields {', '.join(self._fields)}", odd, "give each of them once")
        flat: list[Any] = []
        for name in self._fields:
            flat += self._items(name, values[name])
        try:
            return self._struct.pack(*flat)
        except struct.error as error:
            raise self._misfit(values, error) from error

    def _items(self, name: str, value: Any) -> Iterable[Any]:
        letter, length = self._fields[name]
        items = tuple(value) if length else (value,)
        if length and len(items) != length:
            raise ParameterError(name, f"{length} values", len(items), "give as many as the struct has")
        if letter.endswith("s") and len(value) != int(letter[:-1]):
            # struct would cut or fill it, silently.
            raise ParameterError(name, f"{letter[:-1]} bytes", len(value), "pack it with its own Params")
        return [_address(item) for item in items] if name in self._pointers else items

    def _misfit(self, values: dict[str, Any], error: struct.error) -> ParameterError:
        for name, (letter, _) in self._fields.items():
            for item in self._items(name, values[name]):
                try:
                    struct.pack(f"<{letter}", item)
                except struct.error as reason:
                    return ParameterError(name, "a value that its C type holds", item, str(reason))
        return ParameterError("values", "what the struct holds", values, str(error))


def _address(pointer: Any) -> int:
    if pointer is None:
        return 0
    return pointer if isinstance(pointer, int) else pointer.data_ptr()
