"""Kernels of one's own as callables: what ``Device.compile`` gives, and how its calls take their arguments."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import keyword
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NoReturn, overload

import numpy as np

from . import _core
from .argument_text import shown
from .errors import ArgumentError, DTypeError, KernelNotFoundError

__all__ = ["Arguments", "CompiledKernel", "CompiledSource"]

Constant = bool | int | float | tuple[bool | int | float, ...]
Constants = Mapping[str | int, bool | int | float | Sequence[float]]
Sizes = int | tuple[int, ...] | list[int]

# Threads of a threadgroup that a call does not choose: enough for barriers to pay, few enough for every pipeline
# on Apple's GPUs, whose limits start at 384 where registers are short.
DEFAULT_THREADS = 256


def _refuse(
    op: str, argument: str, expected: str, given: str, kind: type[ArgumentError] = ArgumentError
) -> NoReturn:
    error = kind(f"{op}: {argument} must be {expected}, got {given}")
    error.op, error.argument, error.expected, error.given = op, argument, expected, given
    raise error


def _shown_key(key: object) -> str:
    return shown(key) if isinstance(key, int) and key.bit_length() > 256 else reprlib.repr(key)


def _hint(word: object, known: Sequence[str]) -> str:
    """What may have been meant, as the end of a sentence."""
    close = difflib.get_close_matches(word, known, 1) if isinstance(word, str) else []
    return f"; did you mean '{close[0]}'?" if close else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if names else "none"


class Arguments(tuple[_core.KernelArgument, ...]):
    """What a kernel takes, by index; also by name: ``kernel.arguments["x"]``."""

    __slots__ = ()

    @overload  # type: ignore[override]
    def __getitem__(self, key: int | str) -> _core.KernelArgument: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[_core.KernelArgument, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Any:
        if not isinstance(key, str):
            return super().__getitem__(key)
        for argument in self:
            if argument.name == key:
                return argument
        raise KeyError(key)

    def __repr__(self) -> str:
        rows = [("name", "kind", "dtype", "access", "index", "declaration")]
        for argument in self:
            table = "threadgroup" if argument.space == "threadgroup" else "buffer"
            dtype = argument.type if argument.layout is not None or argument.dtype is None else argument.dtype
            row = (argument.name, argument.kind, str(dtype), argument.access, f"{table}({argument.index})")
            rows.append((*row, argument.declaration))
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        return "\n".join("  ".join([*map(str.ljust, row, widths), row[5]]) for row in rows)


def _alignment_of(array: np.ndarray[Any, Any]) -> int:
    """The largest power of two that the array's address is a multiple of."""
    address: int = array.__array_interface__["data"][0]
    return address & -address


# Arrays that a kernel writes in a copy: the parameter, the array as the copy has it, the copy.
Copied = list[tuple["_Parameter", "np.ndarray[Any, Any]", _core.Buffer]]


