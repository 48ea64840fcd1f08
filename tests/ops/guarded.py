"""Memory in which a kernel that goes astray is found out."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

import metalane

GUARD = 68  # bytes; a multiple of 4 but not of 16: no buffer starts where a vector would like it to
POISON = 0xA5


class Guarded:
    """A buffer inside a larger one, everything poisoned."""

    def __init__(self, device: metalane.Device, shape: tuple[int, ...], dtype: np.dtype) -> None:
        nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.whole = device.empty((nbytes + 2 * GUARD,), np.uint8)
        self.whole.numpy()[:] = POISON
        self.buffer = self.whole.view(GUARD, shape, dtype)

    def set(self, values: np.ndarray) -> None:
        np.asarray(self.buffer)[...] = values

    def check(self, name: str) -> None:
        whole = self.whole.numpy()
        assert (whole[:GUARD] == POISON).all(), f"{name}: written before its start"
        assert (whole[-GUARD:] == POISON).all(), f"{name}: written past its end"


def at_page_end(device: metalane.Device, values: np.ndarray) -> metalane.Buffer:
    """A copy of `values` whose last byte is the last one before a page that nobody may touch."""
    values = np.ascontiguousarray(values)
    used = -(-max(values.nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, used + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(address + used), ctypes.c_size_t(mmap.PAGESIZE), 0) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    pages = np.frombuffer(memory, np.uint8, used)
    pages[used - values.nbytes :] = values.reshape(-1).view(np.uint8)
    return device.wrap(pages).view(used - values.nbytes, values.shape, values.dtype)
