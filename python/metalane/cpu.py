"""Process-wide settings of the CPU device: its threads, and the disk cache of kernels compiled at run time."""

from __future__ import annotations

from ._core import (
    KernelCacheInfo,
    clear_kernel_cache,
    kernel_cache_info,
    prune_kernel_cache,
    set_kernel_cache,
    set_thread_count,
)

__all__ = [
    "KernelCacheInfo",
    "clear_kernel_cache",
    "kernel_cache_info",
    "prune_kernel_cache",
    "set_kernel_cache",
    "set_thread_count",
]