class _Parameter:
    """One buffer index of a kernel: turns what a call gives for it into what an encoder takes."""

    __slots__ = ("argument", "fast_dtype", "kernel", "name", "numbers", "raw", "record", "writes")

    def __init__(self, kernel: str, argument: _core.KernelArgument) -> None:
        dtype = argument.dtype
        self.kernel = kernel
        self.argument = argument
        self.name = argument.name
        self.writes = argument.access != "read"
        self.record = argument.layout is not None
        # char and uchar pointers are Metal's way to say bytes.
        self.raw = dtype is None or self.record or (dtype.kind in "iu" and dtype.itemsize == 1)
        # The encoder itself packs numbers for these.
        self.numbers = argument.kind == "scalar" and argument.space == "constant"
        # Buffers and arrays of this dtype need no look; of any other one, `check_elements` decides. No buffer has
        # bool: such arrays are wrapped as bytes.
        self.fast_dtype = None if self._is_padded() or dtype is None or dtype == np.bool_ else dtype

    def share(self) -> None:
        """Takes any elements: arguments that exclude each other by function constants may have one index."""
        self.raw, self.fast_dtype = True, None

    def _is_padded(self) -> bool:
        """Whether elements are vectors of three in the room of four."""
        dtype = self.argument.dtype
        three = dtype is not None and self.argument.type.endswith("x3")
        return three and self.argument.size == 4 * dtype.itemsize  # type: ignore[union-attr]

    def refuse(self, expected: str, given: str, kind: type[ArgumentError] = ArgumentError) -> NoReturn:
        _refuse(self.kernel, f"argument '{self.name}'", expected, given, kind)

    def check_elements(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        """Refuses an array or buffer whose elements are not the argument's."""
        expected = self.argument.dtype
        if self.record and dtype.names is not None:
            if dtype != expected:
                self.refuse(
                    f"records of dtype {expected} (struct {self.argument.type})", str(dtype), DTypeError
                )
        elif not self.raw and dtype != expected:
            if expected == np.bool_ and dtype == np.uint8:
                return
            self.refuse(
                f"of dtype {expected} ({self.argument.declaration}); convert it, or view its bytes as that dtype",
                f"dtype {dtype}",
                DTypeError,
            )
        if self._is_padded() and len(shape) > 1 and shape[-1] == 3:
            self.refuse(
                f"padded to four numbers an element, as {self.argument.declaration} lies in memory",
                f"shape {shape}",
            )

    def convert(self, value: Any, device: _core.Device, copied: Copied) -> tuple[Any, bool]:
        """What the encoder takes for the value, and whether that is memory of a host array.

        An array that the kernel may write and the device cannot map goes into `copied`, with its copy.
        """
        if isinstance(value, _core.Buffer):
            self.check_elements(value.dtype, value.shape)
            return value, False
        if self.argument.kind != "buffer" and not (isinstance(value, np.ndarray) and self.record):
            return self._pack(value, device), False
        if isinstance(value, np.ndarray):
            return self._from_numpy(value, device, copied)
        if isinstance(value, bytes):
            return (device.from_numpy(np.frombuffer(value, np.uint8)) if len(value) > 4096 else value), False
        if hasattr(value, "__dlpack__") and not isinstance(value, type):
            return self._from_dlpack(value, device), True
        if self.writes:
            self.refuse(
                "a Buffer, or a NumPy or DLPack array, because the kernel may write it "
                f"({self.argument.declaration})",
                shown(value),
                DTypeError,
            )
        return self._pack(value, device), False

    def _pack(self, value: Any, device: _core.Device) -> Any:
        if isinstance(value, bytes):
            return value
        packed = _core._pack_argument(self.argument, value, self.kernel)
        # Encoders take up to 4 KiB of bytes inline, as Metal does.
        return packed if len(packed) <= 4096 else device.from_numpy(np.frombuffer(packed, np.uint8))

    def _from_numpy(
        self, array: np.ndarray[Any, Any], device: _core.Device, copied: Copied
    ) -> tuple[_core.Buffer, bool]:
        self.check_elements(array.dtype, array.shape)
        if isinstance(array, np.ma.MaskedArray):
            self.refuse("an array without a mask", "a masked array", DTypeError)
        if array.dtype.hasobject:
            self.refuse("an array of numbers", f"dtype {array.dtype}", DTypeError)
        if self.writes and not array.flags.writeable:
            self.refuse(f"writable ({self.argument.declaration})", "a read-only array")
        obstacle = self._obstacle(array)
        if obstacle is None:
            # As bytes where the element type, which was checked, is none that buffers have.
            flat = array if array.dtype is self.fast_dtype else array.reshape(-1).view(np.uint8)
            try:
                return device.wrap(flat), True
            except ArgumentError:
                # Metal maps whole pages.
                buffer = device.from_numpy(flat)
                if self.writes:
                    copied.append((self, flat, buffer))
                return buffer, True
        if self.writes:
            self.refuse(
                "memory that the device can write in place (contiguous, and aligned to "
                f"{max(self.argument.alignment, 1)} bytes); "
                "give a buffer (device.from_numpy) and read that",
                obstacle,
            )
        return device.from_numpy(np.ascontiguousarray(array).reshape(-1).view(np.uint8)), False

    def _obstacle(self, array: np.ndarray[Any, Any]) -> str | None:
        """Why the kernel could not use the array's memory in place."""
        if not array.flags.c_contiguous:
            return f"strides {array.strides}"
        if _alignment_of(array) % max(self.argument.alignment, 1) != 0:
            return f"an address at a multiple of {_alignment_of(array)} bytes"
        return None

    def _from_dlpack(self, value: Any, device: _core.Device) -> _core.Buffer:
        try:
            buffer = _core.from_dlpack(value, device)
        except ArgumentError as error:
            kind = DTypeError if isinstance(error, DTypeError) else ArgumentError
            self.refuse(f"usable without a copy: {error.argument} {error.expected}", error.given, kind)
        self.check_elements(buffer.dtype, buffer.shape)
        return buffer


def _round_up_to_power(number: int) -> int:
    return 1 << max(number - 1, 0).bit_length()


def default_threadgroup(threads: Sequence[int], limit: int, width: int) -> tuple[int, int, int]:
    """Threads of a threadgroup for a grid of `threads`, up to 256 and up to the pipeline's limit.

    A grid of one axis gets them all on that axis, others a simdgroup's width of them there as far as the axes are
    long.
    """
    room = max(min(limit, DEFAULT_THREADS), 1)
    axes = [_round_up_to_power(max(size, 1)) for size in threads] + [1] * (3 - len(threads))
    if axes[1] == axes[2] == 1:
        return (room, 1, 1)
    x = min(axes[0], width, room)
    y = min(axes[1], room // x)
    z = min(axes[2], room // (x * y))
    return (min(axes[0], room // (y * z)), y, z)


def _axes(value: object) -> list[int]:
    """A grid's sizes as far as they can be read; the encoder refuses what is none."""
    values = value if isinstance(value, (tuple, list)) else (value,)
    return [int(axis) if isinstance(axis, (int, np.integer)) else 1 for axis in values[:3]]


_LEFT_OUT: Any = object()  # an argument that the function constants leave out of the kernel


class CompiledKernel:
    """One kernel of a :class:`CompiledSource`; call it to launch it.

    ``kernel(*arguments, threads=n)``: arguments by position (in the order of their buffer indices) or by name.
    ``arguments`` and ``help()`` show them.
    """

    def __init__(
        self,
        device: _core.Device,
        registry: _core.KernelRegistry,
        source: str,
        signature: _core.KernelSignature,
        math: str,
        constants: Mapping[str, Constant],
    ) -> None:
        self._device = device
        self._registry = registry
        self._source = source
        self._signature = signature
        self._math = math
        self._fixed = constants
        self._pipelines: dict[tuple[tuple[str, Any], ...], _core.Pipeline] = {}
        self._pipeline: _core.Pipeline | None = None  # of calls without constants
        self._group = (1, 1, 1)  # default threads of its threadgroups, for grids of one axis
        buffers: dict[int, _Parameter] = {}
        self._index_of: dict[str, int] = {}  # position by name
        for argument in signature.arguments:
            if argument.space == "threadgroup":
                continue
            if argument.index in buffers:
                buffers[argument.index].share()
            else:
                buffers[argument.index] = _Parameter(signature.name, argument)
            self._index_of[argument.name] = list(buffers).index(argument.index)
        self._parameters = list(buffers.values())
        self._optional = any(argument.is_optional for argument in signature.arguments)
        dense = list(buffers) == list(range(len(buffers)))
        # Where a function constant may leave arguments out, those that are given go by index too.
        self._indices = list(buffers) if self._optional or not dense else None
        self._memory = {a.name: a.index for a in signature.arguments if a.space == "threadgroup"}
        self.__name__ = self.__qualname__ = signature.name
        self.__signature__ = self._inspect_signature()
        self.__doc__ = f"{self._declaration()}\n\n{Arguments(signature.arguments)!r}"

    @property
    def name(self) -> str:
        """The kernel's name: its function's, or its host_name."""
        return self._signature.name

    @property
    def signature(self) -> _core.KernelSignature:
        """What the kernel takes, as read from the source."""
        return self._signature

    @property
    def arguments(self) -> Arguments:
        """Name, kind, dtype, access and index of everything that the kernel takes."""
        return Arguments(self._signature.arguments)

    @property
    def constants(self) -> dict[str, Constant]:
        """The function constants that the source was compiled with."""
        return dict(self._fixed)

    @property
    def pipeline(self) -> _core.Pipeline:
        """The pipeline of calls without ``constants``; built here where none was called before."""
        if self._pipeline is None:
            built = self._pipeline_with({})
            self._group = default_threadgroup([1], built.max_total_threads_per_threadgroup, 1)
            self._pipeline = built
        return self._pipeline

    def __call__(
        self,
        *args: Any,
        threads: Sizes | None = None,
        threadgroups: Sizes | _core.Buffer | None = None,
        threads_per_threadgroup: Sizes | None = None,
        threadgroup_memory: Sizes | Mapping[Any, int] | None = None,
        constants: Constants | None = None,
        encoder: _core.CommandEncoder | None = None,
        wait: bool | None = None,
        timeout: float | None = None,
        **named: Any,
    ) -> _core.Ticket | None:
        """Launches the kernel and returns the launch's ticket.

        args: buffers of the device; NumPy and DLPack arrays in host memory; numbers, structs and lists, typed by the
            kernel's signature. Given by position or by name; a name that Python or this call uses itself takes a
            trailing underscore (``in_=``).
        threads: threads in all, 1 to 3 integers. Or threadgroups: their number, or a u32 buffer of three.
        threads_per_threadgroup: by default up to 256, shaped like the grid.
        threadgroup_memory: bytes of [[threadgroup(0)]], or {index or name: bytes}.
        constants: values of function constants, beside those that the source was compiled with. An argument that
            they leave out (``[[function_constant(c)]]``) may be left out of the call, or be None.
        encoder: records the launch there instead of committing it; None is returned.
        wait: whether to return only when the launch is done. By default it does where it was given NumPy or DLPack
            arrays, whose readers would not wait by themselves.
        timeout: seconds that the launch may run.

        Raises ArgumentError or DTypeError, with nothing launched; the launch's own error where it waits.
        """
        if constants is None:
            pipeline = self._pipeline or self.pipeline
        else:
            pipeline = self._pipeline_with(self._checked_constants(constants))
        copied: Copied = []
        values, host = self._values(args, named, pipeline, copied)
        for option, sizes in (
            ("threads", threads),
            ("threadgroups", threadgroups),
            ("threads_per_threadgroup", threads_per_threadgroup),
            ("threadgroup_memory", threadgroup_memory),
        ):
            if sizes is not None and type(sizes) is not int:
                self._check_sizes(option, sizes)
        if threads_per_threadgroup is None:
            threads_per_threadgroup = self._default_threadgroup(pipeline, threads)
        if threadgroup_memory is not None and isinstance(threadgroup_memory, Mapping):
            threadgroup_memory = self._memory_by_index(threadgroup_memory)
        bound = values if self._indices is None else self._by_index(values)
        if encoder is not None:
            self._check_encoder(encoder, wait, timeout)
        elif wait is not None and not isinstance(wait, bool):
            _refuse(self.name, "wait", "True, False or None", shown(wait), DTypeError)
        if copied:
            self._check_copied(copied, args, named, encoder is None and wait is not False)
        # An encoder of the call's own is abandoned where it fails; a given one is its owner's.
        scope = self._device.command_encoder() if encoder is None else contextlib.nullcontext(encoder)
        with scope as target:
            target.dispatch(
                pipeline,
                bound,
                threads=threads,
                threadgroups=threadgroups,
                threads_per_threadgroup=threads_per_threadgroup,
                threadgroup_memory=threadgroup_memory,
            )
            if encoder is not None:
                return None
            ticket = target.commit(timeout)
        if host if wait is None else wait:
            ticket.wait()
            for _, array, buffer in copied:
                np.copyto(array, np.asarray(buffer))
        return ticket

    def __repr__(self) -> str:
        return f"<kernel {self._declaration()} of '{self._source}' on {self._device.kind}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"kernel '{self.name}' cannot be pickled: compile its source where it is used")

    def _declaration(self) -> str:
        return f"{self.name}({', '.join(a.declaration for a in self._signature.arguments)})"

    def _inspect_signature(self) -> inspect.Signature:
        own = list(inspect.signature(type(self).__call__).parameters.values())[2:-1]
        options = {parameter.name for parameter in own}
        either = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = []
        for parameter in self._parameters:
            taken = keyword.iskeyword(parameter.name) or parameter.name in options
            name = parameter.name + "_" if taken else parameter.name
            parameters.append(inspect.Parameter(name, either, annotation=parameter.argument.declaration))
        return inspect.Signature([*parameters, *own], return_annotation="Ticket | None")

    def _absent(self, pipeline: _core.Pipeline) -> set[int]:
        """Indices of the arguments that the pipeline's function constants leave out."""
        if not self._optional:
            return set()
        bound = {a.index for a in pipeline.signature.arguments if a.access != "none"}
        return {parameter.argument.index for parameter in self._parameters} - bound

    def _by_index(self, values: list[Any]) -> dict[int, Any]:
        assert self._indices is not None
        pairs = zip(self._indices, values, strict=True)
        return {index: value for index, value in pairs if value is not _LEFT_OUT}

    def _check_copied(
        self, copied: Copied, args: tuple[Any, ...], named: dict[str, Any], waits: bool
    ) -> None:
        """Copies stand in for arrays only where nobody can see the difference."""
        for parameter, array, _ in copied:
            if not waits:
                parameter.refuse(
                    f"memory at a multiple of {self._device.limits.wrap_alignment} bytes, since this call does not "
                    "wait to copy the result; or a buffer (device.from_numpy)",
                    f"an address at a multiple of {_alignment_of(array)} bytes",
                )
            arrays = [value for value in (*args, *named.values()) if isinstance(value, np.ndarray)]
            if sum(np.may_share_memory(array, other) for other in arrays) > 1:
                parameter.refuse(
                    "apart from other arguments, because the device works on a copy", "shared memory"
                )

    def _values(
        self, args: tuple[Any, ...], named: dict[str, Any], pipeline: _core.Pipeline, copied: Copied
    ) -> tuple[list[Any], bool]:
        """What the encoder takes, by position, and whether the memory of a host array is among it."""
        absent = self._absent(pipeline)
        if named or len(args) != len(self._parameters):
            args = self._arranged(args, named, absent)
        values: list[Any] = []
        host = False
        for parameter, value in zip(self._parameters, args, strict=True):
            kind = type(value)
            if kind is _core.Buffer:
                if value.dtype is not parameter.fast_dtype:
                    parameter.check_elements(value.dtype, value.shape)
            elif absent and (value is None or value is _LEFT_OUT) and parameter.argument.index in absent:
                value = _LEFT_OUT
            elif not (parameter.numbers and (kind is int or kind is float or kind is bool)):
                value, is_host = parameter.convert(value, self._device, copied)
                host = host or is_host
            values.append(value)
        return values, host

    def _check_sizes(self, option: str, value: object) -> None:
        """Refuses what is no size; the encoder checks how large sizes are."""
        if option == "threadgroups" and isinstance(value, _core.Buffer):
            return
        if option == "threadgroup_memory" and isinstance(value, Mapping):
            return
        values = value if isinstance(value, (tuple, list)) else (value,)
        if not all(isinstance(size, (int, np.integer)) for size in values):
            others = {
                "threadgroups": ", or a Buffer",
                "threadgroup_memory": ", or a dict {index or name: bytes}",
            }
            expected = f"an integer or a tuple or list of integers{others.get(option, '')}"
            _refuse(self.name, option, expected, shown(value), DTypeError)

    def _default_threadgroup(self, pipeline: _core.Pipeline, threads: object) -> tuple[int, int, int]:
        if pipeline is self._pipeline and (threads is None or type(threads) is int):
            return self._group
        return default_threadgroup(
            _axes(threads) if threads is not None else [1],
            pipeline.max_total_threads_per_threadgroup,
            pipeline.thread_execution_width,
        )

    def _arranged(self, args: tuple[Any, ...], named: dict[str, Any], absent: set[int]) -> tuple[Any, ...]:
        """All arguments by position."""
        names = [parameter.name for parameter in self._parameters]
        if len(args) > len(names):
            _refuse(self.name, "arguments", f"at most {len(names)} ({_listed(names)})", str(len(args)))
        given: dict[int, Any] = dict(enumerate(args))
        for word, value in named.items():
            name = word if word in self._index_of or not word.endswith("_") else word[:-1]
            position = self._index_of.get(name)
            if position is None and name in self._memory:
                _refuse(
                    self.name,
                    f"argument '{name}'",
                    "given as threadgroup_memory={name: bytes}",
                    shown(value),
                )
            if position is None:
                _refuse(
                    self.name,
                    f"argument '{word}'",
                    f"one of {_listed(list(self._index_of))}{_hint(word, list(self._index_of))}",
                    "no such argument",
                )
            if position in given:
                by_position = position < len(args)
                how = "by position and by name" if by_position else "by two names"
                _refuse(self.name, f"argument '{name}'", "given once", how)
            given[position] = value
        for position, name in enumerate(names):
            if position in given:
                continue
            if self._parameters[position].argument.index in absent:
                given[position] = _LEFT_OUT
            else:
                self._parameters[position].refuse(f"given ({name} of {_listed(names)})", "nothing")
        return tuple(given[position] for position in range(len(names)))

    def _memory_by_index(self, memory: Mapping[Any, int]) -> dict[Any, int]:
        sizes: dict[Any, int] = {}
        for key, nbytes in memory.items():
            if isinstance(key, str) and key not in self._memory:
                known = list(self._memory)
                expected = f"keys among {_listed(known)}{_hint(key, known)}"
                _refuse(self.name, "threadgroup_memory", expected, _shown_key(key))
            index = self._memory[key] if isinstance(key, str) else key
            if index in sizes:
                _refuse(
                    self.name, f"threadgroup_memory[{_shown_key(key)}]", "given once", "by name and by index"
                )
            sizes[index] = nbytes
        return sizes

    def _check_encoder(self, encoder: object, wait: object, timeout: object) -> None:
        if not isinstance(encoder, _core.CommandEncoder):
            _refuse(self.name, "encoder", "a CommandEncoder or None", shown(encoder), DTypeError)
        for option, value in (("wait", wait), ("timeout", timeout)):
            if value is not None:
                _refuse(self.name, option, "None with encoder= (its commit() decides)", shown(value))

    def _checked_constants(self, given: object) -> dict[str, Constant]:
        constants = checked_constants(given, self._signature.constants, self.name)
        for name in constants:
            if name in self._fixed:
                _refuse(
                    self.name,
                    f"constants['{name}']",
                    f"left out: the source was compiled with {self._fixed[name]!r}",
                    shown(constants[name]),
                )
        return constants

    def _pipeline_with(self, constants: dict[str, Constant]) -> _core.Pipeline:
        key = tuple(sorted((name, repr(value)) for name, value in constants.items()))
        pipeline = self._pipelines.get(key)
        if pipeline is None:
            every: dict[str | int, Constant] = {
                name: value for part in (self._fixed, constants) for name, value in part.items()
            }
            # Two threads may come here at once: the registry builds one pipeline for both.
            pipeline = self._registry.pipeline(f"{self._source}::{self.name}", every, self._math)
            self._pipelines[key] = pipeline
        return pipeline


class CompiledSource:
    """The kernels of one source, as attributes and items; what :meth:`Device.compile` gives.

    Iterating gives the kernels' names; ``source["name"]`` serves for names that are no Python identifiers. The
    kernels meet no others of the same name, and are freed with the last reference to the source or one of them.
    """

    def __init__(self, device: _core.Device, name: str, kernels: dict[str, CompiledKernel]) -> None:
        self._device = device
        self._name = name
        self._kernels = kernels

    @property
    def device(self) -> _core.Device:
        """The device that the kernels run on."""
        return self._device

    def __getattr__(self, name: str) -> CompiledKernel:
        kernels: dict[str, CompiledKernel] = self.__dict__.get("_kernels", {})
        kernel = kernels.get(name)
        if kernel is None:
            raise AttributeError(self._unknown(name, kernels))
        return kernel

    def __getitem__(self, name: str) -> CompiledKernel:
        kernel = self._kernels.get(name) if isinstance(name, str) else None
        if kernel is None:
            raise KernelNotFoundError(self._unknown(name, self._kernels))
        return kernel

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._kernels

    def __iter__(self) -> Iterator[str]:
        return iter(self._kernels)

    def __len__(self) -> int:
        return len(self._kernels)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self._kernels if name.isidentifier())]

    def _ipython_key_completions_(self) -> list[str]:
        return list(self._kernels)

    def __repr__(self) -> str:
        shown = [kernel._declaration() for kernel in self._kernels.values()][:6]
        if len(self._kernels) > len(shown):
            shown.append(f"... ({len(self._kernels)} kernels)")
        return f"<CompiledSource '{self._name}' on {self._device.kind}: {', '.join(shown)}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"source '{self._name}' cannot be pickled: compile it where it is used")

    def _unknown(self, name: object, kernels: Mapping[str, object]) -> str:
        known = list(kernels)
        source = self.__dict__.get("_name", "")
        return f"source '{source}' has no kernel {name!r}; it has: {_listed(known)}{_hint(name, known)}"


def checked_constants(given: object, known: Sequence[_core.FunctionConstant], op: str) -> dict[str, Constant]:
    """Function constants by name, each of its declared type and in its range."""
    if not isinstance(given, Mapping):
        _refuse(op, "constants", "a dict {name or index: value} or None", shown(given), DTypeError)
    by_key: dict[Any, _core.FunctionConstant] = {}
    for constant in known:
        by_key[constant.name] = by_key[constant.index] = constant
    values: dict[str, Constant] = {}
    for key, value in given.items():
        found = by_key.get(key) if isinstance(key, (str, int)) and not isinstance(key, bool) else None
        if found is None:
            names = [f"{constant.name} ({constant.index})" for constant in known]
            hint = _hint(key, [constant.name for constant in known])
            _refuse(op, f"constants[{_shown_key(key)}]", f"one of {_listed(names)}{hint}", "no such constant")
        if found.name in values:
            _refuse(op, f"constants[{_shown_key(key)}]", "given once", "by name and by index")
        values[found.name] = _core._constant_value(found, value, op)
    return values


def _check_text(value: object, argument: str) -> str:
    if not isinstance(value, str):
        _refuse("Device.compile", argument, "a str", shown(value), DTypeError)
    return value


def compile_source(
    device: _core.Device,
    source: str,
    *,
    name: str | None,
    math: Literal["safe", "fast"],
    constants: Constants | None,
    headers: Mapping[str, str] | None,
) -> CompiledSource:
    """Reads a source in a registry of its own; see :meth:`Device.compile`."""
    label = "source" if name is None else _check_text(name, "name")
    if not label or "::" in label or not label.isprintable():
        _refuse("Device.compile", "name", "printable, not empty and without '::'", shown(name))
    if _check_text(math, "math") not in ("safe", "fast"):
        _refuse("Device.compile", "math", "'safe' or 'fast'", shown(math))
    registry = _core._private_registry(device)
    if headers is not None:
        if not isinstance(headers, Mapping):
            _refuse("Device.compile", "headers", "a dict {name: text} or None", shown(headers), DTypeError)
        for header, text in headers.items():
            registry.register_header(
                _check_text(header, "headers' names"), _check_text(text, f"headers[{header!r}]")
            )
    registry.register_source(label, _check_text(source, "source"))
    signatures = registry.kernels(label)
    if not signatures:
        _refuse("Device.compile", "source", "a source with a kernel", "none in it")
    declared = signatures[0].constants
    fixed = {} if constants is None else checked_constants(constants, declared, "Device.compile")
    kernels = {
        signature.name: CompiledKernel(device, registry, label, signature, math, fixed)
        for signature in signatures
    }
    return CompiledSource(device, label, kernels)
