"""Process-wide settings of the CPU device: threads, the disk cache of compiled kernels; and its instruction sets."""

from __future__ import annotations

from ._core import (
    KernelCacheInfo,
    clear_kernel_cache,
    instruction_sets,
    kernel_cache_info,
    prune_kernel_cache,
    set_kernel_cache,
    set_thread_count,
)

__all__ = [
    "KernelCacheInfo",
    "clear_kernel_cache",
    "instruction_sets",
    "kernel_cache_info",
    "prune_kernel_cache",
    "set_kernel_cache",
    "set_thread_count",
]
