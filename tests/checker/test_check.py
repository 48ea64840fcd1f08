"""The checker beyond the planted faults: options, reports, memory that launches share, counts, and being stopped."""

from __future__ import annotations

import gc
import resource
import subprocess
import sys

import numpy as np
import pytest

import metalane

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"
KERNELS = (
    HEAD
    + """
kernel void copy(device const float* x, device float* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void copy_bytes(device const uchar* x, device uchar* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void copy_halves(device const half* x, device half* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void at(device const float* x, device float* y, constant int& index) { y[0] = x[index]; }
kernel void put(device float* y, constant uint& index) { y[index] = 1.0f; }
kernel void add(device float* y, constant float& by, uint i [[thread_position_in_grid]]) { y[i] += by; }
kernel void strided(device const float* x, device float* y, constant uint& stride,
                    uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[1024];
  s[t * stride] = x[i * stride];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = s[t * stride] + simd_sum(1.0f);
}
kernel void spin(device volatile uint* x) {
  for (uint i = 0; x[0] == 0; ++i) x[1] = i;
}
kernel void spin_aside(device uint* x) {
  volatile uint own = 1;
  while (own != 0) own = own + 2;
  x[0] = own;
}
kernel void same(device uint* x, uint i [[thread_position_in_grid]]) { x[0] = 7; }
struct Padded { uchar a; float4 c; };
kernel void padded(device const float* x, device Padded* fresh, device Padded* y,
                   uint i [[thread_position_in_grid]], uint t [[thread_position_in_threadgroup]]) {
  threadgroup Padded s[32];
  s[t].a = 1;
  s[t].c = float4(uint(x[i]) % 2);
  fresh[i].a = 1;
  fresh[i].c = s[t].c;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  y[i] = fresh[i];
  y[i] = s[t];
}
struct Small { uchar a; ushort b; };
struct Tailed { float a; uchar b; };
struct Led { uchar a; ulong b; };
kernel void fill_padded(device Small* small, device Tailed* tailed, device Led* led, device half3* halves,
                        device uchar3* bytes, uint i [[thread_position_in_grid]]) {
  small[i].a = small[i].b = i;
  tailed[i].a = tailed[i].b = i;
  led[i].a = led[i].b = i;
  halves[i].x = halves[i].y = halves[i].z = i;
  bytes[i].x = bytes[i].y = bytes[i].z = i;
}
kernel void copy_padded(device const Small* small, device const Tailed* tailed, device const Led* led,
                        device const half3* halves, device const uchar3* bytes, device Small* small_out,
                        device Tailed* tailed_out, device Led* led_out, device half3* halves_out,
                        device uchar3* bytes_out, uint i [[thread_position_in_grid]]) {
  small_out[i] = small[i];
  tailed_out[i] = tailed[i];
  led_out[i] = led[i];
  halves_out[i] = halves[i];
  bytes_out[i] = bytes[i];
}
struct Pair { uint a, b; float4 c[4]; };
kernel void pairs(device const Pair* x, device Pair* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void wide(device const float4x4* x, device float4x4* y, uint i [[thread_position_in_grid]]) { y[i] = x[i]; }
kernel void last_group(device const float* x, device float* partial, device atomic_uint* done, device float* out,
                       uint group [[threadgroup_position_in_grid]], uint groups [[threadgroups_per_grid]],
                       uint t [[thread_position_in_threadgroup]]) {
  threadgroup bool last;
  if (t == 0) {
    partial[group] = x[group];
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    last = atomic_fetch_add_explicit(done, 1u, memory_order_relaxed) == groups - 1;
    atomic_thread_fence(mem_flags::mem_device, memory_order_seq_cst, thread_scope_device);
    if (last) {
      float sum = 0;
      for (uint i = 0; i < groups; ++i) sum += partial[i];
      out[0] = sum;
    }
  }
}
"""
)


@pytest.fixture(scope="module")
def device() -> metalane.Device:
    return metalane.Device("cpu", check=True)


