"""What `metalane check` launches a kernel with: cases from TOML, and inputs made up from the signature."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from . import _core
from .compiled import CompiledKernel
from .errors import Error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_THREADS = 256
DEFAULT_THREADGROUP = 64  # several threadgroups of several simdgroups
MOST_ELEMENTS = 1 << 28
FILLS = ("random", "zeros", "arange", "empty")
# Small enough that a number which a kernel takes for an index or a length stays inside arrays of the default size.
SMALL = 8


class UsageError(Error):
    """A case that says something which the kernel or the command does not know."""


@dataclass(frozen=True)
class Case:
    """One launch to check."""

    kernel: str
    threads: tuple[int, ...] = (DEFAULT_THREADS,)
    group: tuple[int, ...] | None = None
    seed: int = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[Any, Any] = field(default_factory=dict)
    memory: Mapping[str, int] = field(default_factory=dict)


def sizes(value: object, what: str) -> tuple[int, ...]:
    """One to three positive integers, given as a number, a list, or text with commas."""
    if isinstance(value, str):
        parts = value.split(",")
        value = [int(part) if part.strip().isdecimal() else part for part in parts]
    items = value if isinstance(value, list) else [value]
    good = 1 <= len(items) <= 3 and all(type(item) is int and 1 <= item < 1 << 31 for item in items)
    if not good:
        raise UsageError(f"{what}: expected 1 to 3 positive integers, got {_shown(value)}")
    return tuple(items)


def assignments(texts: list[str], option: str) -> dict[str, Any]:
    """Values of ``name=value`` words; a value is written as in TOML."""
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"{option}: expected NAME=VALUE, got {_shown(text)}")
        try:
            parsed = tomllib.loads(f"value = {value}")
        except (tomllib.TOMLDecodeError, RecursionError):  # hundreds of brackets
            parsed = {}
        if list(parsed) != ["value"]:
            raise UsageError(
                f"{option} {name}: expected a value as TOML has it (7, [1, 2], {{count = 9}}), got {_shown(value)}"
            )
        if name in values:
            raise UsageError(f"{option} {name}: expected once, got twice")
        values[name] = parsed["value"]
    return values


def read_cases(path: Path) -> list[Case]:
    """The cases of a TOML file: tables ``[[case]]`` with the fields of :class:`Case`."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path}: {error}") from None
    except RecursionError:
        raise UsageError(f"{path}: expected values in a few brackets, got too many") from None
    tables = table.pop("case", None)
    if table or not isinstance(tables, list) or not all(isinstance(entry, dict) for entry in tables):
        raise UsageError(f"{path}: expected tables [[case]] and nothing else, got {_shown(list(table))}")
    return [_case(entry, f"{path}: case {number}") for number, entry in enumerate(tables, 1)]


def _case(entry: dict[str, Any], where: str) -> Case:
    known = [each.name for each in fields(Case)]
    for name, value in entry.items():
        if name not in known:
            raise UsageError(f"{where}: expected {', '.join(known)}, got '{name}'")
        is_table = name in ("arguments", "constants", "memory")
        if is_table and not isinstance(value, dict):
            raise UsageError(f"{where}: {name}: expected a table, got {_shown(value)}")
    if not isinstance(entry.get("kernel"), str):
        raise UsageError(f"{where}: kernel: expected a name, got {_shown(entry.get('kernel'))}")
    seed = entry.get("seed", 0)
    if type(seed) is not int or seed < 0:
        raise UsageError(f"{where}: seed: expected an integer from 0 on, got {_shown(seed)}")
    chosen = dict(entry)
    for name in ("threads", "group"):
        if name in chosen:
            chosen[name] = sizes(chosen[name], f"{where}: {name}")
    return Case(**chosen)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _plain(value: Any) -> Any:
    """A NumPy value as Python has it; records are dicts, as in TOML."""
    if value.dtype.names is None:
        return value.tolist()
    if value.shape:
        return [_plain(each) for each in value]
    return {name: _plain(value[name]) for name in value.dtype.names}


