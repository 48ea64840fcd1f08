"""The table of verification costs: measured in turns, steps kept, saved, and refused where it belongs to another."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import metalane

KEY: dict[str, Any] = {"shape": (640, 2048), "quantization": "Q8_0"}


def staircase(rows: int) -> float:
    """Seconds of kernels that take eight rows at once."""
    return 1e-3 * (1 + (rows - 1) // 8)


class TimedTicket:
    def __init__(self, seconds: float) -> None:
        self.gpu_time = seconds

    def wait(self) -> None:
        pass


class TimedDevice:
    """A device on which every launch takes what `time` says for the rows and the how-manieth time it is."""

    kind, name = "cpu", "timed"

    def __init__(self, time: Callable[[int, int], float]) -> None:
        self.time = time
        self.calls: list[int] = []

    def command_encoder(self) -> TimedDevice:
        return self

    def commit(self) -> TimedTicket:
        rows = self.calls[-1]
        return TimedTicket(self.time(rows, self.calls.count(rows)))

    def encode(self, encoder: Any, rows: int) -> None:
        assert encoder is self
        self.calls.append(rows)


def test_medians_keep_the_steps() -> None:
    """A slow first time and one outlier in five do not show; neighbours are not averaged."""
    device = TimedDevice(lambda rows, turn: staircase(rows) * (50 if turn in (1, 4) else 1))
    table = metalane.VerifyCostTable.measure(device, device.encode, rows=64, warmup=1, repeats=5, **KEY)
    assert table.seconds == tuple(staircase(rows) for rows in range(1, 65))
    assert device.calls == [*range(1, 65)] * 6
    costs = table.costs()
    assert math.isnan(costs[0])
    assert costs[1:] == [staircase(rows) for rows in range(1, 65)]


def test_fewer_rows_leave_the_rest_open() -> None:
    device = TimedDevice(lambda rows, turn: staircase(rows))
    table = metalane.VerifyCostTable.measure(device, device.encode, rows=8, **KEY)
    costs = table.costs(overhead=0.5)
    assert costs[1:9] == [0.5 + staircase(rows) for rows in range(1, 9)]
    assert all(math.isnan(cost) for cost in costs[9:])
    null = metalane.Device("null")
    buffers = null.zeros((1, 15), "f32"), null.zeros(1, "u32")
    model = metalane.AcceptanceModel()
    with null.command_encoder() as encoder:
        params = model.verify_rows_params(costs, rows_per_lane=16, maximum=[8])
        metalane.dispatch_dflash2_verify_rows(encoder, *buffers, params)
        params = model.verify_rows_params(costs, rows_per_lane=16, maximum=[9])
        with pytest.raises(metalane.ArgumentError, match=r"cost\[9\] must be finite and positive, got nan"):
            metalane.dispatch_dflash2_verify_rows(encoder, *buffers, params)


def test_a_real_device_is_measured(device: metalane.Device) -> None:
    """Two rows that record 200 copies of a MiB, tens of milliseconds, take longer than one that records one."""
    source, target = (device.zeros(1 << 20, np.uint8) for _ in range(2))

    def encode(encoder: metalane.CommandEncoder, rows: int) -> None:
        for _ in range(1 if rows == 1 else 200):
            encoder.copy(source, target)

    table = metalane.VerifyCostTable.measure(device, encode, rows=2, **KEY)
    assert table.device == f"{device.kind}: {device.name}"
    assert table.seconds[1] > table.seconds[0] > 0


@pytest.fixture
def saved(tmp_path: Path, null_device: metalane.Device) -> Path:
    path = tmp_path / "costs.json"
    seconds = tuple(staircase(rows) for rows in range(1, 33))
    metalane.VerifyCostTable(metalane.VerifyCostTable.key_of(null_device), **KEY, seconds=seconds).save(path)
    return path


def test_what_is_saved_is_loaded(saved: Path, null_device: metalane.Device) -> None:
    table = metalane.VerifyCostTable.load(saved, device=null_device, **KEY)
    assert table.seconds == tuple(staircase(rows) for rows in range(1, 33))
    assert (table.shape, table.quantization) == ((640, 2048), "Q8_0")
    table.save(saved)
    assert metalane.VerifyCostTable.load(saved, device=null_device, **KEY) == table
    assert [path.name for path in saved.parent.iterdir()] == ["costs.json"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"device": metalane.Device("cpu")}, "device must be 'cpu: .*', got 'null: .*'"),
        ({"shape": (640, 2049)}, r"shape must be \[640, 2049\], got \[640, 2048\]"),
        ({"quantization": "Q4_K"}, "quantization must be 'Q4_K', got 'Q8_0'"),
    ],
)
def test_another_key_is_refused_by_field(
    saved: Path, null_device: metalane.Device, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(metalane.ArgumentError, match=words):
        metalane.VerifyCostTable.load(saved, **{"device": null_device, **KEY, **changes})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda content: {**content, "format": 2}, "format must be 1, got 2"),
        (lambda content: {**content, "format": True}, "format must be 1, got True"),
        (lambda content: {**content, "shape": [640.0, 2048]}, r"shape must be \[640, 2048\], got \[640.0"),
        (lambda content: {**content, "seconds": []}, "seconds must be 1 to 64 values, got 0"),
        (lambda content: {**content, "seconds": [1.0] * 65}, "got 65"),
        (
            lambda content: {**content, "seconds": [1.0, -1.0]},
            "seconds of 2 rows must be finite and positive",
        ),
        (lambda content: {**content, "seconds": [float("nan")]}, "seconds of 1 rows must be finite"),
        (lambda content: {**content, "seconds": ["1"]}, "seconds of 1 rows"),
        (lambda content: {**content, "seconds": 3}, "seconds must be a list, got 3"),
        (lambda content: {**content, "more": 1}, "must have the fields"),
        (lambda content: {"format": 1}, "must have the fields"),
        (lambda content: [1], "must have the fields .* got list"),
    ],
)
def test_files_that_are_no_tables_are_refused(
    saved: Path, null_device: metalane.Device, spoil: Any, words: str
) -> None:
    saved.write_text(json.dumps(spoil(json.loads(saved.read_text()))))
    with pytest.raises(metalane.ArgumentError, match=words):
        metalane.VerifyCostTable.load(saved, device=null_device, **KEY)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"", b"[" * 100_000, b"1" * 5000])
def test_files_that_are_no_json_are_refused(
    saved: Path, null_device: metalane.Device, content: bytes
) -> None:
    saved.write_bytes(content)
    with pytest.raises(metalane.ArgumentError, match="must be JSON"):
        metalane.VerifyCostTable.load(saved, device=null_device, **KEY)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"rows": 0}, "rows"),
        ({"rows": 65}, "below 65"),
        ({"repeats": 0}, "repeats"),
        ({"warmup": -1}, "warmup"),
        ({"repeats": -(10**5000)}, "repeats must be at least 1, got an integer of 16610 bits"),
        ({"rows": 10**5000}, "rows must be below 65, got an integer of 16610 bits"),
        ({"shape": 10**5000}, "shape must be a sequence of integers, got an integer of 16610 bits"),
        ({"rows": 2.0}, r"measure: rows must be an integer, got 2\.0 \(float\)"),
        ({"rows": None}, "rows must be an integer, got None"),
        ({"repeats": "3"}, "repeats must be an integer"),
        ({"shape": 3}, r"shape must be a sequence of integers, got 3 \(int\)"),
        ({"shape": "ab"}, "shape must be a sequence of integers"),
        ({"quantization": None}, "quantization must be a str, got None"),
    ],
)
def test_measurements_that_are_none_are_refused(given: dict[str, Any], words: str) -> None:
    device = TimedDevice(lambda rows, turn: 1.0)
    with pytest.raises(metalane.ArgumentError, match=words):
        metalane.VerifyCostTable.measure(device, device.encode, **{"rows": 4, **KEY, **given})
    assert device.calls == []


def test_a_device_that_runs_nothing_is_refused(null_device: metalane.Device) -> None:
    target = null_device.zeros(4, "f32")
    with pytest.raises(
        metalane.ArgumentError, match="device must be one that times its work, got no time for 1"
    ):
        metalane.VerifyCostTable.measure(
            null_device, lambda encoder, rows: encoder.fill(target, 1), rows=2, **KEY
        )


def test_numbers_of_numpy_are_saved(tmp_path: Path, null_device: metalane.Device) -> None:
    key: dict[str, Any] = {"shape": tuple(np.array([640, 2048])), "quantization": "Q8_0"}
    name = metalane.VerifyCostTable.key_of(null_device)
    table = metalane.VerifyCostTable(name, **key, seconds=list(np.array([1.0, 2.0])))
    assert repr(table.shape) == "(640, 2048)" and repr(table.seconds) == "(1.0, 2.0)"
    table.save(tmp_path / "costs.json")
    assert metalane.VerifyCostTable.load(tmp_path / "costs.json", device=null_device, **key) == table


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    table = metalane.VerifyCostTable("cpu", **KEY, seconds=(1.0,))
    with pytest.raises(IsADirectoryError):
        table.save(tmp_path / "folder")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("overhead", [-1.0, math.nan, math.inf, "1", None])
def test_overheads_that_are_none_are_refused(overhead: Any) -> None:
    table = metalane.VerifyCostTable("cpu", **KEY, seconds=(1.0,))
    with pytest.raises(metalane.ArgumentError, match=r"VerifyCostTable\.costs: overhead must be seconds"):
        table.costs(overhead=overhead)
