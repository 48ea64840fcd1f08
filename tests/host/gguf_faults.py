"""Malformed GGUF files, one fault each, for every field of the format.

`python -m host.gguf_faults DIR`, from tests/, writes them to a folder.

The kinds that broke other readers are among them: counts and lengths that wrap when multiplied (CVE-2024-21802,
CVE-2024-21825, CVE-2024-21836, CVE-2024-23496, CVE-2024-23605, CVE-2025-53630, CVE-2026-27940), shapes whose bytes wrap
(CVE-2026-33298), an alignment of zero or of the wrong type, more dimensions than a reader has room for, a zero
dimension, and unknown types that index a table.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path

from host.gguf_builder import (
    ARRAY,
    BOOL,
    F32,
    FLOAT32,
    INT32,
    Q4_0,
    Q4_K,
    STRING,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    File,
    Tensor,
    array,
    entry,
    small_file,
    text,
    u32,
    u64,
)

MOST = 2**64 - 1
WILD = (2**31, 2**32 - 1, 2**32, 2**61, 2**62, 2**63 - 1, 2**63, MOST - 7, MOST)


@dataclasses.dataclass
class Fault:
    """A file and the field that the error must name."""

    name: str
    data: bytes
    field: str


def with_entry(bytes_of_entry: bytes) -> bytes:
    return File(entries=[bytes_of_entry]).build()


def with_tensor(tensor: Tensor, **header: object) -> bytes:
    return File(tensors=[tensor], **header).build()


def f32(name: str | bytes = "w", n: int = 8, **fields: object) -> Tensor:
    return Tensor(name, (n,), F32, bytes(4 * n), **fields)


def header_faults() -> Iterator[Fault]:
    good = small_file()
    yield Fault("empty", b"", "magic")
    yield Fault("magic", dataclasses.replace(good, magic=b"GGML").build(), "magic")
    yield Fault("magic-swapped", dataclasses.replace(good, magic=b"FUGG").build(), "magic")
    for version in (0, 1, 4, 2**32 - 1, 0x02000000, 0x03000000):
        yield Fault(f"version-{version}", dataclasses.replace(good, version=version).build(), "version")
    for count in (*WILD, 262_145, 10**6):
        data = dataclasses.replace(good, tensor_count=count).build()
        yield Fault(f"tensor-count-{count}", data, "tensor_count")
        data = dataclasses.replace(good, entry_count=count).build()
        yield Fault(f"entry-count-{count}", data, "metadata_kv_count")
    # Small enough for the rest of the file, and too large for what is there: the next thing is read as an entry.
    high = File([entry("a", UINT8, 1)], entry_count=2).header() + b"\xff" * 64
    yield Fault("entry-count-high", high, "metadata[1].key")
    # Room for as many in the file, but more than are read.
    yield Fault(
        "tensor-count-limit", File(tensor_count=262_145).build() + bytes(32 * 262_145), "tensor_count"
    )
    yield Fault(
        "entry-count-limit", File(entry_count=65_537).build() + bytes(13 * 65_537), "metadata_kv_count"
    )


def metadata_faults() -> Iterator[Fault]:
    for length in (*WILD, 65_536):
        wild = text("key", length) + u32(UINT8) + b"\1"
        yield Fault(f"key-length-{length}", with_entry(wild), "metadata[0].key")
    yield Fault("key-limit", with_entry(entry("k" * 65_536, UINT8, 1)), "metadata[0].key")
    for name, key in {
        "lone": b"\xff",
        "cut": b"a\xc3",
        "overlong": b"\xc0\x80",
        "overlong-3": b"\xe0\x80\x80",
        "overlong-4": b"\xf0\x80\x80\x80",
        "surrogate": b"\xed\xa0\x80",
        "past-the-end": b"\xf4\x90\x80\x80",
        "continuation": b"\x80",
    }.items():
        yield Fault(f"key-utf8-{name}", with_entry(entry(key, UINT8, 1)), "metadata[0].key")
    for kind in (13, 14, 255, 2**31, 2**32 - 1):
        yield Fault(f"value-type-{kind}", with_entry(text("k") + u32(kind) + bytes(8)), 'metadata["k"].type')
    for length in WILD:
        wild = text("k") + u32(STRING) + text("abc", length)
        yield Fault(f"string-length-{length}", with_entry(wild), 'metadata["k"].length')
    for value in (2, 255):
        yield Fault(f"bool-{value}", with_entry(entry("k", BOOL, value)), 'metadata["k"].value')
        yield Fault(
            f"bools-{value}", with_entry(entry("k", ARRAY, array(BOOL, [0, value]))), 'metadata["k"].value'
        )
    twice = [entry("k", UINT8, 1), entry("x", UINT8, 1), entry("k", UINT16, 1)]
    yield Fault("key-twice", File(entries=twice).build(), 'metadata["k"].key')


def array_faults() -> Iterator[Fault]:
    for kind in (13, 2**32 - 1):
        yield Fault(
            f"element-type-{kind}",
            with_entry(entry("k", ARRAY, array(kind, []))),
            'metadata["k"].element_type',
        )
    for kind in (UINT8, UINT16, FLOAT32, UINT64, STRING, ARRAY):
        for length in WILD:
            wild = entry("k", ARRAY, array(kind, [], length))
            yield Fault(f"array-{kind}-length-{length}", with_entry(wild), 'metadata["k"].length')
    # A product with the size of an element that wraps to what is there.
    for kind, size in ((UINT16, 2), (FLOAT32, 4), (UINT64, 8)):
        wild = entry("k", ARRAY, array(kind, [1] * 2, 2**64 // size + 2))
        yield Fault(f"array-{kind}-wraps", with_entry(wild), 'metadata["k"].length')
    inner = array(STRING, [])[:-8] + u64(MOST)
    yield Fault("inner-length", with_entry(entry("k", ARRAY, array(ARRAY, [inner]))), 'metadata["k"].length')
    inner = array(STRING, [], 1) + u64(2**40)
    yield Fault("inner-string", with_entry(entry("k", ARRAY, array(ARRAY, [inner]))), 'metadata["k"].length')
    for depth in (5, 6, 1000):
        nested = array(UINT8, [1])
        for _ in range(depth - 1):
            nested = array(ARRAY, [nested])
        yield Fault(f"array-depth-{depth}", with_entry(entry("k", ARRAY, nested)), 'metadata["k"].value')


def alignment_faults() -> Iterator[Fault]:
    def aligned(value: bytes) -> bytes:
        return File(entries=[text("general.alignment") + value], tensors=[f32()]).build()

    for value in (0, 3, 12, 24, 33, 2**25, 2**31, 2**32 - 1):
        yield Fault(
            f"alignment-{value}", aligned(u32(UINT32) + u32(value)), 'metadata["general.alignment"].value'
        )
    for kind, value in ((UINT8, b"\x20"), (INT32, u32(32)), (UINT64, u64(32)), (STRING, text("32"))):
        yield Fault(
            f"alignment-type-{kind}", aligned(u32(kind) + value), 'metadata["general.alignment"].type'
        )


def tensor_faults() -> Iterator[Fault]:
    for length in (*WILD, 65_536):
        wild = File(tensor_count=1).header() + text("w", length) + bytes(64)
        yield Fault(f"name-length-{length}", wild, "tensors[0].name")
    yield Fault("name-utf8", with_tensor(f32(b"\xff")), "tensors[0].name")
    yield Fault("name-twice", File(tensors=[f32("w"), f32("x"), f32("w")]).build(), 'tensors["w"].name')
    for rank in (0, 5, 8, 255, 2**31, 2**32 - 1):
        ne = (8,) + (1,) * (min(rank, 255) - 1)
        data = with_tensor(Tensor("w", ne[:rank], F32, bytes(32), n_dims=rank))
        yield Fault(f"n-dims-{rank}", data, 'tensors["w"].n_dims')
    wraps = {
        "2": (2**32, 2**32),
        "2-odd": (2**33 + 1, 2**33 - 1),
        "3": (2**22, 2**21, 2**21),
        "4": (2**16, 2**16, 2**16, 2**16),
        "4-to-8": (2**62 + 2, 4, 1, 1),
        "near": (2**31, 2**32),
        "most": (MOST,),
        "sign": (2**63,),
        "with-zero": (0, 2**63, 4),
        "pad": (4, 1073741823, 1073741825, 1),
    }
    for name, ne in wraps.items():
        yield Fault(f"ne-wraps-{name}", with_tensor(Tensor("w", ne, F32, bytes(64))), 'tensors["w"].')
    # The elements fit, their bytes do not.
    yield Fault("bytes-wrap-f32", with_tensor(Tensor("w", (2**62,), F32, bytes(64))), 'tensors["w"].ne')
    yield Fault("bytes-wrap-f64", with_tensor(Tensor("w", (2**61 + 1,), 28, bytes(64))), 'tensors["w"].ne')
    for kind in (4, 5, 9, 31, 36, 42, 255, 2**31, 2**32 - 1):
        yield Fault(f"type-{kind}", with_tensor(Tensor("w", (256,), kind, bytes(512))), 'tensors["w"].type')
    for kind, row in ((Q4_0, 31), (Q4_0, 33), (Q4_K, 32), (Q4_K, 255), (Q4_K, 257)):
        data = with_tensor(Tensor("w", (row, 256), kind, bytes(65536)))
        yield Fault(f"row-{kind}-{row}", data, 'tensors["w"].ne')


def data_faults() -> Iterator[Fault]:
    for offset in (1, 16, 31, 33):
        yield Fault(f"offset-{offset}", with_tensor(f32(offset=offset)), 'tensors["w"].offset')
    for offset in (32, 2**32, 2**62, 2**63, 2**64 - 32, 2**64 - 64):
        yield Fault(f"offset-past-{offset}", with_tensor(f32(offset=offset)), 'tensors["w"].offset')
    yield Fault("data-short", with_tensor(f32())[:-1], 'tensors["w"].offset')
    yield Fault("data-none", with_tensor(Tensor("w", (8,), F32, b"")), 'tensors["w"].offset')
    header = File(tensors=[f32()]).header()
    yield Fault("padding-none", header, 'tensors["w"].offset')
    yield Fault("overlap", File(tensors=[f32("a"), f32("b", offset=0)]).build(), 'tensors["b"].offset')
    inside = [f32("a", 64), f32("b", 8, offset=96)]
    yield Fault("overlap-inside", File(tensors=inside).build(), 'tensors["b"].offset')
    before = [f32("a", 8, offset=32), f32("b", 16, offset=0)]
    yield Fault("overlap-before", File(tensors=before).build() + bytes(96), 'tensors["a"].offset')


def split_faults() -> Iterator[Fault]:
    """Single files whose split keys are wrong; parts that do not fit stand in test_gguf_split.py."""

    def split(*entries: bytes) -> bytes:
        return File(entries=list(entries), tensors=[f32()]).build()

    count = 'metadata["split.count"].value'
    yield Fault("split-count-type", split(entry("split.count", STRING, "2")), count)
    yield Fault("split-count-negative", split(entry("split.count", INT32, -1)), count)
    yield Fault("split-count-limit", split(entry("split.count", UINT16, 1025)), count)
    yield Fault("split-count-name", split(entry("split.count", UINT16, 2)), count)
    second = split(entry("split.count", UINT16, 2), entry("split.no", UINT16, 1))
    yield Fault("split-no", second, 'metadata["split.no"].value')


def faults() -> list[Fault]:
    groups = (
        header_faults,
        metadata_faults,
        array_faults,
        alignment_faults,
        tensor_faults,
        data_faults,
        split_faults,
    )
    return [fault for group in groups for fault in group()]


def main(folder: str) -> None:
    """Writes every fault, and a file without one, for programs that read files."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    for fault in faults():
        (target / f"{fault.name}.gguf").write_bytes(fault.data)
    (target / "correct.gguf").write_bytes(small_file().build())


if __name__ == "__main__":
    main(sys.argv[1])
