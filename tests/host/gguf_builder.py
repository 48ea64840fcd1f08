"""Writes GGUF files byte by byte, so that any field can be wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

(UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64) = range(13)
FORMATS = {
    UINT8: "<B",
    INT8: "<b",
    UINT16: "<H",
    INT16: "<h",
    UINT32: "<I",
    INT32: "<i",
    FLOAT32: "<f",
    BOOL: "<B",
    UINT64: "<Q",
    INT64: "<q",
    FLOAT64: "<d",
}
F32, Q4_0, Q2_K, Q4_K, I32 = 0, 2, 10, 12, 26


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def text(value: str | bytes, length: int | None = None) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return u64(len(data) if length is None else length) + data


def array(kind: int, items: list, length: int | None = None) -> bytes:
    """The payload of an array; items of arrays are payloads themselves."""
    head = u32(kind) + u64(len(items) if length is None else length)
    return head + b"".join(item if kind == ARRAY else payload(kind, item) for item in items)


def payload(kind: int, value) -> bytes:
    if kind == STRING:
        return text(value)
    return value if kind == ARRAY else struct.pack(FORMATS[kind], value)


def entry(key: str | bytes, kind: int, value) -> bytes:
    return text(key) + u32(kind) + payload(kind, value)


@dataclass
class Tensor:
    """One tensor: every field as the file gets it, and data that is laid out by :class:`File`."""

    name: str | bytes
    ne: tuple[int, ...]
    kind: int
    data: bytes
    offset: int | None = None
    n_dims: int | None = None

    def info(self, offset: int) -> bytes:
        rank = len(self.ne) if self.n_dims is None else self.n_dims
        dims = b"".join(u64(n) for n in self.ne)
        return text(self.name) + u32(rank) + dims + u32(self.kind) + u64(offset)


@dataclass
class File:
    """A file: entries as bytes, tensors, and header fields to override."""

    entries: list[bytes] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    alignment: int = 32
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    entry_count: int | None = None

    def header(self) -> bytes:
        infos, offset = [], 0
        for tensor in self.tensors:
            infos.append(tensor.info(offset if tensor.offset is None else tensor.offset))
            offset += -(-len(tensor.data) // self.alignment) * self.alignment
        counts = u64(len(self.tensors) if self.tensor_count is None else self.tensor_count)
        counts += u64(len(self.entries) if self.entry_count is None else self.entry_count)
        return self.magic + u32(self.version) + counts + b"".join(self.entries + infos)

    def padded(self, data: bytes) -> bytes:
        return data.ljust(-(-len(data) // self.alignment) * self.alignment, b"\0")

    def data_begin(self) -> int:
        return len(self.padded(self.header()))

    def build(self) -> bytes:
        data = [self.padded(tensor.data) for tensor in self.tensors[:-1]]
        data += [tensor.data for tensor in self.tensors[-1:]]
        return self.padded(self.header()) + b"".join(data)


def small_file() -> File:
    """One of everything: all thirteen value types, arrays within arrays, three tensors."""
    nested = array(ARRAY, [array(UINT8, [1, 2]), array(STRING, ["x", ""])])
    entries = [
        entry("general.architecture", STRING, "test"),
        entry("general.alignment", UINT32, 64),
        *(entry(f"kind.{kind}", kind, 1) for kind in FORMATS),
        entry("kind.text", STRING, "\N{GREEK SMALL LETTER ALPHA}"),
        entry("kind.array", ARRAY, array(INT32, [-1, 0, 1])),
        entry("kind.strings", ARRAY, array(STRING, ["a", "bc", ""])),
        entry("kind.nested", ARRAY, nested),
        entry("kind.empty", ARRAY, array(STRING, [])),
        entry("kind.bools", ARRAY, array(BOOL, [0, 1])),
    ]
    tensors = [
        Tensor("a.weight", (4, 3), F32, struct.pack("<12f", *range(12))),
        Tensor("b.weight", (256, 2), Q4_K, bytes(range(144)) * 2),
        Tensor("c", (5,), I32, struct.pack("<5i", *range(5))),
    ]
    return File(entries, tensors, alignment=64)
