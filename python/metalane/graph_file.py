"""Graphs as JSON files: ``ComputeGraph.save`` and ``ComputeGraph.load``.

A file has a graph's structure: kernels by name and source hash, launches, and where in which buffer each binding and
range lies. Buffers' contents and what operators know of their structs stay with the program.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from . import _core
from .errors import ArgumentError, DTypeError, KernelNotFoundError
from .graph_places import Places, refuse

__all__ = ["load", "save"]

_FORMAT, _VERSION = "metalane graph", 1
_SAVE, _LOAD = "ComputeGraph.save", "ComputeGraph.load"
_MOST = (1 << 63) - 1  # of any number in a file
_DTYPES = {
    str(dtype): dtype
    for dtype in map(
        np.dtype,
        (
            "float32",
            "float16",
            ml_dtypes.bfloat16,
            "uint8",
            "int8",
            "uint16",
            "int16",
            "uint32",
            "int32",
            "uint64",
            "int64",
        ),
    )
}

_MOVES = {"copy": (_core.Buffer, _core.Buffer, bytes), "fill": (_core.Buffer, bytes)}
"""Arguments of what CommandEncoder.copy and .fill launch."""
_ELEMENT = 12  # where a fill's struct has the element (shaders/memory.metal)

Json = dict[str, Any]
Kernel = tuple[_core.Pipeline, dict[int, str]]
"""A pipeline, and the access of its buffer arguments by index."""


def _accesses(pipeline: _core.Pipeline) -> dict[int, str]:
    arguments = pipeline.signature.arguments
    return {argument.index: argument.access for argument in arguments if argument.space != "threadgroup"}


def _path_of(path: str | os.PathLike[str], op: str) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        refuse(
            op, "path", "a str or os.PathLike", f"{reprlib.repr(path)} ({type(path).__name__})", DTypeError
        )
    return Path(path)


# Saving ---------------------------------------------------------------------------------------------------------------


class _Writer:
    """Turns one graph into what json takes."""

    def __init__(self, graph: _core.ComputeGraph, names: Mapping[str, _core.Buffer] | None) -> None:
        self._graph = graph
        self._nodes = graph.nodes
        self._places = Places(_SAVE, self._nodes, graph.device, names)
        self._places.refuse_overlaps()
        self._sizes: dict[str | int, int] = {}  # bytes from the start that launches touch
        self._kernels: dict[str, int] = {}  # number by key
        self._kernel_list: list[Json] = []
        self._accesses: list[dict[int, str]] = []

    def document(self) -> Json:
        calls = sorted({node.call for node in self._nodes})
        number_of_call = {call: number for number, call in enumerate(calls)}
        nodes = [self._node(i, node, number_of_call[node.call]) for i, node in enumerate(self._nodes)]
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "metalane": _core.VERSION,
            "device": self._graph.device.kind,
            "buffers": self._buffers(),
            "kernels": self._kernel_list,
            "nodes": nodes,
        }

    def _buffers(self) -> list[Json]:
        rows: list[Json] = [
            {"name": name, "nbytes": buffer.nbytes, "dtype": str(buffer.dtype), "shape": list(buffer.shape)}
            for name, buffer in self._places.named.items()
            if name in self._sizes
        ]
        numbers = sorted(name for name in self._sizes if isinstance(name, int))
        return rows + [{"name": number, "nbytes": self._sizes[number]} for number in numbers]

    def _place(self, begin: int, end: int, argument: str) -> tuple[str | int, int]:
        place = self._places.find(begin, end)
        if place is None:
            given = f"addresses {begin:#x} to {end:#x}"
            refuse(_SAVE, argument, "inside a buffer that the graph binds or `names` has", given)
        name, offset = place
        self._sizes[name] = max(self._sizes.get(name, 0), offset + end - begin)
        return place

    def _bound(self, buffer: _core.Buffer, argument: str) -> Json:
        name, offset = self._place(buffer.address, buffer.address + buffer.nbytes, argument)
        return {
            "buffer": name,
            "offset": offset,
            "nbytes": buffer.nbytes,
            "dtype": str(buffer.dtype),
            "shape": list(buffer.shape),
        }

    def _ranges(self, ranges: list[tuple[int, int]], argument: str) -> list[list[Any]]:
        return [[*self._place(begin, end, argument), end - begin] for begin, end in ranges if begin < end]

    def _kernel(self, pipeline: _core.Pipeline) -> int:
        if pipeline.key not in self._kernels:
            self._kernels[pipeline.key] = len(self._kernels)
            self._accesses.append(_accesses(pipeline))
            self._kernel_list.append(
                {
                    "name": pipeline.name,
                    "source": pipeline.source_hash,
                    "constants": [[key, _written(value)] for key, value in pipeline.constants.items()],
                    "math": pipeline.math,
                }
            )
        return self._kernels[pipeline.key]

    def _node(self, number: int, node: _core.GraphNode, call: int) -> Json:
        here = f"nodes[{number}]"
        kernel = self._kernel(node.pipeline)
        bindings: list[Json] = []
        for index, bound in node.bindings.items():
            binding: Json = {"index": index, "access": self._accesses[kernel][index]}
            if isinstance(bound, bytes):
                binding["bytes"] = bound.hex()
            else:
                binding.update(self._bound(bound, f"{here}.bindings[{len(bindings)}]"))
            bindings.append(binding)
        grid: Json = {"threads_per_threadgroup": node.threads_per_threadgroup}
        if isinstance(node.threadgroups, _core.Buffer):
            grid["indirect"] = self._bound(node.threadgroups, f"{here}.grid.indirect")
        elif node.threads is not None:
            grid["threads"] = node.threads
        else:
            grid["threadgroups"] = node.threadgroups
        return {
            "kernel": kernel,
            "op": node.op,
            "call": call,
            "label": node.label,
            "bindings": bindings,
            "grid": grid,
            "threadgroup_memory": [[index, nbytes] for index, nbytes in node.threadgroup_memory.items()],
            "reads": self._ranges(node.reads, f"{here}.reads"),
            "writes": self._ranges(node.writes, f"{here}.writes"),
            "ranges_overridden": node.ranges_overridden,
            "barrier_before": node.barrier_before,
        }


def _written(constant: Any) -> Any:
    """A function constant; JSON has no infinities."""
    if isinstance(constant, tuple):
        return [_written(component) for component in constant]
    return str(constant) if isinstance(constant, float) and not math.isfinite(constant) else constant


def save(
    graph: _core.ComputeGraph, path: str | os.PathLike[str], names: Mapping[str, _core.Buffer] | None
) -> None:
    """See :meth:`ComputeGraph.save`."""
    target = _path_of(path, _SAVE)
    document = _Writer(graph, names).document()
    lists = {key: document.pop(key) for key in ("buffers", "kernels", "nodes")}
    # One line an entry: a file that a person reads, and that version control compares.
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items()]
    parts += [
        f" {json.dumps(key)}: [\n{joined}\n ]"
        for key, rows in lists.items()
        for joined in [",\n".join("  " + json.dumps(row) for row in rows)]
    ]
    target.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


# Loading --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Field:
    """A value of the file and what errors call it; whoever reads it says what it must be."""

    name: str
    value: Any

    def refuse(self, expected: str, given: str | None = None) -> NoReturn:
        shown = reprlib.repr(self.value) if given is None else given
        refuse(_LOAD, f"field {self.name or 'the document'}", expected, shown)

    def __getitem__(self, key: str) -> _Field:
        found = self.get(key)
        if found is None:
            self.refuse(f"an object with '{key}'")
        return found

    def get(self, key: str) -> _Field | None:
        if not isinstance(self.value, dict):
            self.refuse("an object")
        name = f"{self.name}.{key}" if self.name else key
        return _Field(name, self.value[key]) if key in self.value else None

    def has_only(self, *keys: str) -> None:
        if not isinstance(self.value, dict):
            self.refuse("an object")
        for key in self.value:
            if key not in keys:
                self.refuse(f"an object of {', '.join(keys)}", f"one with {reprlib.repr(key)}")

    def items(self, count: int | None = None) -> list[_Field]:
        if not isinstance(self.value, list) or count not in (None, len(self.value)):
            self.refuse("a list" if count is None else f"a list of {count}")
        return [_Field(f"{self.name}[{i}]", value) for i, value in enumerate(self.value)]

    def number(self, below: int = _MOST) -> int:
        if type(self.value) is not int or not 0 <= self.value < below:
            self.refuse(f"a number from 0, below {below}")
        return self.value

    def flag(self) -> bool:
        if type(self.value) is not bool:
            self.refuse("true or false")
        return self.value

    def text(self) -> str:
        if not isinstance(self.value, str):
            self.refuse("text")
        try:
            self.value.encode()
        except UnicodeEncodeError:
            self.refuse("text without halves of surrogate pairs")
        return self.value

    def one_of(self, *choices: str) -> str:
        if self.text() not in choices:
            self.refuse(f"one of {', '.join(choices)}")
        return str(self.value)

    @contextlib.contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """For the runtime's own checks of what the field says."""
        try:
            yield
        except (ArgumentError, KernelNotFoundError) as error:
            kind = DTypeError if isinstance(error, DTypeError) else ArgumentError
            new = kind(f"{_LOAD}: field {self.name}: {error}")
            new.op, new.argument = _LOAD, f"field {self.name}"
            if isinstance(error, ArgumentError):
                new.expected, new.given = error.expected, error.given
            raise new from error


