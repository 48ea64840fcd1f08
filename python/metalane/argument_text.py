"""How error messages show the values that callers gave."""

from __future__ import annotations

import reprlib

import numpy as np


def shown(value: object) -> str:
    """The value and its type, in short. The repr of a large array takes seconds, that of a long integer raises."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return f"{reprlib.repr(value)} ({type(value).__name__})"
