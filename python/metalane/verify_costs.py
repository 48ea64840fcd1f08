"""What a verification costs, by its rows: measured on the device, kept as JSON, refused where it belongs to another."""

from __future__ import annotations

import json
import math
import operator
import os
import statistics
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from ._core import DFLASH2_VERIFY_COSTS, CommandEncoder, Device
from .argument_text import shown
from .errors import ArgumentError, DTypeError
from .graph_places import refuse

__all__ = ["VerifyCostTable"]

FORMAT = 1


def _text(op: str, argument: str, value: Any) -> str:
    if not isinstance(value, str):
        refuse(op, argument, "a str", shown(value), DTypeError)
    return value


def _shape(op: str, value: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, value))
    except TypeError:
        refuse(op, "shape", "a sequence of integers", shown(value), DTypeError)


@dataclass(frozen=True)
class VerifyCostTable:
    """Seconds on the device by the number of rows, and what they belong to.

    Costs are staircases: a kernel that takes eight rows at once costs the same for one and for eight. Each number of
    rows is a measurement of its own, so that the steps stay; none is made up from its neighbours.
    """

    device: str
    """Kind and name of the device."""
    shape: tuple[int, ...]
    """What tells models apart, say (layers, hidden size, vocabulary)."""
    quantization: str
    """The weights' type, say "Q4_K"."""
    seconds: tuple[float, ...]
    """``seconds[n - 1]`` for n rows."""

    def __post_init__(self) -> None:
        op = "VerifyCostTable"
        _text(op, "device", self.device)
        _text(op, "quantization", self.quantization)
        object.__setattr__(self, "shape", _shape(op, self.shape))
        if not isinstance(self.seconds, (tuple, list)):
            refuse(op, "seconds", "a sequence of floats", shown(self.seconds), DTypeError)
        if not 1 <= len(self.seconds) < DFLASH2_VERIFY_COSTS:
            raise ArgumentError(
                f"{op}: seconds must be 1 to {DFLASH2_VERIFY_COSTS - 1} values, got {len(self.seconds)}"
            )
        for rows, value in enumerate(self.seconds, 1):
            if not (isinstance(value, float) and math.isfinite(value) and value > 0):
                raise ArgumentError(
                    f"{op}: seconds of {rows} rows must be finite and positive, got {shown(value)}"
                )
        object.__setattr__(self, "seconds", tuple(map(float, self.seconds)))

    @staticmethod
    def key_of(device: Device) -> str:
        """How a table names a device."""
        return f"{device.kind}: {device.name}"

    @classmethod
    def measure(
        cls,
        device: Device,
        encode: Callable[[CommandEncoder, int], object],
        *,
        rows: int,
        shape: Sequence[int],
        quantization: str,
        warmup: int = 2,
        repeats: int = 7,
    ) -> VerifyCostTable:
        """Times ``encode(encoder, n)`` for n from 1 to `rows`: medians of the device's time.

        `encode` records what a serving step does for n rows in all: at least the target's products, better all of it,
        since what every step costs is what more rows are weighed against. Repeats go through all numbers in turn, so
        that a slow moment of the machine does not fall on one of them.
        """
        op = "VerifyCostTable.measure"
        for name, value, least in (("rows", rows, 1), ("warmup", warmup, 0), ("repeats", repeats, 1)):
            if not hasattr(value, "__index__"):
                refuse(op, name, "an integer", shown(value), DTypeError)
            if value < least:
                refuse(op, name, f"at least {least}", shown(value))
        if rows >= DFLASH2_VERIFY_COSTS:
            refuse(op, "rows", f"below {DFLASH2_VERIFY_COSTS}", shown(rows))
        key = _shape(op, shape), _text(op, "quantization", quantization)
        times: list[list[float]] = [[] for _ in range(rows)]
        for turn in range(warmup + repeats):
            for n in range(1, rows + 1):
                encoder = device.command_encoder()
                encode(encoder, n)
                ticket = encoder.commit()
                ticket.wait()
                if not ticket.gpu_time:
                    refuse(op, "device", "one that times its work", f"no time for {n} rows")
                if turn >= warmup:
                    times[n - 1].append(ticket.gpu_time)
        medians = tuple(statistics.median(of_rows) for of_rows in times)
        return cls(cls.key_of(device), *key, medians)

    def costs(self, *, overhead: float = 0.0) -> list[float]:
        """The 65 costs of `DFlash2VerifyRowsParams.with_costs`, by rows in all; `overhead` seconds are added to each.

        Numbers of rows that were not measured are NaN, which `dispatch_dflash2_verify_rows` refuses where a choice
        could come to them.
        """
        if not (isinstance(overhead, (int, float)) and 0 <= overhead < math.inf):
            refuse("VerifyCostTable.costs", "overhead", "seconds from 0 up", shown(overhead))
        given = [math.nan, *(overhead + value for value in self.seconds)]
        return given + [math.nan] * (DFLASH2_VERIFY_COSTS - len(given))

    def save(self, path: str | PathLike[str]) -> None:
        """As JSON, which replaces the file as a whole."""
        target = Path(path)
        # A name of its own, for several writers at once.
        fresh = target.with_name(f"{target.name}.{os.getpid()}.{threading.get_ident()}.new")
        try:
            fresh.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")
            fresh.replace(target)
        finally:
            fresh.unlink(missing_ok=True)

    @classmethod
    def load(
        cls, path: str | PathLike[str], *, device: Device, shape: Sequence[int], quantization: str
    ) -> VerifyCostTable:
        """Raises ArgumentError, naming the field, where the file is no table or belongs to something else."""
        op = "VerifyCostTable.load"
        if not isinstance(device, Device):
            refuse(op, "device", "a Device", shown(device), DTypeError)
        key = _shape(op, shape), _text(op, "quantization", quantization)
        try:
            content = json.loads(Path(path).read_bytes())
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"{op}: {path} must be JSON, got {error}") from error
        names = {"format", "device", "shape", "quantization", "seconds"}
        if not isinstance(content, dict) or set(content) != names:
            given = sorted(content) if isinstance(content, dict) else type(content).__name__
            raise ArgumentError(f"{op}: {path} must have the fields {sorted(names)}, got {given}")
        expected = {
            "format": FORMAT,
            "device": cls.key_of(device),
            "shape": list(key[0]),
            "quantization": key[1],
        }
        for name, value in expected.items():
            # As text: 1 equals 1.0 and True.
            if json.dumps(content[name]) != json.dumps(value):
                refuse(op, name, repr(value), f"{content[name]!r} in {path}")
        if not isinstance(content["seconds"], list):
            refuse(op, "seconds", "a list", f"{content['seconds']!r} in {path}")
        return cls(content["device"], *key, tuple(content["seconds"]))