class _Buffers:
    """The caller's buffers by the file's names."""

    def __init__(self, rows: _Field, device: _core.Device, given: Mapping[str | int, _core.Buffer]) -> None:
        self._by_name: dict[str | int, _core.Buffer] = {}
        if not isinstance(given, Mapping):
            refuse(_LOAD, "buffers", "a dict {name or number: buffer}", reprlib.repr(given), DTypeError)
        missing = []
        for row in rows.items():
            name = self.name(row["name"])
            if name in self._by_name:
                row["name"].refuse("another name than the other buffers'")
            buffer = given.get(name)
            if buffer is None:
                missing.append(repr(name))
                continue
            self._check(row, name, buffer, device)
            self._by_name[name] = buffer
        if missing:
            have = ", ".join(reprlib.repr(name) for name in given) or "none"
            refuse(_LOAD, "buffers", f"with {', '.join(missing)}, too, which the graph binds", have)

    @staticmethod
    def name(field: _Field) -> str | int:
        return field.text() if isinstance(field.value, str) else field.number()

    @staticmethod
    def _check(row: _Field, name: str | int, buffer: _core.Buffer, device: _core.Device) -> None:
        argument = f"buffers[{name!r}]"
        if not isinstance(buffer, _core.Buffer):
            refuse(
                _LOAD, argument, "a buffer", f"{reprlib.repr(buffer)} ({type(buffer).__name__})", DTypeError
            )
        if buffer.released:
            refuse(_LOAD, argument, "a live buffer", "a released one")
        nbytes = row["nbytes"].number()
        if isinstance(name, int):
            row.has_only("name", "nbytes")
            if buffer.nbytes < nbytes:
                refuse(_LOAD, argument, f"of at least {nbytes} bytes", str(buffer.nbytes))
            return
        row.has_only("name", "nbytes", "dtype", "shape")
        dtype = row["dtype"].one_of(*_DTYPES)
        shape = _shape(row["shape"])
        if buffer.dtype != _DTYPES[dtype]:
            refuse(_LOAD, argument, f"of dtype {dtype}", str(buffer.dtype), DTypeError)
        if buffer.shape != shape:
            refuse(_LOAD, argument, f"of shape {list(shape)}", str(list(buffer.shape)))
        if buffer.nbytes != nbytes:
            row["nbytes"].refuse(f"{buffer.nbytes}, the bytes of that dtype and shape")

    def _named(self, field: _Field) -> _core.Buffer:
        buffer = self._by_name.get(self.name(field))
        if buffer is None:
            field.refuse("the name of one of the file's buffers")
        return buffer

    def view(self, field: _Field) -> _core.Buffer:
        buffer = self._named(field["buffer"])
        dtype, shape = field["dtype"].one_of(*_DTYPES), _shape(field["shape"])
        offset, nbytes = field["offset"].number(), field["nbytes"].number()
        with field.named_in_errors():
            # The buffer as it is where all of it is bound: a view has another repr.
            whole = offset == 0 and buffer.dtype == _DTYPES[dtype] and buffer.shape == shape
            bound = buffer if whole else buffer.view(offset, shape, dtype)
        if bound.nbytes != nbytes:
            field["nbytes"].refuse(f"{bound.nbytes}, the bytes of that dtype and shape")
        return bound

    def range(self, field: _Field) -> tuple[int, int]:
        name, offset, nbytes = field.items(3)
        buffer = self._named(name)
        if offset.number() + nbytes.number() > buffer.nbytes:
            field.refuse(f"inside the {buffer.nbytes} bytes of the buffer")
        begin = buffer.address + offset.number()
        return begin, begin + nbytes.number()


