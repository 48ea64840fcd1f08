"""Idioms of shipped kernel files, in kernels of our own: what a source writes against names of Apple's headers."""

from __future__ import annotations

import numpy as np
import pytest

import metalane

HEAD = "#include <metal_stdlib>\nusing namespace metal;\n"

# Special members repeated for each address space; a key with its value, whose limits the library hands out.
KEYED = (
    HEAD
    + """
struct Walk {
  uint state;
  Walk() thread = default;
  Walk() threadgroup = default;
  Walk() device = default;
  Walk() constant = default;
  Walk(thread const Walk&) thread = default;
  static Walk from(uint seed) { Walk w; w.state = seed | 1; return w; }
  uint step() thread { return state = state * 1664525u + 1013904223u; }
};
kernel void walks(device uint* out, uint i [[thread_position_in_grid]]) {
  Walk w = Walk::from(i);
  w.step();
  out[i] = w.step();
}

template <typename T>
struct keyed {
  uint key;
  T value;
  constexpr keyed<T>() threadgroup = default;
  constexpr keyed<T>(uint k, T v) : key(k), value(v) {}
};
template <typename T>
struct _numeric_limits_impl<keyed<T>> {
  static constexpr keyed<T> lowest() { return keyed<T>(0, numeric_limits<T>::lowest()); }
};
template <typename T>
constexpr bool operator<(keyed<T> a, keyed<T> b) {
  return a.value < b.value || (a.value == b.value && a.key > b.key);
}
template <typename T>
struct Larger {
  static constexpr T start() { return numeric_limits<T>::lowest(); }
  T operator()(T a, T b) { return a < b ? b : a; }
};
template <typename T>
kernel void last_peak(device const T* x, constant uint& n, device uint* where, device T* peak) {
  Larger<keyed<T>> larger;
  keyed<T> best = Larger<keyed<T>>::start();
  for (uint i = 0; i < n; ++i) best = larger(best, keyed<T>(i, x[i]));
  where[0] = best.key;
  peak[0] = best.value;
}
template [[host_name("last_peak_float")]] kernel void last_peak<float>(
    device const float*, constant uint&, device uint*, device float*);
template [[host_name("last_peak_short")]] kernel void last_peak<short>(
    device const short*, constant uint&, device uint*, device short*);

template <typename T>
constexpr constant bool over_lanes = __is_valid_simdgroup_type<T>::value;
kernel void lanes_take(device bool* out) {
  out[0] = over_lanes<float>;
  out[1] = over_lanes<half>;
  out[2] = over_lanes<uchar>;
  out[3] = over_lanes<float4>;
  out[4] = over_lanes<ulong>;
  out[5] = over_lanes<keyed<float>>;
  out[6] = over_lanes<bfloat>;
}
"""
)


@pytest.fixture(scope="module")
def device():
    return metalane.Device("cpu")


@pytest.fixture(scope="module")
def keyed(device):
    return device.compile(KEYED, name="keyed")


def test_special_members_for_every_address_space(keyed):
    out = np.full(50, 0xA5A5A5A5, np.uint32)
    keyed.walks(out, threads=50)
    state = np.arange(50, dtype=np.uint64) | 1
    for _ in range(2):
        state = (state * 1664525 + 1013904223) % 2**32
    np.testing.assert_array_equal(out, state)


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_limits_of_a_type_of_the_source(keyed, dtype):
    x = np.array([-5, -9, -2, -7, -2, -30], dtype)
    where, peak = np.full(1, 77, np.uint32), np.full(1, 55, dtype)
    kernel = keyed["last_peak_float" if dtype == np.float32 else "last_peak_short"]
    kernel(x, x.size, where, peak, threads=1)
    assert (where[0], peak[0]) == (2, -2)
    # Nothing to look at: what the type's own limits say.
    kernel(x, 0, where, peak, threads=1)
    lowest = np.finfo(dtype).min if dtype == np.float32 else np.iinfo(dtype).min
    assert (where[0], peak[0]) == (0, lowest)


def test_types_that_apples_collectives_take(keyed):
    out = np.array([False, False, False, False, True, True, True])
    keyed.lanes_take(out, threads=1)
    assert out.tolist() == [True, True, True, True, False, False, False]
