"""A first use of the installed package, on the CPU device: a kernel from source, the selector, an error."""

import numpy as np

import metalane

SOURCE = """
#include <metal_stdlib>
using namespace metal;
kernel void axpy(device float* y [[buffer(0)]], device const float* x [[buffer(1)]],
                 constant float& scale [[buffer(2)]], uint i [[thread_position_in_grid]]) { y[i] += scale * x[i]; }
"""

device = metalane.Device("cpu")
device.registry.register_source("axpy", SOURCE)
x = np.arange(1000, dtype=np.float32)
y = device.from_numpy(np.ones(1000, np.float32))
with device.command_encoder() as encoder:
    encoder.dispatch("axpy", [y, device.wrap(x), 2.0], threads=1000, threads_per_threadgroup=64)
np.testing.assert_array_equal(y.numpy(), 1 + 2 * x)

buffers = metalane.DFlash2SelectorBuffers.alloc(device, 1, 2, 100)
buffers.logits.numpy()[0, 1, 42] = 5
with device.command_encoder() as encoder:
    params = metalane.DFlash2SelectorParams(
        [0] * 4, [1.0] * 4, lanes=1, rows_per_lane=2, vocabulary=100, sampling_mask=0
    )
    metalane.dispatch_dflash2_selector(encoder, buffers, params)
assert buffers.tokens.tolist() == [[42]]

try:
    device.zeros(4, "float64")
except metalane.DTypeError as error:
    assert "float64" in str(error)
else:
    raise AssertionError("float64 must be refused")
print(f"metalane {metalane.__version__}: {device!r}")
