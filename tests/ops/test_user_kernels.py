"""Kernels as users write them, from source to result on the CPU device, against NumPy in float64 or integers."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import metalane
from devices import at_most

GUARD = 64  # poisoned bytes on both sides of every output


def run(device, name, source, args, *, poison=0xAB, **launch):
    """Dispatches kernel `name` of `source`; arrays in `args` become buffers, `Out` ones guarded and returned."""
    device.registry.register_source(name, source)
    bound, outputs = [], []
    for arg in args:
        if isinstance(arg, Out):
            whole = device.empty((arg.nbytes + 2 * GUARD,), metalane.uint8)
            whole.numpy()[:] = poison
            view = whole.view(GUARD, arg.shape, arg.dtype)
            if arg.initial is not None:
                view.numpy()[...] = arg.initial
            outputs.append((whole, view))
            bound.append(view)
        elif isinstance(arg, np.ndarray):
            bound.append(device.from_numpy(arg))
        else:
            bound.append(arg)
    encoder = device.command_encoder()
    encoder.dispatch(name, bound, **launch)
    encoder.commit_and_wait()
    results = []
    for whole, view in outputs:
        raw = whole.numpy()
        assert (raw[:GUARD] == poison).all() and (raw[-GUARD:] == poison).all(), "written outside the view"
        results.append(view.numpy().copy())
    return results[0] if len(results) == 1 else results


class Out:
    """An output of `shape` and `dtype`, poisoned, or holding `initial` before the launch."""

    def __init__(self, shape, dtype, initial=None):
        self.shape, self.dtype, self.initial = shape, dtype, initial
        self.nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize


SAXPY = """
#include <metal_stdlib>
using namespace metal;
kernel void saxpy(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  constant float& a [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = fma(a, x[i], y[i]);
}
"""


@pytest.mark.parametrize("n", [1, 31, 32, 33, 257, 100_003])
@pytest.mark.parametrize("group", [1, 32, 96, 256, 1024])
def test_ragged_grids_run_every_thread_once(device, n, group):
    group = at_most(device, group)
    rng = np.random.default_rng(n)
    x, y = rng.standard_normal(n, np.float32), rng.standard_normal(n, np.float32)
    got = run(
        device, "saxpy", SAXPY, [x, Out((n,), np.float32, y), 1.5], threads=n, threads_per_threadgroup=group
    )
    exact = 1.5 * x.astype(np.float64) + y
    np.testing.assert_array_equal(got, exact.astype(np.float32))


REDUCE = """
#include <metal_stdlib>
using namespace metal;
kernel void row_sum(device const float* x, device float* sums, constant uint& columns,
                    uint row [[threadgroup_position_in_grid]], uint t [[thread_index_in_threadgroup]],
                    uint lane [[thread_index_in_simdgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
                    uint simdgroups [[simdgroups_per_threadgroup]], uint threads [[threads_per_threadgroup]]) {
  threadgroup float partial[32];
  float sum = 0;
  for (uint i = t; i < columns; i += threads) sum += x[row * columns + i];
  sum = simd_sum(sum);
  if (lane == 0) partial[simdgroup] = sum;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (simdgroup == 0) {
    sum = simd_sum(lane < simdgroups ? partial[lane] : 0.0f);
    if (lane == 0) sums[row] = sum;
  }
}
"""


@pytest.mark.parametrize("threads", [1, 17, 32, 48, 256, 1000, 1024])
@pytest.mark.parametrize("columns", [1, 31, 1000])
def test_two_level_reduction(device, threads, columns):
    rng = np.random.default_rng(columns)
    x = rng.standard_normal((5, columns), np.float32)
    got = run(
        device,
        "row_sum",
        REDUCE,
        [x, Out((5,), np.float32), columns],
        threadgroups=5,
        threads_per_threadgroup=at_most(device, threads),
    )
    wide = x.astype(np.float64)
    assert (np.abs(got - wide.sum(1)) <= 1e-6 * np.abs(wide).sum(1) + 1e-30).all()


SCAN = """
#include <metal_stdlib>
using namespace metal;
kernel void scan(device uint* data, threadgroup uint* shared [[threadgroup(0)]],
                 uint t [[thread_position_in_threadgroup]], uint group [[threadgroup_position_in_grid]],
                 uint n [[threads_per_threadgroup]]) {
  device uint* block = data + group * n;
  shared[t] = block[t];
  for (uint step = 1; step < n; step *= 2) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    uint add = t >= step ? shared[t - step] : 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    shared[t] += add;
  }
  block[t] = shared[t];
}
"""


@pytest.mark.parametrize("n", [1, 33, 100, 512, 1024])
def test_scan_in_bound_threadgroup_memory(device, n):
    n = at_most(device, n)
    values = np.random.default_rng(n).integers(0, 2**32, (3, n), np.uint32)
    got = run(
        device,
        "scan",
        SCAN,
        [Out((3, n), np.uint32, values)],
        threadgroups=3,
        threads_per_threadgroup=n,
        threadgroup_memory={0: 4 * n},
    )
    np.testing.assert_array_equal(got, np.cumsum(values, axis=1, dtype=np.uint32))


HISTOGRAM = """
#include <metal_stdlib>
using namespace metal;
kernel void histogram(device const uchar* bytes, device atomic_uint* counts, constant uint& n,
                      uint i [[thread_position_in_grid]], uint t [[thread_index_in_threadgroup]]) {
  threadgroup atomic_uint local[256];
  atomic_store_explicit(&local[t], 0, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (i < n) atomic_fetch_add_explicit(&local[bytes[i]], 1, memory_order_relaxed);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint count = atomic_load_explicit(&local[t], memory_order_relaxed);
  if (count != 0) atomic_fetch_add_explicit(&counts[t], count, memory_order_relaxed);
}
"""


def test_atomics_in_threadgroup_and_device_memory(device):
    data = np.random.default_rng(7).integers(0, 256, 100_001, np.uint8)
    groups = -(-data.size // 256)
    got = run(
        device,
        "histogram",
        HISTOGRAM,
        [data, Out((256,), np.uint32, 0), data.size],
        threadgroups=groups,
        threads_per_threadgroup=256,
    )
    np.testing.assert_array_equal(got, np.bincount(data, minlength=256))


TRANSPOSE = """
#include <metal_stdlib>
using namespace metal;
struct Sizes { uint rows; uint columns; };
kernel void transpose(device const half* in, device half* out, constant Sizes& sizes,
                      uint2 group [[threadgroup_position_in_grid]], uint2 t [[thread_position_in_threadgroup]]) {
  threadgroup half tile[16][17];
  uint2 from = group * 16 + t;
  if (from.x < sizes.columns && from.y < sizes.rows) tile[t.y][t.x] = in[from.y * sizes.columns + from.x];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  uint2 to = group.yx * 16 + t;
  if (to.x < sizes.rows && to.y < sizes.columns) out[to.y * sizes.rows + to.x] = tile[t.x][t.y];
}
"""


@pytest.mark.parametrize("shape", [(1, 1), (16, 16), (17, 33), (100, 7)])
def test_two_dimensional_tiles(device, shape):
    @metalane.metal_struct
    class Sizes:
        rows: metalane.u32
        columns: metalane.u32

    x = np.random.default_rng(1).standard_normal(shape).astype(np.float16)
    rows, columns = shape
    got = run(
        device,
        "transpose",
        TRANSPOSE,
        [x, Out((columns, rows), np.float16), Sizes(rows, columns)],
        threadgroups=(-(-columns // 16), -(-rows // 16)),
        threads_per_threadgroup=(16, 16),
    )
    np.testing.assert_array_equal(got, x.T)


POSITIONS = """
#include <metal_stdlib>
using namespace metal;
kernel void positions(device uint* out, uint3 grid [[thread_position_in_grid]],
                      uint3 local [[thread_position_in_threadgroup]], uint3 group [[threadgroup_position_in_grid]],
                      ushort3 threads [[threads_per_threadgroup]], uint3 size [[threads_per_grid]],
                      uint index [[thread_index_in_threadgroup]], ushort lane [[thread_index_in_simdgroup]],
                      uint3 groups [[threadgroups_per_grid]],
                      uint3 nominal [[dispatch_threads_per_threadgroup]]) {
  device uint* o = out + ((grid.z * size.y + grid.y) * size.x + grid.x) * 8;
  o[0] = group.x + 100 * group.y + 10000 * group.z;
  o[1] = local.x + 100 * local.y + 10000 * local.z;
  o[2] = threads.x + 100 * threads.y + 10000 * threads.z;
  o[3] = index;
  o[4] = lane;
  o[5] = size.x + 100 * size.y + 10000 * size.z;
  o[6] = groups.x + 100 * groups.y + 10000 * groups.z;
  o[7] = nominal.x + 100 * nominal.y + 10000 * nominal.z;
}
"""


def test_positions_and_sizes_at_every_thread_of_a_ragged_grid(device):
    size, nominal = (7, 5, 3), (4, 2, 2)
    got = run(
        device,
        "positions",
        POSITIONS,
        [Out((3, 5, 7, 8), np.uint32)],
        threads=size,
        threads_per_threadgroup=nominal,
    )

    def packed(v):
        return v[0] + 100 * v[1] + 10000 * v[2]

    groups = tuple(-(-s // n) for s, n in zip(size, nominal, strict=True))
    for z, y, x in np.ndindex(3, 5, 7):
        at = (x, y, z)
        group = tuple(a // n for a, n in zip(at, nominal, strict=True))
        local = tuple(a % n for a, n in zip(at, nominal, strict=True))
        threads = tuple(min(n, s - g * n) for n, s, g in zip(nominal, size, group, strict=True))
        index = local[0] + threads[0] * (local[1] + threads[1] * local[2])
        expected = [
            packed(group),
            packed(local),
            packed(threads),
            index,
            index % 32,
            packed(size),
            packed(groups),
            packed(nominal),
        ]
        assert got[z, y, x].tolist() == expected, at


COLLECTIVES = """
#include <metal_stdlib>
using namespace metal;
kernel void collectives(device const int* x, device int* out, uint lane [[thread_index_in_simdgroup]],
                        uint i [[thread_position_in_grid]]) {
  int v = x[i];
  out[i * 8 + 0] = simd_sum(v);
  out[i * 8 + 1] = simd_max(v);
  out[i * 8 + 2] = simd_min(v);
  out[i * 8 + 3] = simd_broadcast(v, 5);
  out[i * 8 + 4] = simd_shuffle_xor(v, 3);
  out[i * 8 + 5] = simd_prefix_exclusive_sum(v);
  int odd = 0;
  if (lane % 2 == 1) odd = simd_sum(v);  // only the odd lanes are active
  out[i * 8 + 6] = odd;
  int loops = 0;
  for (uint k = 0; k <= lane % 4; ++k) loops += simd_sum(1);  // lanes leave the loop one by one
  out[i * 8 + 7] = loops + simd_sum(1);                        // and meet again
}
"""


def test_collectives_act_on_active_lanes(device):
    x = np.random.default_rng(3).integers(-1000, 1000, 64).astype(np.int32)
    got = run(
        device,
        "collectives",
        COLLECTIVES,
        [x, Out((64, 8), np.int32)],
        threads=64,
        threads_per_threadgroup=64,
    )
    for s in range(2):
        lanes = x[32 * s : 32 * s + 32]
        rows = got[32 * s : 32 * s + 32]
        assert (rows[:, 0] == lanes.sum()).all()
        assert (rows[:, 1] == lanes.max()).all() and (rows[:, 2] == lanes.min()).all()
        assert (rows[:, 3] == lanes[5]).all()
        assert (rows[:, 4] == lanes[np.arange(32) ^ 3]).all()
        assert (rows[:, 5] == np.concatenate([[0], np.cumsum(lanes)[:-1]])).all()
        assert (rows[1::2, 6] == lanes[1::2].sum()).all() and (rows[0::2, 6] == 0).all()
        # Iteration k has the lanes with lane % 4 >= k: 32, 24, 16, 8 of them.
        iterations = np.cumsum([32, 24, 16, 8])
        assert (rows[:, 7] == iterations[np.arange(32) % 4] + 32).all()


DTYPES = """
#include <metal_stdlib>
using namespace metal;
kernel void halves(device const half* a, device const bfloat* b, device half* h, device bfloat* bf, device float* f,
                   uint i [[thread_position_in_grid]]) {
  h[i] = a[i] * a[i] + half(1);
  bf[i] = bfloat(float(b[i]) * 3.0f);
  f[i] = float(a[i]) + float(b[i]);
}
"""


def test_half_and_bfloat_round_as_their_types_do(device):
    rng = np.random.default_rng(5)
    a = rng.standard_normal(500).astype(np.float16)
    b = (rng.standard_normal(500) * 1e3).astype(ml_dtypes.bfloat16)
    h, bf, f = run(
        device,
        "halves",
        DTYPES,
        [a, b, Out((500,), np.float16), Out((500,), ml_dtypes.bfloat16), Out((500,), np.float32)],
        threads=500,
        threads_per_threadgroup=64,
    )
    squared = (a.astype(np.float64) ** 2).astype(np.float16)
    np.testing.assert_array_equal(h, (squared.astype(np.float64) + 1).astype(np.float16))
    np.testing.assert_array_equal(bf, (b.astype(np.float32) * np.float32(3)).astype(ml_dtypes.bfloat16))
    np.testing.assert_array_equal(f, a.astype(np.float32) + b.astype(np.float32))


CONSTANTS = """
#include <metal_stdlib>
#include "scale.h"
using namespace metal;
constant bool negate [[function_constant(0)]];
constant int offset [[function_constant(1)]];
constant float factor [[function_constant(2)]];
constant float used_factor = is_function_constant_defined(factor) ? factor : SCALE;
kernel void constants(device float* x, uint i [[thread_position_in_grid]]) {
  float v = x[i] * used_factor + offset;
  x[i] = negate ? -v : v;
}
"""


def test_function_constants_and_registered_headers(device):
    device.registry.register_header("scale.h", "#define SCALE 4.0f\n")
    x = np.arange(10, dtype=np.float32)

    def result(constants):
        return run(
            device,
            "constants",
            CONSTANTS,
            [Out((10,), np.float32, x)],
            threads=10,
            threads_per_threadgroup=32,
            constants=constants,
        )

    np.testing.assert_array_equal(result({"negate": True, "offset": 3, "factor": 2.0}), -(2 * x + 3))
    np.testing.assert_array_equal(result({0: False, 1: -3}), 4 * x - 3)
    with pytest.raises(ValueError, match="negate|offset"):
        result({"negate": True})


def test_indirect_grids_read_their_counts_when_the_launch_starts(device):
    device.registry.register_source(
        "choose",
        "kernel void choose(device uint* counts, constant uint& n) { counts[0] = n; counts[1] = 1; counts[2] = 1; }",
    )
    device.registry.register_source(
        "mark", "kernel void mark(device uint* out, uint i [[thread_position_in_grid]]) { out[i] = i + 1; }"
    )
    for n in (0, 1, 5):
        counts, out = device.zeros((3,), metalane.uint32), device.zeros((64,), metalane.uint32)
        encoder = device.command_encoder()
        encoder.dispatch("choose", [counts, n], threads=1, threads_per_threadgroup=1)
        encoder.dispatch("mark", [out], threadgroups=counts, threads_per_threadgroup=8)
        encoder.commit_and_wait()
        expected = np.where(np.arange(64) < 8 * n, np.arange(64) + 1, 0)
        np.testing.assert_array_equal(out.numpy(), expected)


def test_copy_and_fill(device):
    rng = np.random.default_rng(2)
    for n in (1, 15, 16, 17, 1000, 1 << 20):
        source = device.from_numpy(rng.integers(0, 256, n, np.uint8))
        whole = device.from_numpy(np.full(n + 64, 9, np.uint8))
        encoder = device.command_encoder()
        encoder.copy(source, whole.view(32, (n,)))
        encoder.commit_and_wait()
        got = whole.numpy()
        np.testing.assert_array_equal(got[32:-32], source.numpy())
        assert (got[:32] == 9).all() and (got[-32:] == 9).all()
    for dtype, value in (
        (np.float32, -1.5),
        (np.float16, 3.0),
        (ml_dtypes.bfloat16, 2.0),
        (np.int8, -3),
        (np.uint64, 2**64 - 1),
        (np.int64, -(2**62)),
    ):
        whole = device.from_numpy(np.zeros(103, dtype))
        encoder = device.command_encoder()
        encoder.fill(whole.view(np.dtype(dtype).itemsize, (101,)), value)
        encoder.commit_and_wait()
        got = whole.numpy()
        assert (got[1:-1] == np.array(value, dtype)).all() and got[0] == 0 and got[-1] == 0


@pytest.mark.parametrize("concurrent", [True, False])
def test_dependent_launches_are_ordered(device, concurrent):
    device.registry.register_source("saxpy", SAXPY)
    x, y, z = (device.from_numpy(np.full(1000, v, np.float32)) for v in (1, 2, 3))
    encoder = device.command_encoder(concurrent=concurrent)
    for _ in range(50):
        encoder.dispatch("saxpy", [x, y, 1.0], threads=1000, threads_per_threadgroup=100)
        encoder.dispatch("saxpy", [y, z, -1.0], threads=1000, threads_per_threadgroup=100)
    encoder.commit_and_wait()
    np.testing.assert_array_equal(y.numpy(), np.full(1000, 52.0))
    np.testing.assert_array_equal(z.numpy(), np.full(1000, 3.0 - sum(range(3, 53))))


@pytest.mark.cpu
class TestFaults:
    """A kernel that goes wrong fails its ticket, says where, and leaves the device usable."""

    @pytest.fixture
    def device(self) -> metalane.Device:
        return metalane.Device("cpu", check=False)

    @staticmethod
    def fail(device, name, body, message, code, timeout=None, threads=64, arguments="device uint* out"):
        device.registry.register_source(
            name,
            "#include <metal_stdlib>\nusing namespace metal;\n"
            f"kernel void {name}({arguments}, uint i [[thread_position_in_grid]]) {{\n{body}\n}}\n",
        )
        out = device.zeros((64,), metalane.uint32)
        encoder = device.command_encoder()
        encoder.dispatch(name, [out], threads=threads, threads_per_threadgroup=threads)
        ticket = encoder.commit(timeout=timeout)
        with pytest.raises(metalane.CommandBufferError, match=message) as raised:
            ticket.wait()
        assert raised.value.code == code and name in str(raised.value)
        with pytest.raises(metalane.CommandBufferError):
            ticket.wait()
        with pytest.raises(metalane.CommandBufferError):
            out.numpy()
        assert ticket.status == "failed" and ticket.error is not None
        again = run(
            device,
            "saxpy",
            SAXPY,
            [np.ones(4, np.float32), Out((4,), np.float32, 1.0), 2.0],
            threads=4,
            threads_per_threadgroup=4,
        )
        np.testing.assert_array_equal(again, np.full(4, 3.0))

    def test_wild_store(self, device):
        self.fail(
            device,
            "wild",
            "if (i == 37) *(device uint*)(ulong(0x123450)) = 1; out[i] = i;",
            r"(?s)thread 37.*0x123450",
            "fault",
        )

    def test_null_read(self, device):
        self.fail(device, "null_read", "device uint* p = nullptr; out[i] = p[i * 0];", "0x0", "fault")

    def test_stack_overflow(self, device):
        self.fail(
            device,
            "overflow",
            "volatile uint big[1 << 20]; for (uint k = 0; k < (1 << 20); k += 64) "
            "big[k] = i; out[i] = big[64 * (i % 8)];",
            "stack",
            "stack-overflow",
        )

    def test_endless_loop_meets_its_time_limit(self, device):
        self.fail(
            device,
            "endless",
            "volatile uint k = 0; while (k < 0xffffffffu || i < 64) k = 1; out[i] = k;",
            "time limit",
            "timeout",
            timeout=0.2,
        )

    def test_barrier_that_some_threads_skip(self, device):
        self.fail(
            device,
            "skipped",
            "if (i < 40) threadgroup_barrier(mem_flags::mem_threadgroup);\nout[i] = i;",
            r"(?s)40 threads.*skipped.*24 threads.*finished",
            "barrier",
        )

    def test_two_different_barriers(self, device):
        self.fail(
            device,
            "split",
            "if (i % 2 == 0) {\nthreadgroup_barrier(mem_flags::mem_threadgroup);\n} else {\n"
            "threadgroup_barrier(mem_flags::mem_device);\n}\nout[i] = i;",
            r"(?s):5.*:7",
            "barrier",
        )

    def test_integer_division_by_zero_gives_some_value(self, device):
        source = """
kernel void divide(device int* x, uint i [[thread_position_in_grid]]) {
  x[i] = x[i] / (x[64 + i]) + x[i] % (x[64 + i]);
}"""
        values = np.concatenate([np.arange(64), np.arange(64) % 3]).astype(np.int32)
        values[5], values[64 + 5] = -(2**31), -1
        got = run(
            device, "divide", source, [Out((128,), np.int32, values)], threads=64, threads_per_threadgroup=64
        )
        divisor = values[64:]
        good = (divisor != 0) & (np.arange(64) != 5)
        expected = values[:64][good] // divisor[good] + values[:64][good] % divisor[good]
        np.testing.assert_array_equal(got[:64][good], expected)

    def test_unaffected_submissions_behind_a_failure_run(self, device):
        device.registry.register_source(
            "wild2", "kernel void wild2(device uint* out) { *(device uint*)8 = 1; out[0] = 1; }"
        )
        device.registry.register_source("saxpy", SAXPY)
        bad, x, y, z = (device.zeros((4,), d) for d in (metalane.uint32, *(metalane.float32,) * 3))
        tickets = []
        for kernel, args in (("wild2", [bad]), ("saxpy", [x, y, 1.0]), ("saxpy", [bad, z, 1.0])):
            encoder = device.command_encoder()
            encoder.dispatch(kernel, args, threads=1, threads_per_threadgroup=1)
            tickets.append(encoder.commit())
        tickets[1].wait()
        for failed in (tickets[0], tickets[2]):
            with pytest.raises(metalane.CommandBufferError, match="wild2"):
                failed.wait()
        assert y.numpy()[0] == 0


class TestCompileErrors:
    def test_the_users_file_line_and_the_compilers_words(self, device):
        source = (
            "#include <metal_stdlib>\nusing namespace metal;\n"
            "kernel void broken(device float* x) {\n  x[0] = undeclared_thing;\n}\n"
        )
        device.registry.register_source("broken", source)
        with pytest.raises(metalane.CompileError, match=r"(?s)broken.*4.*undeclared_thing"):
            device.registry.pipeline("broken")

    @pytest.mark.parametrize(
        "source",
        [
            "kernel void k(device float* x) { x[0] = 1;",
            "\x00\xff\xfe garbage",
            "kernel void k(",
            "}" * 1000,
            '#include "missing.h"\nkernel void k(device float* x) {}',
            "#if 1\nkernel void k(device float* x) {}",
            "(" * 100_000,
        ],
        ids=["unclosed", "garbage", "cut", "closers", "include", "if", "deep"],
    )
    def test_bad_sources_are_errors(self, device, source):
        device.registry.register_source("k", source)
        with pytest.raises((metalane.CompileError, metalane.KernelNotFoundError)):
            device.registry.pipeline("k")
        run(
            device,
            "saxpy",
            SAXPY,
            [np.ones(4, np.float32), Out((4,), np.float32, 1.0), 2.0],
            threads=4,
            threads_per_threadgroup=4,
        )

    def test_two_sources_with_one_function_name_never_meet(self, device):
        for name, value in (("first", 1), ("second", 2)):
            device.registry.register_source(name, f"kernel void same(device uint* x) {{ x[0] = {value}; }}")
        x = device.zeros((1,), metalane.uint32)
        for name, value in (("first::same", 1), ("second::same", 2), ("first", 1), ("second", 2)):
            encoder = device.command_encoder()
            encoder.dispatch(name, [x], threads=1, threads_per_threadgroup=1)
            encoder.commit_and_wait()
            assert x.numpy()[0] == value
        with pytest.raises(KeyError, match="several registered sources"):
            device.registry.pipeline("same")

    def test_names_made_by_the_preprocessor_are_found(self, device_kind):
        device = metalane.Device(device_kind)
        device.registry.register_source("unreadable", "kernel void (")
        device.registry.register_source(
            "library",
            """
            template <typename T> kernel void twice(device T* x, uint i [[thread_position_in_grid]]) { x[i] += x[i]; }
            #define instance(T) template [[host_name("twice_" #T)]] kernel void twice<T>(device T*, uint);
            instance(float) instance(uint)
            """,
        )
        x = device.from_numpy(np.arange(8, dtype=np.uint32))
        encoder = device.command_encoder()
        encoder.dispatch("twice_uint", [x], threads=8, threads_per_threadgroup=8)
        encoder.commit_and_wait()
        np.testing.assert_array_equal(x.numpy(), 2 * np.arange(8))
        with pytest.raises(KeyError, match="unreadable"):
            device.registry.pipeline("twice_half")