def _shape(field: _Field) -> tuple[int, ...]:
    return tuple(axis.number() for axis in field.items())


def _sizes(field: _Field) -> tuple[int, ...]:
    return tuple(axis.number() for axis in field.items(3))


def _constants(field: _Field) -> dict[str | int, Any]:
    constants: dict[str | int, Any] = {}
    for pair in field.items():
        key, value = pair.items(2)
        name = key.text() if isinstance(key.value, str) else key.number(1 << 32)
        if name in constants:
            key.refuse("given once")
        components = value.items() if isinstance(value.value, list) else [value]
        numbers = [_constant(component) for component in components]
        constants[name] = tuple(numbers) if isinstance(value.value, list) else numbers[0]
    return constants


def _constant(field: _Field) -> bool | int | float:
    if isinstance(field.value, str):
        return float(field.one_of("inf", "-inf", "nan"))
    if not isinstance(field.value, (bool, int, float)):
        field.refuse("true, false, a number, 'inf', '-inf' or 'nan'")
    return field.value


def _kernel(field: _Field, device: _core.Device) -> Kernel:
    field.has_only("name", "source", "constants", "math")
    name, source = field["name"].text(), field["source"].text()
    constants, mode = _constants(field["constants"]), field["math"].one_of("safe", "fast")
    with field.named_in_errors():
        pipeline = _core._pipeline_of_source(device.registry, name, source, constants, mode)
    return pipeline, _accesses(pipeline)


