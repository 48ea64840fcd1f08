"""One layout, three witnesses: the dataclass, the shader as its reader sees it, and the C++ compiler."""

from __future__ import annotations

from typing import Any

import metalane


def assert_one_layout(cls: Any, kernel: str, size: int) -> None:
    """Of a struct that the kernel takes as `params`: every field alike."""

    def described(layout: metalane.StructLayout) -> list[tuple[object, ...]]:
        return [(f.name, f.type, f.count, f.offset, f.size) for f in layout.fields]

    arguments = metalane.Device("null").registry.pipeline(kernel).signature.arguments
    shader = next(argument.layout for argument in arguments if argument.name == "params")
    compiler = metalane._core.cpp_layouts()[cls.__name__]
    assert cls.layout.size == shader.size == compiler.size == size
    assert described(cls.layout) == described(shader) == described(compiler)
