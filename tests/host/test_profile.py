"""Profiles: what they see, their times, labels, exports, and the command that runs scripts under one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest

import metalane

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void copy_words(device const uint* x [[buffer(0)]], device uint* y [[buffer(1)]],
                       uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void spin(device uint* x [[buffer(0)]], constant uint& n [[buffer(1)]]) {
  uint a = x[0];
  for (uint i = 0; i < n; ++i) a = a * 1664525u + 1013904223u;
  x[0] = a;
}
"""


@pytest.fixture(scope="module")
def opened(device_kind: str) -> metalane.Device:
    device = metalane.Device(device_kind)
    device.registry.register_source("work", SOURCE)
    return device


def copy(encoder: metalane.CommandEncoder, x: metalane.Buffer, y: metalane.Buffer) -> None:
    encoder.dispatch("copy_words", [x, y], threads=x.shape[0], threads_per_threadgroup=32)


def words(device: metalane.Device, count: int = 64) -> metalane.Buffer:
    return device.zeros(count, "u32")


def events(profile: metalane.Profile) -> list[dict[str, Any]]:
    return json.loads(profile.trace_json())["traceEvents"]


def slices(profile: metalane.Profile, category: str) -> list[dict[str, Any]]:
    return [event for event in events(profile) if event["ph"] == "X" and event["cat"] == category]


# What is seen ---------------------------------------------------------------------------------------------------------


def test_counters_are_exact(opened: metalane.Device) -> None:
    x, y, z = words(opened), words(opened), words(opened, 16)
    with opened.profile() as profile:
        with opened.command_encoder() as encoder:
            copy(encoder, x, y)
            copy(encoder, y, x)  # behind a barrier
        with opened.command_encoder() as encoder:
            copy(encoder, z, z.view(0, 16))
    counters = profile.counters
    assert (counters.submissions, counters.launches, counters.barriers) == (2, 3, 1)
    # `device uint*` counts as read and written.
    assert counters.bytes_read == 2 * (256 + 256) + 2 * 64
    assert counters.bytes_written == 2 * 256 + 64
    assert counters.failed_submissions == 0
    first, second = profile.submissions
    assert [launch.kernel for launch in first.launches] == ["copy_words"] * 2
    assert [launch.after_barrier for launch in first.launches] == [False, True]
    assert (first.launch_count, first.barrier_count, second.launch_count) == (2, 1, 1)
    assert (second.bytes_read, second.bytes_written) == (128, 64)


def test_only_what_is_opened_and_committed_while_it_runs_is_seen(opened: metalane.Device) -> None:
    x = words(opened)
    before = opened.command_encoder()
    copy(before, x, words(opened))
    with opened.profile() as profile:
        before.commit_and_wait()
        copy(opened.command_encoder(), x, words(opened))  # dropped
        seen = opened.command_encoder()
        copy(seen, x, words(opened))
        seen.commit()
        late = opened.command_encoder()
        copy(late, x, words(opened))
    late.commit_and_wait()
    with opened.command_encoder() as after:
        copy(after, x, words(opened))
    assert profile.counters.submissions == 1
    assert not profile.running


def test_one_profile_at_a_time(opened: metalane.Device) -> None:
    with opened.profile(), pytest.raises(metalane.ArgumentError, match="being profiled"):
        opened.profile()
    with opened.profile():
        pass
    running = opened.profile()
    del running  # ends with its last reference
    with opened.profile():
        pass


def test_graphs_are_seen(opened: metalane.Device) -> None:
    x, y = words(opened), words(opened)
    with opened.command_encoder() as encoder, encoder.capture() as captured, encoder.label("layer"):
        for name in ("attention", "mlp"):
            with encoder.label(name):
                copy(encoder, x, y)
    graph = captured.graph
    with opened.profile() as profile:
        with opened.command_encoder() as encoder, encoder.label("again"):
            graph.encode(encoder)
        graph.replay()
    encoded, replayed = profile.submissions
    assert [launch.label for launch in encoded.launches] == ["again/layer/attention", "again/layer/mlp"]
    assert [launch.label for launch in replayed.launches] == ["layer/attention", "layer/mlp"]
    assert replayed.barrier_count == 1
    assert replayed.done
    if opened.kind == "cpu":
        ranges = [(one["name"], one["args"]["depth"]) for one in slices(profile, "label")]
        assert ranges == [
            ("again", 0), ("layer", 1), ("attention", 2), ("mlp", 2), ("layer", 0), ("attention", 1), ("mlp", 1)
        ]  # fmt: skip


def test_launches_past_the_most_are_counted_only(opened: metalane.Device) -> None:
    x, y = words(opened), words(opened)
    with opened.profile(max_launches=3) as profile:
        for _ in range(2):
            with opened.command_encoder() as encoder:
                copy(encoder, x, y)
                copy(encoder, x, y)
    assert profile.counters.launches == 4
    assert [len(submission.launches) for submission in profile.submissions] == [2, 1]
    assert "1 launches past max_launches are counted only" in profile.table()


