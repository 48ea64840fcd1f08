"""``python -m metalane inspect FILE``: what a GGUF file holds, for people or as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from .gguf import GgufFile

# The table cuts values to so many characters, and arrays to so many elements; JSON has them whole.
_WIDTH = 60
_ELEMENTS = 4


def describe(file: GgufFile) -> dict[str, Any]:
    """Everything that ``--json`` prints."""
    tensors = []
    for name in file.tensor_names:
        info = file.tensor_info(name)
        tensors.append(
            {
                "name": info.name,
                "type": info.ggml_type.name,
                "shape": list(info.shape),
                "bytes": info.byte_len,
                "offset": info.offset,
                "part": info.part,
            }
        )
    return {
        "paths": file.paths,
        "version": file.version,
        "bytes": file.file_bytes,
        "metadata": {
            key: {"type": file.metadata.type_of(key), "value": value} for key, value in file.metadata.items()
        },
        "tensors": tensors,
    }


def as_json(file: GgufFile) -> str:
    """`describe` as text. JSON has no infinities or NaNs: they become strings."""
    return json.dumps(_finite(describe(file)), allow_nan=False, indent=1)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value


def printable(text: str) -> str:
    """Text of a file, safe for a terminal: nothing in it moves the cursor or starts an escape sequence."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text
    )


def _shown(value: Any) -> str:
    if isinstance(value, list):
        few = ", ".join(_shown(item) for item in value[:_ELEMENTS])
        return f"[{few}, ...]" if len(value) > _ELEMENTS else f"[{few}]"
    text = printable(repr(value) if isinstance(value, str) else str(value))
    return text if len(text) <= _WIDTH else text[: _WIDTH - 3] + "..."


def _table(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]], right: set[int]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (heads, *rows)
    ]


def as_text(file: GgufFile) -> str:
    """A table of the metadata, one of the tensors, and one of the types with their share of the bytes."""
    metadata = file.metadata
    infos = [file.tensor_info(name) for name in file.tensor_names]
    lines = [printable(path) for path in file.paths]
    lines += [f"GGUF version {file.version}, {file.file_bytes:,} bytes", ""]
    keys = [
        (printable(key), metadata.type_of(key), _shown(metadata.preview(key, _ELEMENTS + 1)))
        for key in metadata
    ]
    lines += [*_table(("key", "type", "value"), keys, set()), ""]
    tensors = [
        (
            printable(info.name),
            info.ggml_type.name,
            " x ".join(map(str, info.shape)),
            f"{info.byte_len:,}",
            f"{info.offset:,}",
        )
        for info in infos
    ]
    lines += [*_table(("tensor", "type", "shape", "bytes", "offset"), tensors, {3, 4}), ""]
    sums: dict[str, tuple[int, int, int]] = {}
    for info in infos:
        count, elements, size = sums.get(info.ggml_type.name, (0, 0, 0))
        sums[info.ggml_type.name] = (count + 1, elements + math.prod(info.shape), size + info.byte_len)
    types = [
        (name, str(count), f"{elements:,}", f"{size:,}") for name, (count, elements, size) in sums.items()
    ]
    lines += _table(("type", "tensors", "elements", "bytes"), types, {1, 2, 3})
    return "\n".join(lines)