@pytest.fixture(scope="module")
def kernels(device: metalane.Device) -> metalane.CompiledSource:
    return device.compile(KERNELS, name="check.metal")


@pytest.fixture(scope="module")
def listing() -> metalane.Device:
    return metalane.Device("cpu", check="races bounds uninitialised divergence traffic", reports="list")


def line_of(kernel: str) -> int:
    return next(number for number, line in enumerate(KERNELS.splitlines(), 1) if f"void {kernel}(" in line)


def wait(call: object) -> None:
    if call is not None:
        call.wait()


def test_options() -> None:
    assert metalane.Device("cpu").check == ()
    assert metalane.Device("cpu", check=True).check == (
        "races",
        "bounds",
        "uninitialised",
        "divergence",
        "traffic",
    )
    assert metalane.Device("cpu", check=["bounds"]).check == ("bounds",)
    for check, error in [
        ("rases", metalane.ArgumentError),
        (3, metalane.DTypeError),
        ([1], metalane.DTypeError),
    ]:
        with pytest.raises(error, match="check must be"):
            metalane.Device("cpu", check=check)
    with pytest.raises(metalane.ArgumentError, match="reports must be"):
        metalane.Device("cpu", check=True, reports="print")
    with pytest.raises(metalane.ArgumentError, match="check must be"):
        metalane.Device("null", check=True)
    with pytest.raises(metalane.ArgumentError, match="kernels must be"):
        metalane.Device("cpu", kernels="native", check=True)
    report = metalane.Device("null").check_report()
    assert (report.findings, report.traffic, report.waits, report.samples) == ((), (), (), ())