@pytest.mark.cpu
@pytest.mark.metalane_check(False)
def test_a_failed_submission_is_marked(cpu_device: metalane.Device) -> None:
    kernel = cpu_device.compile("kernel void wild(device uint* x) { x[1u << 30] = 1; }")
    with cpu_device.profile() as profile:
        ticket = kernel.wild(words(cpu_device), threads=1)
        with pytest.raises(metalane.CommandBufferError):
            ticket.wait()
    assert profile.counters.failed_submissions == 1
    assert profile.submissions[0].failed


def test_a_block_that_raises_ends_the_profile(opened: metalane.Device) -> None:
    with pytest.raises(KeyError), opened.profile() as profile:
        raise KeyError
    assert not profile.running


# Times ----------------------------------------------------------------------------------------------------------------


def test_times_lie_within_each_other(opened: metalane.Device) -> None:
    x, y = words(opened), words(opened)
    with opened.profile() as profile:
        for _ in range(3):
            with opened.command_encoder() as encoder:
                copy(encoder, x, y)
                copy(encoder, y, x)
    ends = 0.0
    for submission in profile.submissions:
        assert submission.commit_seconds <= submission.start_seconds <= submission.end_seconds
        assert submission.end_seconds <= submission.done_seconds
        assert submission.start_seconds >= ends
        ends = submission.end_seconds
    assert profile.counters.device_seconds == pytest.approx(
        sum(submission.end_seconds - submission.start_seconds for submission in profile.submissions)
    )


@pytest.mark.cpu
def test_the_cpu_device_times_each_launch() -> None:
    device = metalane.Device("cpu")
    device.registry.register_source("work", SOURCE)
    x, counts = words(device), (2_000_000, 1)
    with device.command_encoder() as encoder:  # compiled before it is timed
        encoder.dispatch("spin", [x, 1], threads=1, threads_per_threadgroup=1)
    begin = time.monotonic()
    with device.profile() as profile, device.command_encoder() as encoder:
        for count in counts:
            encoder.dispatch("spin", [x, count], threads=1, threads_per_threadgroup=1)
    end = time.monotonic()
    (submission,) = profile.submissions
    long, short = submission.launches
    assert begin <= submission.start_seconds <= long.start_seconds <= long.end_seconds <= short.start_seconds
    assert short.start_seconds <= short.end_seconds <= submission.end_seconds <= end
    # A multiplication waits for the one before it: 3 cycles, and no processor has 10 GHz.
    assert long.end_seconds - long.start_seconds > 2_000_000 * 3 / 10e9


def test_a_device_that_runs_nothing_has_no_times(null_device: metalane.Device) -> None:
    null_device.registry.register_source("work", SOURCE)
    with null_device.profile() as profile, null_device.command_encoder() as encoder:
        copy(encoder, words(null_device), words(null_device))
    (submission,) = profile.submissions
    assert submission.done
    assert (submission.start_seconds, submission.end_seconds) == (None, None)
    assert submission.launches[0].start_seconds is None
    assert slices(profile, "submission") == slices(profile, "launch") == []
    ElementTree.fromstring(profile.timeline_svg())
    assert "1 launches" in profile.table()


# Exports --------------------------------------------------------------------------------------------------------------


def nested(device: metalane.Device) -> metalane.Profile:
    x, y = words(device), words(device)
    with device.profile() as profile, device.command_encoder() as encoder:
        with encoder.label("layer"):
            copy(encoder, x, y)
            with encoder.label("attention"):
                copy(encoder, x, y)
                copy(encoder, x, y)
            with encoder.label("attention"):
                copy(encoder, x, y)
        with encoder.label("layer"):
            copy(encoder, x, y)
        copy(encoder, x, y)
    return profile


@pytest.mark.cpu
def test_label_ranges_nest_in_the_trace(cpu_device: metalane.Device) -> None:
    cpu_device.registry.register_source("work", SOURCE)
    profile = nested(cpu_device)
    launches, ranges = slices(profile, "launch"), slices(profile, "label")
    (submission,) = slices(profile, "submission")
    assert [launch["args"]["depth"] for launch in launches] == [1, 2, 2, 2, 1, 0]
    assert [(one["name"], one["args"]["depth"]) for one in ranges] == [
        ("layer", 0),
        ("attention", 1),
        ("attention", 1),
        ("layer", 0),
    ]

    def inside(event: dict[str, Any]) -> list[int]:
        begin, end = event["ts"], event["ts"] + event["dur"] + 1e-9
        return [i for i, one in enumerate(launches) if begin <= one["ts"] and one["ts"] + one["dur"] <= end]

    assert [inside(one) for one in ranges] == [[0, 1, 2, 3], [1, 2], [3], [4]]
    assert inside(submission) == [0, 1, 2, 3, 4, 5]
    assert launches[0]["args"] == {"depth": 1, "bytes read": 512, "bytes written": 256}
    assert submission["args"]["launches"] == 6


