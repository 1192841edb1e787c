"""Makes the C library keep freed memory for the next batch."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameter numbers of `mallopt`, from malloc.h."""

_LARGEST, _KEPT = 32 << 20, 512 << 20
"""Largest freed block to keep, and most bytes to keep in all."""


def keep_freed_memory(largest: int = _LARGEST, kept: int = _KEPT) -> None:
    """Let the C library reuse freed blocks instead of returning them to the system each time.

    Every batch needs the same few blocks of several megabytes: messages, rows, activations, gradients.
    Mapping them again costs a page fault per 4 KiB: measured as a fifth of the time of a shard, and of a
    narrow network with 64 weights per row. Affects the whole process; works with glibc only.

    Args:
        largest: bytes of the largest block to keep; below 2 GiB, in older C libraries up to 32 MiB.
        kept: most bytes to keep; below 2 GiB.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, largest)
        mallopt(_TRIM_THRESHOLD, kept)


def release_freed_memory() -> None:
    """Return all freed blocks to the system now, even between blocks in use; works with glibc only."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
