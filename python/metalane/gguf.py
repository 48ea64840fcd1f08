"""GGUF files: metadata, tensors as buffers on the file's own pages, and decoding on the host."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _core
from ._core import Buffer, Device, GgmlType, GgmlTypeInfo, TensorInfo, ggml_type_info, ggml_types
from .errors import ArgumentError, DTypeError

__all__ = [
    "GgmlType",
    "GgmlTypeInfo",
    "GgufFile",
    "GgufMetadata",
    "TensorInfo",
    "dequantize",
    "ggml_type_info",
    "ggml_types",
]


class GgufMetadata(Mapping[str, Any]):
    """The metadata of a file: ``str`` keys in the file's order; ints, floats, bools, strings and (nested) lists.

    A value is made when it is first asked for, and kept. Text that is not UTF-8 comes with ``surrogateescape``.
    """

    def __init__(self, reader: _core.GgufReader) -> None:
        self._reader = reader
        self._index = {key: index for index, key in enumerate(reader.keys())}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            self._values[key] = self._reader.value(self._index[key])
        return self._values[key]

    def __contains__(self, key: object) -> bool:
        return key in self._index

    def __iter__(self) -> Iterator[str]:
        return iter(self._index)

    def __len__(self) -> int:
        return len(self._index)

    def preview(self, key: str, most: int) -> Any:
        """The value, of arrays the first `most` elements: for files that hold a great many."""
        return self._reader.value(self._index[key], most)

    def type_of(self, key: str) -> str:
        """The value's type in the file, in words: ``"uint32"``, ``"array of 3 string"``."""
        return self._reader.value_type(self._index[key])

    def __repr__(self) -> str:
        return f"<GgufMetadata, {len(self)} keys>"


class GgufFile:
    """A GGUF file, or with its first part (``-00001-of-00003.gguf``) all parts of a split one.

    Opening reads the metadata and no tensor. Raises :class:`GgufError`, which names the field at fault, where that is
    malformed. Use it as a context manager or call :meth:`close`; buffers, arrays and metadata values that were taken
    outlive it. Thread-safe.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        self._reader = _core.open_gguf(path)
        self._path = self._reader.paths[0]
        self._metadata = GgufMetadata(self._reader)

    def close(self) -> None:
        """Lets go of the file. Everything but ``closed`` and ``path`` raises from then on."""
        self._reader.close()

    def __enter__(self) -> GgufFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._reader.closed

    @property
    def path(self) -> str:
        """The path of the (first) file."""
        return self._path

    @property
    def paths(self) -> list[str]:
        """The paths of all parts."""
        return self._reader.paths

    @property
    def version(self) -> int:
        return self._reader.version

    @property
    def file_bytes(self) -> int:
        """Bytes of all parts."""
        return self._reader.file_bytes

    @property
    def metadata(self) -> GgufMetadata:
        """Key to value. Of a split file: the first part's, and what later parts add."""
        if self.closed:
            raise ArgumentError("GgufFile: it was closed")
        return self._metadata

    @property
    def tensor_names(self) -> list[str]:
        """Names of the tensors in the file's order."""
        return self._reader.tensor_names()

    def tensor_info(self, name: str) -> TensorInfo:
        """Type, shape, size and place of a tensor. Raises TensorNotFoundError."""
        return self._reader.tensor_info(name)

    def load_tensor(self, name: str, device: Device) -> Buffer:
        """The tensor as a read-only buffer, without a copy where the device can map the file.

        Plain numbers have their dtype and the tensor's shape; blocks stay packed, uint8 ``[..., bytes of a row]``.
        Where the file shrinks afterwards, a launch that meets the hole fails and taking ``numpy()`` raises GgufError.

        Raises TensorNotFoundError, GgufError (the file has shrunk) or OutOfMemoryError (also where the device has no
        buffers as long).
        """
        return self._reader.load_tensor(name, device)

    def load_tensor_f32(self, name: str) -> NDArray[np.float32]:
        """The tensor decoded to float32, in its shape.

        Raises ArgumentError for a type that does not decode, TensorNotFoundError, GgufError or OutOfMemoryError.
        """
        return self._reader.load_tensor_f32(name)

    def numpy(self, name: str) -> NDArray[Any]:
        """A copy of the tensor with dtype and shape as :meth:`load_tensor` gives them.

        Raises TensorNotFoundError, GgufError or OutOfMemoryError.
        """
        return self._reader.read_tensor(name)

    def __repr__(self) -> str:
        if self.closed:
            return f"<GgufFile {self._path!r}, closed>"
        return f"<GgufFile {self._path!r}: {len(self.tensor_names)} tensors, {len(self._metadata)} keys>"


def _flat_bytes(data: Any) -> tuple[Any, tuple[int, ...]]:
    """Contiguous memory of `data`, and its shape in bytes."""
    if isinstance(data, Buffer):
        data = data.numpy()
    if not isinstance(data, np.ndarray):
        return data, ()
    if data.dtype.hasobject:
        raise DTypeError(f"dequantize: data must be contiguous bytes, got an array of dtype {data.dtype}")
    if not data.flags.c_contiguous:
        raise ArgumentError(
            f"dequantize: data must be row-major contiguous, got strides {data.strides} for shape {data.shape}"
        )
    shape = data.shape
    if shape:
        shape = (*shape[:-1], shape[-1] * data.itemsize)
    return data.reshape(-1).view(np.uint8), shape


def dequantize(
    data: Any, ggml_type: GgmlType | int | str, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Decodes blocks of a GGML type to float32; bit for bit what the ``gguf`` package gives.

    data: bytes, anything with the buffer protocol, or a Buffer; whole blocks. Rows of an array ``[..., bytes]`` are
    decoded to ``[..., elements]``, other memory to one dimension. out: a contiguous float32 array of as many elements,
    which is then returned.

    A scale that is infinite or NaN makes infinities and NaNs; which NaN is the processor's choice.

    Raises ArgumentError (no whole blocks, a type that does not decode, another length of `out`) or DTypeError.
    """
    info = ggml_type_info(ggml_type)
    memory, shape = _flat_bytes(data)
    if shape and shape[-1] % info.block_bytes != 0:
        raise ArgumentError(
            f"dequantize: rows of data must be a multiple of {info.block_bytes} bytes long, the bytes of a block of "
            f"{info.name}, got {shape[-1]}"
        )
    if out is None:
        if not shape:
            try:
                shape = (memoryview(memory).nbytes,)
            except TypeError:
                raise DTypeError(
                    f"dequantize: data must be contiguous bytes, got {type(data).__name__}"
                ) from None
        rows, length = shape[:-1], shape[-1] // info.block_bytes * info.block_length
        # For types that do not decode, and lengths that are no whole blocks, the call below has the words.
        out = np.empty((*rows, length) if info.decodes else 0, dtype=np.float32)
    _core._decode_into(memory, info.type, out)
    return out