def test_the_trace_has_what_viewers_ask_for(opened: metalane.Device) -> None:
    profile = nested(opened)
    trace = json.loads(profile.trace_json())
    assert set(trace) == {"displayTimeUnit", "traceEvents"}
    for event in trace["traceEvents"]:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert event["ph"] in "MXbe"
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    begun = [event["id"] for event in trace["traceEvents"] if event["ph"] == "b"]
    ended = [event["id"] for event in trace["traceEvents"] if event["ph"] == "e"]
    assert begun == ended == [0]


@pytest.mark.cpu
def test_any_label_makes_valid_exports(cpu_device: metalane.Device) -> None:
    cpu_device.registry.register_source("work", SOURCE)
    names = ['a "quoted" \\ name', "line\nbreak\x01", "<&>", "ünïcode 語", "/", "a//b", ""]
    x, y = words(cpu_device), words(cpu_device)
    with cpu_device.profile() as profile, cpu_device.command_encoder() as encoder:
        for name in names:
            with encoder.label(name):
                copy(encoder, x, y)
    assert [launch.label for launch in profile.submissions[0].launches] == names
    found = {event["name"] for event in slices(profile, "label")}
    assert {names[0], names[1], names[2], names[3]} <= found
    picture = profile.timeline_svg()
    ElementTree.fromstring(picture)
    assert "\x01" not in picture
    assert "\x01" not in profile.table()


@pytest.mark.cpu
def test_the_table_sums_by_label_and_kernel(cpu_device: metalane.Device) -> None:
    cpu_device.registry.register_source("work", SOURCE)
    profile = nested(cpu_device)
    head, *rows = [line.split() for line in profile.table().splitlines()[:5]]
    assert head[:3] == ["label", "kernel", "launches"]
    found = {tuple(row[:-7]): int(row[-7]) for row in rows if len(row) > 7}
    assert found[("layer/attention", "copy_words")] == 3
    assert found[("layer", "copy_words")] == 2
    assert found[("copy_words",)] == 1
    assert "6 launches, 5 barriers in 1 submissions (0 failed)" in profile.table()


@pytest.mark.cpu
def test_the_timeline_draws_each_launch_and_range(cpu_device: metalane.Device) -> None:
    cpu_device.registry.register_source("work", SOURCE)
    picture = ElementTree.fromstring(nested(cpu_device).timeline_svg())
    titles = [title.text for title in picture.iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith("launch: copy_words, ") for title in titles) == 6
    assert sum(title.startswith("label: attention, ") for title in titles) == 2
    assert sum(title.startswith("submission: ") for title in titles) == 1


# The command ----------------------------------------------------------------------------------------------------------

SCRIPT = """
import sys
import metalane
print("arguments", sys.argv[1:])
device = metalane.Device("null")
with device.command_encoder() as encoder, encoder.label("filled"):
    encoder.fill(device.zeros(4, "f32"), 1)
other = metalane.Device("null")
"""


def trace(
    folder: Path, script: str, *arguments: str, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script)
    return subprocess.run(
        [sys.executable, "-m", "metalane", "trace", *options, "script.py", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=folder,
    )


def test_trace_runs_a_script(tmp_path: Path) -> None:
    options = ("--json", "out.json", "--svg", "out.svg")
    done = trace(tmp_path, SCRIPT, "--json", "x", options=options)
    assert (done.returncode, done.stderr) == (0, "")
    assert "arguments ['--json', 'x']" in done.stdout
    assert "filled  metalane_fill" in done.stdout
    assert "1 launches, 0 barriers in 1 submissions" in done.stdout
    assert "0 launches, 0 barriers in 0 submissions" in done.stdout
    names = {event["name"] for event in json.loads((tmp_path / "out.json").read_text())["traceEvents"]}
    assert "filled" in names
    assert json.loads((tmp_path / "out.1.json").read_text())["traceEvents"]
    ElementTree.fromstring((tmp_path / "out.svg").read_text())
    ElementTree.fromstring((tmp_path / "out.1.svg").read_text())


def test_trace_ends_as_the_script_does(tmp_path: Path) -> None:
    done = trace(tmp_path, "import sys, metalane\nmetalane.Device('null')\nsys.exit(7)")
    assert done.returncode == 7
    assert "0 launches" in done.stdout
    done = trace(tmp_path, "raise KeyError('planted')")
    assert done.returncode == 1
    assert "planted" in done.stderr
    assert "the script opened no device" in done.stdout


def test_trace_without_a_script_says_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metalane", "trace", "nothing.py"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "nothing.py: no such file" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("option", ["--json", "--svg"])
@pytest.mark.parametrize("place", [".", "nowhere/out"])
def test_trace_asks_for_a_place_before_the_script_runs(tmp_path: Path, option: str, place: str) -> None:
    done = trace(tmp_path, "open('ran', 'w').close()", options=(option, place))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"metalane trace: {place}: no place for a file\n"
    assert not (tmp_path / "ran").exists()
