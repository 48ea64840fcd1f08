"""Memory of the host: arrays that every device can use in place, and how much of it this process has."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np


def paged(values: np.ndarray) -> np.ndarray:
    """A copy on memory pages of its own: Metal maps nothing else without a copy."""
    memory = mmap.mmap(-1, max(values.nbytes, 1))
    copy = np.frombuffer(memory, values.dtype, values.size).reshape(values.shape)
    copy[...] = values
    return copy


def resident_bytes() -> int:
    """Of this process, on Linux."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