# Inputs ---------------------------------------------------------------------------------------------------------------


def _random(
    dtype: np.dtype[Any], shape: tuple[int, ...], random: np.random.Generator
) -> np.ndarray[Any, Any]:
    """Numbers of a scalar dtype, of a size that kernels expect: normal deviates, small integers."""
    if dtype.names is not None:
        record = np.zeros(shape, dtype)
        for name in dtype.names:
            base, inner = dtype[name].base, dtype[name].shape
            record[name] = _random(base, shape + inner, random)
        return record
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    if dtype.kind in "iu":
        return random.integers(0, SMALL, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def _element(argument: _core.KernelArgument) -> tuple[np.dtype[Any], int]:
    """The dtype of an argument's numbers, and how many of them one element has."""
    dtype = argument.dtype
    if dtype is None:
        return np.dtype(np.uint8), max(argument.size, 1)
    return dtype, max(argument.size // dtype.itemsize, 1)


def _array(
    argument: _core.KernelArgument, count: int, fill: str, random: np.random.Generator
) -> np.ndarray[Any, Any]:
    dtype, numbers = _element(argument)
    if count * numbers > MOST_ELEMENTS:
        raise UsageError(
            f"argument '{argument.name}': expected at most {MOST_ELEMENTS // numbers} elements, got {count}"
        )
    if fill == "arange":
        if dtype.names is not None:
            raise UsageError(
                f"argument '{argument.name}': expected 'random' or 'zeros' for structs, got 'arange'"
            )
        return np.arange(count * numbers).astype(dtype)
    if fill == "zeros":
        return np.zeros(count * numbers, dtype)
    return _random(dtype, (count * numbers,), random)


class Inputs:
    """Arguments of one launch, and how they were chosen."""

    def __init__(self, device: _core.Device, kernel: CompiledKernel, case: Case) -> None:
        self._device = device
        self._kernel = kernel
        self._case = case
        self._random = np.random.default_rng(case.seed)
        self.values: dict[str, Any] = {}
        self.described: list[str] = []
        arguments = {argument.name: argument for argument in kernel.arguments}
        for option, given, known in (
            ("argument", case.arguments, [n for n, a in arguments.items() if a.kind != "threadgroup"]),
            ("memory", case.memory, [n for n, a in arguments.items() if a.kind == "threadgroup"]),
        ):
            for name in given:
                if name not in known:
                    names = ", ".join(known) or "none"
                    raise UsageError(f"kernel '{kernel.name}': {option} '{name}': expected one of {names}")
        for argument in kernel.arguments:
            if argument.kind != "threadgroup":
                self._choose(argument)
        self.memory = {
            name: self._memory(argument)
            for name, argument in arguments.items()
            if argument.kind == "threadgroup"
        }

    def _choose(self, argument: _core.KernelArgument) -> None:
        name = argument.name
        given = self._case.arguments.get(name)
        if argument.kind == "buffer":
            self.values[name] = self._buffer(argument, given)
        elif given is not None:
            self.values[name] = given
            self.described.append(f"{name} = {_shown(given)}")
        else:
            self.values[name], text = self._number(argument)
            self.described.append(f"{name} = {text} (random)")

    def _number(self, argument: _core.KernelArgument) -> tuple[bytes, str]:
        dtype, numbers = _element(argument)
        value = _random(dtype, (numbers,), self._random)
        if dtype.names is None and dtype.kind in "iu":
            value += 1  # lengths and strides
        if dtype.names is None:
            shown = [number.item() if dtype.kind in "iub" else f"{float(number):.3g}" for number in value]
            text = str(shown[0]) if numbers == 1 else f"({', '.join(map(str, shown))})"
        else:
            text = _shown(_plain(value[0]))
        return value.tobytes(), text

    def _buffer(self, argument: _core.KernelArgument, given: Any) -> _core.Buffer:
        name = argument.name
        count = math.prod(self._case.threads)
        # Counters begin with nothing.
        fill = "zeros" if "atomic" in argument.declaration else "random"
        if isinstance(given, dict):
            for key in given:
                if key not in ("count", "fill"):
                    raise UsageError(f"argument '{name}': expected count and fill, got '{key}'")
            count, fill = given.get("count", count), given.get("fill", fill)
            if type(count) is not int or count < 1:
                raise UsageError(
                    f"argument '{name}': count: expected a positive integer, got {_shown(count)}"
                )
            if fill not in FILLS:
                raise UsageError(
                    f"argument '{name}': fill: expected one of {', '.join(FILLS)}, got {_shown(fill)}"
                )
        elif isinstance(given, list):
            return self._listed(argument, given)
        elif given is not None:
            raise UsageError(
                f"argument '{name}': expected a list or {{count = ..., fill = ...}} for '{argument.declaration}', "
                f"got {_shown(given)}"
            )
        dtype, numbers = _element(argument)
        self.described.append(f"{name}: {count} {argument.type}, {fill}")
        # Buffers have no elements of bool or of structs: those go as bytes.
        plain = dtype.names is None and dtype.kind != "b"
        if fill == "empty":
            return self._device.empty(
                count * numbers * (1 if plain else dtype.itemsize), dtype if plain else np.uint8
            )
        array = _array(argument, count, fill, self._random)
        return self._device.from_numpy(array if plain else array.view(np.uint8))

    def _listed(self, argument: _core.KernelArgument, given: list[Any]) -> _core.Buffer:
        dtype, _ = _element(argument)
        try:
            array = np.array(given)
            fits = array.size > 0 and array.dtype.kind in "iufb" and dtype.names is None
            if dtype.kind in "iu" and fits:
                info = np.iinfo(dtype)
                fits = array.dtype.kind in "iu" and info.min <= array.min() and array.max() <= info.max
        except ValueError:  # lists of unequal lengths
            fits = False
        if not fits:
            raise UsageError(
                f"argument '{argument.name}': expected a list of numbers of {argument.type}, got {_shown(given)}"
            )
        self.described.append(f"{argument.name}: {array.size} numbers given")
        flat = array.reshape(-1).astype(dtype)
        return self._device.from_numpy(flat.view(np.uint8) if dtype.kind == "b" else flat)

    def _memory(self, argument: _core.KernelArgument) -> int:
        given = self._case.memory.get(argument.name)
        if given is None:
            # Metal wants multiples of 16 bytes.
            given = -(-math.prod(group_of(self._case)) * max(argument.size, 1) // 16) * 16
        if type(given) is not int or given < 0:
            raise UsageError(f"memory '{argument.name}': expected a number of bytes, got {_shown(given)}")
        self.described.append(f"{argument.name}: {given} bytes")
        return given


def group_of(case: Case) -> tuple[int, ...]:
    """Threads of a threadgroup: as given, or 64 of them, shaped like the grid."""
    if case.group is not None:
        return case.group
    if len(case.threads) == 1:
        return (min(DEFAULT_THREADGROUP, case.threads[0]),)
    side = (8, 8) if len(case.threads) == 2 else (4, 4, 4)
    return tuple(min(size, threads) for size, threads in zip(side, case.threads, strict=True))


# Sources --------------------------------------------------------------------------------------------------------------

_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def read_source(path: Path) -> str:
    """The text of a source or header."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: expected text in UTF-8") from None


def headers_of(path: Path, text: str, folders: list[Path]) -> dict[str, str]:
    """Texts of what a source includes between quotes, and of what those include, by the name that they are included by.

    They are looked for beside the file that includes them, beside the source, and in `folders`. What is found nowhere
    is left to the library, which has headers of its own.
    """
    headers: dict[str, str] = {}
    waiting = [(path.parent, text)]
    while waiting:
        folder, body = waiting.pop()
        for name in _INCLUDE.findall(body):
            if name in headers:
                continue
            for candidate in (folder, path.parent, *folders):
                found = candidate / name
                if found.is_file():
                    headers[name] = read_source(found)
                    waiting.append((found.parent, headers[name]))
                    break
    return headers
