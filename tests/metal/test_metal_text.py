"""The one text that Metal's compiler is given: it computes what the source does, and messages keep their places."""

from __future__ import annotations

import numpy as np
import pytest

import metalane as ml

HEADER = """#pragma once
#include <metal_stdlib>
using namespace metal;
static inline float scaled(float x, float a) { return a * x; }
"""
SOURCE = """#include "lib/scale.h"
#include "lib/scale.h"
kernel void scale(device const float* x [[buffer(0)]], device float* y [[buffer(1)]],
                  constant float& a [[buffer(2)]], uint i [[thread_position_in_grid]]) {
  y[i] = scaled(x[i], a);
}
"""


@pytest.fixture
def cpu() -> ml.Device:
    return ml.Device("cpu")


def test_one_text_computes_the_same(cpu: ml.Device) -> None:
    cpu.registry.register_header("lib/scale.h", HEADER)
    cpu.registry.register_source("scale", SOURCE)
    text = cpu.registry.metal_source("scale")
    assert "lib/scale.h" in text and '#include "' not in text
    x = np.arange(70, dtype=np.float32) / 7
    y = np.full(70, np.nan, np.float32)
    cpu.compile(text).scale(x, y, np.float32(3.5), threads=70)
    np.testing.assert_array_equal(y, (x.astype(np.float64) * 3.5).astype(np.float32))


def test_messages_name_the_header_and_its_line(cpu: ml.Device) -> None:
    cpu.registry.register_header("lib/scale.h", HEADER.replace("a * x", "a * nothing_here"))
    cpu.registry.register_source("scale", SOURCE)
    text = cpu.registry.metal_source("scale")
    with pytest.raises(ml.CompileError, match=r"lib/scale\.h:4:\d+: .*nothing_here"):
        cpu.compile(text).scale(np.zeros(1, np.float32), np.zeros(1, np.float32), 1.0, threads=1)


def test_math_and_names(cpu: ml.Device) -> None:
    cpu.registry.register_source("plain", "kernel void plain() {}")
    assert "#pragma METAL fp contract(off)" in cpu.registry.metal_source("plain")
    assert "#pragma" not in cpu.registry.metal_source("plain", math="fast")
    with pytest.raises(ml.KernelNotFoundError, match="absent"):
        cpu.registry.metal_source("absent")
    with pytest.raises(ml.ArgumentError, match="metal_source: math must be 'safe' or 'fast', got 'other'"):
        cpu.registry.metal_source("plain", math="other")