class _Reader:
    """Records the file's launches into an encoder's capture, so that every check of a launch runs on them."""

    def __init__(
        self, document: _Field, device: _core.Device, given: Mapping[str | int, _core.Buffer]
    ) -> None:
        self._nodes = document["nodes"].items()
        self._buffers = _Buffers(document["buffers"], device, given)
        self._kernels = [_kernel(kernel, device) for kernel in document["kernels"].items()]
        self._encoder = device.command_encoder()
        self._ops: dict[int, str] = {}  # by call
        self._calls: list[int] = []  # by node
        # Copies and fills by node, as the file has them.
        self._moves: dict[
            int, tuple[_core.Pipeline, dict[int, _core.Buffer | bytes], dict[int, int], dict[str, Any]]
        ] = {}

    def graph(self) -> _core.ComputeGraph:
        with self._encoder.capture() as capture:
            for node in self._nodes:
                self._record(node)
        self._encoder.discard()
        graph = capture.graph
        launches = graph.nodes
        for field, launch in zip(self._nodes, launches, strict=True):
            self._check_ranges(field, launch)
        for number in self._moves:
            self._check_move(number, launches[number])
        numbers = {call: number for number, call in enumerate(sorted(self._ops))}
        ops = [self._ops[call] for call in numbers]
        return _core._graph_with_calls(graph, ops, [numbers[call] for call in self._calls])

    def _record(self, node: _Field) -> None:
        node.has_only(
            "kernel", "op", "call", "label", "bindings", "grid", "threadgroup_memory", "reads", "writes",
            "ranges_overridden", "barrier_before",
        )  # fmt: skip
        call = node["call"].number(len(self._nodes))
        if self._ops.setdefault(call, node["op"].text()) != node["op"].value:
            node["op"].refuse(f"'{self._ops[call]}' like the call's other launches")
        self._calls.append(call)
        pipeline, accesses = self._kernels[node["kernel"].number(len(self._kernels))]
        arguments: dict[int, _core.Buffer | bytes] = {}
        for binding in node["bindings"].items():
            slot, access = binding["index"].number(1 << 32), binding["access"].text()
            if slot in arguments:
                binding["index"].refuse("an index that is bound once")
            if slot not in accesses:
                binding["index"].refuse(
                    f"one of {', '.join(map(str, accesses)) or 'none'}, as the kernel declares them"
                )
            if access != accesses[slot]:
                binding["access"].refuse(f"'{accesses[slot]}', as the kernel declares it")
            arguments[slot] = self._argument(binding)
        memory: dict[int, int] = {}
        for pair in node["threadgroup_memory"].items():
            index, nbytes = pair.items(2)
            if index.number(1 << 32) in memory:
                index.refuse("given once")
            memory[index.number()] = nbytes.number()
        if node["barrier_before"].flag():
            self._encoder.memory_barrier()
        if node["ranges_overridden"].flag():
            self._encoder.set_pending_buffer_ranges(*self._ranges(node))
        label = node["label"].text()
        grid = self._grid(node["grid"])
        with self._encoder.label(label) if label else contextlib.nullcontext(), node.named_in_errors():
            if node["op"].value in _MOVES:
                self._move(node, arguments)
                self._moves[len(self._calls) - 1] = (pipeline, arguments, memory, grid)
            else:
                self._encoder.dispatch(pipeline, arguments, threadgroup_memory=memory or None, **grid)

    def _move(self, node: _Field, arguments: dict[int, _core.Buffer | bytes]) -> None:
        """A copy or fill by the encoder's own call, which derives sizes and ranges from the buffers."""
        op = node["op"].text()
        kinds = tuple(type(arguments.get(slot)) for slot in range(len(arguments)))
        first, second = arguments.get(0), arguments.get(1)
        if kinds != _MOVES[op] or not isinstance(first, _core.Buffer) or first.nbytes == 0:
            node["bindings"].refuse(f"those of a {op}", f"{len(arguments)} others")
        if isinstance(second, _core.Buffer):
            self._encoder.copy(first, second)
        elif isinstance(second, bytes):
            # As an unsigned number, which has any bits.
            size = first.dtype.itemsize
            element = int.from_bytes(second[_ELEMENT : _ELEMENT + size], "little")
            self._encoder.fill(first.view(0, first.shape, f"u{8 * size}"), element)

    def _check_move(self, number: int, node: _core.GraphNode) -> None:
        """The file says no more than the encoder's call does."""
        pipeline, arguments, memory, grid = self._moves[number]
        given = {slot: value for slot, value in arguments.items() if isinstance(value, bytes)}
        recorded = {slot: value for slot, value in node.bindings.items() if isinstance(value, bytes)}
        sizes = {"threads": node.threads, "threads_per_threadgroup": node.threads_per_threadgroup}
        if pipeline.key != node.pipeline.key or given != recorded or memory or grid != sizes:
            self._nodes[number].refuse(f"a {node.op} as an encoder records it")

    def _argument(self, binding: _Field) -> _core.Buffer | bytes:
        inline = binding.get("bytes")
        if inline is None:
            binding.has_only("index", "access", "buffer", "offset", "nbytes", "dtype", "shape")
            return self._buffers.view(binding)
        binding.has_only("index", "access", "bytes")
        try:
            return bytes.fromhex(inline.text())
        except ValueError:
            inline.refuse("bytes in hex")

    def _grid(self, grid: _Field) -> dict[str, Any]:
        grid.has_only("threads_per_threadgroup", "threads", "threadgroups", "indirect")
        if len(grid.value) != 2:
            grid.refuse("threads_per_threadgroup and one of threads, threadgroups, indirect")
        sizes: dict[str, Any] = {"threads_per_threadgroup": _sizes(grid["threads_per_threadgroup"])}
        if (indirect := grid.get("indirect")) is not None:
            indirect.has_only("buffer", "offset", "nbytes", "dtype", "shape")
            sizes["threadgroups"] = self._buffers.view(indirect)
        elif (threads := grid.get("threads")) is not None:
            sizes["threads"] = _sizes(threads)
        else:
            sizes["threadgroups"] = _sizes(grid["threadgroups"])
        return sizes

    def _ranges(self, node: _Field) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        reads = [self._buffers.range(range_) for range_ in node["reads"].items()]
        return reads, [self._buffers.range(range_) for range_ in node["writes"].items()]

    def _check_ranges(self, field: _Field, node: _core.GraphNode) -> None:
        """Ranges that no caller gave follow from the bindings; others would be a graph of another order."""
        for key, given, derived in zip(
            ("reads", "writes"), self._ranges(field), (node.reads, node.writes), strict=True
        ):
            if given != [range_ for range_ in derived if range_[0] < range_[1]]:
                field[key].refuse("what the kernel's bindings say, where no ranges were given by hand")


def load(
    path: str | os.PathLike[str], device: _core.Device, buffers: Mapping[str | int, _core.Buffer]
) -> _core.ComputeGraph:
    """See :meth:`ComputeGraph.load`."""
    source = _path_of(path, _LOAD)
    if not isinstance(device, _core.Device):
        refuse(_LOAD, "device", "a Device", f"{reprlib.repr(device)} ({type(device).__name__})", DTypeError)
    try:
        document = _Field("", json.loads(source.read_bytes()))
    except (ValueError, RecursionError) as error:
        refuse(_LOAD, "path", "a file of JSON", f"{source} ({error})")
    document["format"].one_of(_FORMAT)
    if document["version"].number() != _VERSION:
        document["version"].refuse(f"{_VERSION}, the one that this metalane reads")
    document.has_only("format", "version", "metalane", "device", "buffers", "kernels", "nodes")
    document["metalane"].text()
    document["device"].text()
    return _Reader(document, device, buffers).graph()