def test_error_tells_everything(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    x, y = device.zeros(8, np.float32), device.zeros(8, np.float32)
    with pytest.raises(metalane.CheckError) as caught:
        wait(kernels.at(x, y, 8, threads=1))
    assert isinstance(caught.value, metalane.CommandBufferError)
    assert (caught.value.code, caught.value.label, caught.value.is_transient) == ("check", "at", False)
    (finding,) = caught.value.findings
    assert (finding.kind, finding.severity, finding.argument, finding.memory) == (
        "bounds",
        "error",
        "x",
        "device",
    )
    assert (finding.byte_offset, finding.element_index, finding.bound_nbytes, finding.count) == (32, 8, 32, 1)
    assert (finding.access.kernel, finding.access.file, finding.access.line) == (
        "at",
        "check.metal",
        line_of("at"),
    )
    assert (finding.access.access, finding.access.nbytes, finding.access.thread) == ("load", 4, (0, 0, 0))
    assert finding.other is None
    assert str(finding) == finding.message
    assert finding.message in str(caught.value)
    # The device goes on.
    source, target = device.from_numpy(np.arange(8, dtype=np.float32)), device.zeros(8, np.float32)
    wait(kernels.copy(source, target, threads=8))
    np.testing.assert_array_equal(target.numpy(), np.arange(8))


@pytest.mark.parametrize("index", [-1, 8, 2**20, -(2**20), 2**31 - 1, -(2**31)])
def test_far_indices_are_the_argument_s_own(
    device: metalane.Device, kernels: metalane.CompiledSource, index: int
) -> None:
    x, y = device.zeros(8, np.float32), device.zeros(8, np.float32)
    with pytest.raises(metalane.CheckError) as caught:
        wait(kernels.at(x, y, index, threads=1))
    assert (caught.value.findings[0].argument, caught.value.findings[0].element_index) == ("x", index)


@pytest.mark.parametrize("offset", [1 << 36, -(1 << 36), 1 << 37, 1 << 40, 1 << 50, 0x123456789ABCDEF])
def test_wild_pointers_meet_nothing(offset: int) -> None:
    """64-bit offsets lead out of everything: neither into another argument nor into the process's own memory."""
    device = metalane.Device("cpu", check="bounds", reports="list")
    kernel = device.compile(
        HEAD
        + "kernel void wild(device float* x, device float* y, constant long& at) { y[0] = 2; y[at] = 3; }",
        name="wild.metal",
    ).wild
    x, y = device.zeros(64, metalane.float32), device.zeros(64, metalane.float32)
    kernel(x, y, offset, threads=1, wait=True)
    (finding,) = device.check_report().findings
    assert (finding.kind, finding.access.access, finding.access.line) == ("bounds", "store", 3)
    assert x.tolist() == [0] * 64 and y.tolist() == [2] + [0] * 63


def test_overrun_into_another_view_is_caught_before_it_lands(listing: metalane.Device) -> None:
    kernels = listing.compile(KERNELS, name="check.metal")
    whole = listing.zeros(64, np.float32)
    wait(kernels.put(whole.view(64, 16), 20, threads=1))
    assert not whole.numpy().any()
    assert [finding.kind for finding in listing.check_report().findings] == ["bounds"]
    listing.clear_check_report()


def test_aliases_share_memory(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    whole = device.from_numpy(np.arange(48, dtype=np.float32))
    wait(kernels.copy(whole.view(0, 16), whole.view(128, 16), threads=16))
    np.testing.assert_array_equal(whole.numpy()[32:], np.arange(16))


@pytest.mark.parametrize("misaligned", [0, 4, 36])
def test_wrapped_memory_is_written_back(
    device: metalane.Device, kernels: metalane.CompiledSource, misaligned: int
) -> None:
    raw = np.zeros(4096 * 3 + 64, np.uint8)
    host = raw[misaligned : misaligned + 4096 * 2].view(np.float32)
    host[:] = np.arange(2048)
    guard = raw.copy()
    buffer = device.wrap(host)
    wait(kernels.add(buffer.view(4, 1000), 0.5, threads=1000))
    expected = np.arange(2048, dtype=np.float64)
    expected[1:1001] += 0.5
    np.testing.assert_array_equal(host, expected)
    np.testing.assert_array_equal(raw[misaligned + 8192 :], guard[misaligned + 8192 :])
    np.testing.assert_array_equal(raw[:misaligned], guard[:misaligned])


def test_two_views_of_wrapped_memory_are_one(
    device: metalane.Device, kernels: metalane.CompiledSource
) -> None:
    host = np.arange(64, dtype=np.float32)
    buffer = device.wrap(host)
    wait(kernels.copy(buffer.view(0, 32), buffer.view(128, 32), threads=32))
    np.testing.assert_array_equal(host, np.tile(np.arange(32), 2))


def test_read_only_memory_is_never_written(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    host = np.arange(16, dtype=np.float32)
    host.flags.writeable = False
    out = device.zeros(16, np.float32)
    wait(kernels.copy(device.wrap(host), out, threads=16))
    np.testing.assert_array_equal(out.numpy(), np.arange(16))


@pytest.mark.parametrize("kernel", ["copy_bytes", "copy_halves"])
def test_neighbours_in_a_word_are_no_race(
    device: metalane.Device, kernels: metalane.CompiledSource, kernel: str
) -> None:
    dtype = {"copy_bytes": np.uint8, "copy_halves": np.float16}[kernel]
    x, y = device.from_numpy(np.arange(200).astype(dtype)), device.zeros(200, dtype)
    wait(getattr(kernels, kernel)(x, y, threads=200, threads_per_threadgroup=7))
    np.testing.assert_array_equal(y.numpy(), np.arange(200).astype(dtype))


def test_fresh_memory_until_somebody_writes(
    device: metalane.Device, kernels: metalane.CompiledSource
) -> None:
    target = device.zeros(16, np.float32)
    with pytest.raises(metalane.CheckError, match="uninitialised") as caught:
        wait(kernels.copy(device.empty(16, np.float32), target, threads=16))
    assert caught.value.findings[0].count == 16
    written = device.empty(16, np.float32)
    wait(kernels.copy(device.zeros(16, np.float32), written, threads=16))
    wait(kernels.copy(written, target, threads=16))
    touched = device.empty(16, np.float32)
    touched.numpy()
    wait(kernels.copy(touched, target, threads=16))
    copied = device.empty(16, np.float32)
    encoder = device.command_encoder()
    encoder.copy(written, copied)
    encoder.commit().wait()
    wait(kernels.copy(copied, target, threads=16))
    half = device.empty(16, np.float32)
    half.view(0, 8).numpy()
    with pytest.raises(metalane.CheckError) as caught:
        wait(kernels.copy(half, target, threads=16))
    assert (caught.value.findings[0].count, caught.value.findings[0].access.thread) == (8, (8, 0, 0))


@pytest.mark.parametrize(("kernel", "dtype", "count"), [("pairs", np.uint8, 80), ("wide", np.float32, 16)])
def test_struct_copies_are_watched(
    device: metalane.Device, kernels: metalane.CompiledSource, kernel: str, dtype: type, count: int
) -> None:
    x, y = device.from_numpy(np.arange(4 * count).astype(dtype)), device.zeros(4 * count, dtype)
    wait(getattr(kernels, kernel)(x, y, threads=4))
    for i in range(4) if kernel == "wide" else ():
        np.testing.assert_array_equal(y.numpy()[i * count :][:count], x.numpy()[i * count :][:count])
    short = y.view(0, 4 * count - 4)
    with pytest.raises(metalane.CheckError) as caught:
        wait(getattr(kernels, kernel)(x, short, threads=4))
    assert caught.value.findings[0].argument == "y"
    with pytest.raises(metalane.CheckError, match="uninitialised"):
        wait(getattr(kernels, kernel)(device.empty(4 * count, dtype), y, threads=4))


def test_padding_is_never_uninitialised(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    x, out = device.from_numpy(np.arange(32, dtype=np.float32)), device.zeros(32 * 32, np.uint8)
    wait(kernels.padded(x, device.empty(32 * 32, np.uint8), out, threads=32))
    got = out.numpy().reshape(32, 32)
    np.testing.assert_array_equal(
        got[:, 16:].copy().view(np.float32), np.repeat(np.arange(32)[:, None] % 2, 4, 1)
    )


def test_padding_of_small_types_is_never_uninitialised(
    device: metalane.Device, kernels: metalane.CompiledSource
) -> None:
    """Structs and vectors of three whose fields were written one by one, copied whole by another launch."""
    types = [
        np.dtype({"names": ["a", "b"], "formats": formats, "offsets": [0, offset], "itemsize": size})
        for formats, offset, size in [(("u1", "u2"), 2, 4), (("f4", "u1"), 4, 8), (("u1", "u8"), 8, 16)]
    ]
    types += [np.dtype(np.float16), np.dtype(np.uint8)]
    shapes = [((8 * dtype.itemsize,), np.uint8) if dtype.names else ((8, 4), dtype) for dtype in types]
    fresh = [device.empty(*shape) for shape in shapes]
    copies = [device.zeros(*shape) for shape in shapes]
    wait(kernels.fill_padded(*fresh, threads=8))
    wait(kernels.copy_padded(*fresh, *copies, threads=8))
    for dtype, copied in zip(types, copies, strict=True):
        values = copied.numpy().view(dtype).reshape(8, -1)
        columns = [values[name] for name in dtype.names] if dtype.names else [values[:, :3]]
        for column in columns:
            np.testing.assert_array_equal(column, np.repeat(np.arange(8)[:, None], column.shape[1], 1))


def test_fences_order_threadgroups(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    x, out = device.from_numpy(np.arange(9, dtype=np.float32)), device.zeros(1, np.float32)
    wait(
        kernels.last_group(
            x,
            device.zeros(9, np.float32),
            device.zeros(1, np.uint32),
            out,
            threads=36,
            threads_per_threadgroup=4,
        )
    )
    assert out.numpy()[0] == 36


def test_warnings_do_not_raise(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    device.clear_check_report()
    wait(kernels.same(device.zeros(1, np.uint32), threads=64, threads_per_threadgroup=32))
    report = device.check_report()
    assert report.errors == ()
    assert [finding.kind for finding in report.warnings] == ["same-value"]
    device.clear_check_report()
    assert device.check_report().findings == ()


def test_every_submission_raises_its_own(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    x, y = device.zeros(8, np.float32), device.zeros(8, np.float32)
    device.clear_check_report()
    for _ in range(3):
        y = device.zeros(8, np.float32)
        with pytest.raises(metalane.CheckError) as caught:
            wait(kernels.at(x, y, 9, threads=1))
        assert caught.value.findings[0].count == 1
    (finding,) = device.check_report().findings
    assert finding.count == 3


def test_list_goes_on_behind_a_fault(listing: metalane.Device) -> None:
    listing.clear_check_report()
    kernels = listing.compile(KERNELS, name="check.metal")
    x, y = listing.from_numpy(np.arange(1, 9, dtype=np.float32)), listing.zeros(12, np.float32)
    wait(kernels.copy(x, y, threads=12, threads_per_threadgroup=4))
    np.testing.assert_array_equal(y.numpy(), [*range(1, 9), 0, 0, 0, 0])
    (finding,) = listing.check_report().findings
    listing.clear_check_report()
    assert (finding.kind, finding.element_index, finding.access.threadgroup) == ("bounds", 8, (2, 0, 0))


@pytest.mark.parametrize(
    ("stride", "lines", "cycles"), [(1, 1, 1), (2, 2, 2), (4, 4, 4), (8, 8, 8), (0, 1, 1)]
)
def test_traffic(listing: metalane.Device, stride: int, lines: int, cycles: int) -> None:
    kernels = listing.compile(KERNELS, name="check.metal")
    listing.clear_check_report()
    x, y = listing.zeros(256 * 8, np.float32), listing.zeros(256, np.float32)
    wait(kernels.strided(x, y, stride, threads=256, threads_per_threadgroup=64))
    report = listing.check_report()
    rows = {(row.argument, row.access): row for row in report.traffic}
    load = rows["x", "load"]
    assert (load.count, load.nbytes, load.requests, load.memory) == (256, 1024, 8, "device")
    assert load.lines == 8 * lines
    assert load.simdgroup_nbytes == 8 * (128 if stride else 4)
    assert load.threadgroup_nbytes == 4 * (256 if stride else 4)
    store = rows["s", "store"]
    assert (store.count, store.memory, store.lines) == (256, "threadgroup", 0)
    assert store.bank_cycles == 8 * cycles
    line = line_of("strided")
    assert (load.line, store.line, rows["s", "load"].line) == (line + 3, line + 3, line + 5)
    assert {(w.operation, w.line, w.count) for w in report.waits} == {
        ("threadgroup_barrier", line + 4, 4),
        ("simd_sum", line + 5, 8),
    }
    samples = [s for s in report.samples if report.traffic[s.traffic].argument == "x"]
    assert {(s.thread_index, s.byte_offset) for s in samples} == {(t, 4 * stride * t) for t in range(64)}


@pytest.mark.parametrize(("first", "lines"), [(0, 2), (1, 4), (31, 4), (32, 2)])
def test_cache_lines_are_those_of_the_buffer(listing: metalane.Device, first: int, lines: int) -> None:
    """Two simdgroups of 32 floats: one line each where the view begins at a line, else two."""
    kernels = listing.compile(KERNELS, name="check.metal")
    x = listing.zeros(128, np.float32).view(4 * first, (64,))
    listing.clear_check_report()
    wait(kernels.copy(x, listing.zeros(64, np.float32), threads=64))
    rows = {row.argument: (row.requests, row.lines) for row in listing.check_report().traffic}
    assert rows == {"x": (2, lines), "y": (2, 2)}


def test_findings_are_the_same_from_run_to_run(listing: metalane.Device) -> None:
    kernels = listing.compile(KERNELS, name="check.metal")
    seen = []
    for _ in range(3):
        listing.clear_check_report()
        y = listing.zeros(1, np.float32)
        wait(kernels.add(y.view(0, 1), 1.0, threads=1))
        wait(kernels.same(listing.zeros(1, np.uint32), threads=96, threads_per_threadgroup=32))
        seen.append(listing.check_report())
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("kernel", ["spin", "spin_aside"])
def test_endless_kernels_are_stopped(
    device: metalane.Device, kernels: metalane.CompiledSource, kernel: str
) -> None:
    encoder = device.command_encoder()
    getattr(kernels, kernel)(device.zeros(2, np.uint32), threads=1, encoder=encoder)
    with pytest.raises(metalane.CommandBufferError) as caught:
        encoder.commit(timeout=0.2).wait()
    assert caught.value.code == "timeout"


def test_launches_leave_no_memory_behind(device: metalane.Device, kernels: metalane.CompiledSource) -> None:
    x, y = device.zeros(4096, np.float32), np.zeros(4096, np.float32)
    wait(kernels.copy(x, y, threads=4096))

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    for _ in range(50):
        kernels.copy(x, y, threads=4096)
    gc.collect()
    before = resident()
    for _ in range(200):
        kernels.copy(x, y, threads=4096)
    assert resident() - before < 4 << 20


def test_the_end_of_memory_ends_the_launch() -> None:
    """Shadow memory that cannot be had fails the submission; the process and the device live."""
    script = """
import resource
import subprocess
import sys
import numpy as np
import metalane
device = metalane.Device("cpu", check=True)
kernels = device.compile("#include <metal_stdlib>\\nusing namespace metal;\\n"
    "kernel void fill(device uchar* y, uint i [[thread_position_in_grid]]) { y[i] = 1; }")
y = device.zeros(1 << 25, np.uint8)
kernels.fill(device.zeros(64, np.uint8), threads=64)
device.check_report()
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (128 << 20), resource.RLIM_INFINITY))
encoder = device.command_encoder()
kernels.fill(y, threads=1 << 25, encoder=encoder)
ticket = encoder.commit()
try:
    ticket.wait()
except metalane.CommandBufferError as error:
    print(error.code)
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
small = device.zeros(64, np.uint8)
kernels.fill(small, threads=64)
print(small.numpy().sum())
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stdout.split()) == (0, ["out-of-memory", "64"]), result.stderr


SIMDGROUP_BARRIERS = (
    HEAD
    + """
kernel void returned(device const float* x, device float* y, constant uint& n,
                     uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t >= n) return;
  s[t] = x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[t / 32 * 32];
}
kernel void in_branch(device const float* x, device float* y, constant uint& n,
                      uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  if (t < n) {
    s[t] = x[t];
    simdgroup_barrier(mem_flags::mem_threadgroup);
    y[t] = s[t / 32 * 32];
  }
}
static void body(device const float* x, device float* y, threadgroup float* s, uint n, uint t) {
  if (t >= n) return;
  s[t] = x[t];
  simdgroup_barrier(mem_flags::mem_threadgroup);
  y[t] = s[t / 32 * 32];
}
kernel void wrapped(device const float* x, device float* y, constant uint& n,
                    uint t [[thread_position_in_threadgroup]]) {
  threadgroup float s[64];
  body(x, y, s, n, t);
}
kernel void mixed(device const float* x, device float* y, uint t [[thread_position_in_threadgroup]]) {
  if (t % 4 == 3) return;
  float sum = x[t];
  for (uint turn = 0; turn < t % 4; ++turn) {
    simdgroup_barrier(mem_flags::mem_none);
    sum += 1.0f;
  }
  if (t % 4 == 0) threadgroup_barrier(mem_flags::mem_none);
  y[t] = sum;
}
"""
)


@pytest.mark.parametrize(("threads", "n"), [(64, 64), (64, 40), (64, 32), (40, 40), (7, 3)])
def test_lanes_that_returned_are_not_waited_for(listing: metalane.Device, threads: int, n: int) -> None:
    """And where a whole simdgroup leaves the barrier out, or has fewer lanes, none is missing."""
    kernels = listing.compile(SIMDGROUP_BARRIERS, name="simdgroup.metal")
    x = np.arange(1, 65, dtype=np.float32)
    for kernel in (kernels.returned, kernels.wrapped, kernels.in_branch):
        listing.clear_check_report()
        y = listing.zeros(64, np.float32)
        wait(kernel(listing.from_numpy(x), y, n, threads=threads))
        np.testing.assert_array_equal(y.numpy(), np.where(np.arange(64) < n, x[np.arange(64) // 32 * 32], 0))
        partly = kernel is kernels.in_branch and n < threads and n % 32 != 0
        assert [finding.kind for finding in listing.check_report().findings] == ["divergence"] * partly


def test_barriers_name_who_waits_and_who_does_not(listing: metalane.Device) -> None:
    kernels = listing.compile(SIMDGROUP_BARRIERS, name="simdgroup.metal")
    listing.clear_check_report()
    wait(kernels.mixed(listing.zeros(8, np.float32), listing.zeros(8, np.float32), threads=8))
    lines = [n for n, line in enumerate(SIMDGROUP_BARRIERS.splitlines(), 1) if "mem_none" in line]
    of_simdgroup, of_threadgroup = listing.check_report().findings
    assert (of_simdgroup.access.line, of_threadgroup.access.line) == tuple(lines)
    assert (of_simdgroup.access.access, of_simdgroup.access.thread) == ("wait", (1, 0, 0))
    # In the first turn 1, 2, 5 and 6 wait, 0 and 4 are at the threadgroup's barrier, 3 and 7 have returned.
    for words in (
        f"4 threads (thread 1 [1, 0, 0] to thread 2 [2, 0, 0], thread 5 [5, 0, 0] to thread 6 [6, 0, 0]) wait at "
        f"simdgroup_barrier at simdgroup.metal:{lines[0]}",
        f"2 threads (thread 0 [0, 0, 0], thread 4 [4, 0, 0]) wait at threadgroup_barrier at simdgroup.metal:{lines[1]}",
        "2 threads (thread 3 [3, 0, 0], thread 7 [7, 0, 0]) have finished",
    ):
        assert words in of_simdgroup.message
    for words in (
        "2 threads (thread 0 [0, 0, 0], thread 4 [4, 0, 0]) wait at",
        "6 threads (thread 1 [1, 0, 0] to thread 3 [3, 0, 0], thread 5 [5, 0, 0] to thread 7 [7, 0, 0]) have finished",
    ):
        assert words in of_threadgroup.message
    listing.clear_check_report()


def test_warnings_crowd_out_no_error() -> None:
    """Of each severity 1,000 findings are kept: here there are some 2,000 pairs of stores of one value."""
    cases = 50
    stores = "\n".join(f"case {i}: y[0] = x[{i}]; own ^= y[{i + 1}]; break;" for i in range(cases))
    source = HEAD + (
        "kernel void crowd(device const uint* x, device const uint* choice, device uint* y,\n"
        "                  uint i [[thread_position_in_grid]], uint n [[threads_per_grid]]) {\n"
        f"uint own = 0; switch (choice[i]) {{\n{stores}\n}}\nif (i == n - 1) y[{cases + 1}] = own;\n}}"
    )
    device = metalane.Device("cpu", check="races bounds")
    kernel = device.compile(source, name="crowd.metal").crowd
    choice = np.random.default_rng(1).integers(0, cases, 4096).astype(np.uint32)
    x, chosen = device.from_numpy(np.full(cases, 7, np.uint32)), device.from_numpy(choice)
    with pytest.raises(metalane.CheckError) as error:
        kernel(x, chosen, device.zeros(cases + 1, metalane.uint32), threads=4096, wait=True)
    for findings in error.value.findings, device.check_report().findings:
        warnings = [finding for finding in findings if finding.kind == "same-value"]
        assert len(warnings) == len(findings) - 1 > 500  # two orders of two lines are one finding
        (bounds,) = [finding for finding in findings if finding.severity == "error"]
        assert (bounds.kind, bounds.element_index, bounds.count) == ("bounds", cases + 1, 1)
        assert (bounds.access.line, bounds.access.thread) == (cases + 7, (4095, 0, 0))
