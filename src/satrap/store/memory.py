"""Address space reserved at once and backed by memory only where it is touched.

Rows and index never move: a slab as large as the machine's memory is reserved, and the system adds zeroed
pages, 2 MiB each where it can, as slots are used.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError

Number = TypeVar("Number", bound=np.generic)
PAGE = os.sysconf("SC_PAGE_SIZE")
HUGE = 1 << 21
"""Bytes of a large page, the unit in which the system backs memory that asked for them."""
_NORESERVE = 0x4000 if os.uname().sysname == "Linux" else 0
"""MAP_NORESERVE, which Python 3.11 does not name."""


def machine_bytes() -> int:
    """Return the bytes of physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class Reserved:
    """Zeroed memory of up to `size` bytes, touched as it is used.

    Args:
        size: bytes of address space, > 0; halved until the system grants it (`size` tells what it granted).
        huge: ask for 2 MiB pages, which halve the time of random access; if False, for small ones, so that
            no more is in use than what was touched. Default True.
        small: bytes at the beginning for which small pages are asked even so, a multiple of 2 MiB; default 0.

    Raises:
        StoreError: not even 1 MiB is granted.
    """

    def __init__(self, size: int, *, huge: bool = True, small: int = 0) -> None:
        self._map, self.size = _map(size)
        small = min(small, self.size) if huge else self.size
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages: slower, still right
                if small:
                    self._map.madvise(mmap.MADV_NOHUGEPAGE, 0, small)
                if small < self.size:
                    self._map.madvise(mmap.MADV_HUGEPAGE, small)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.address: int = self._bytes.ctypes.data

    def array(self, dtype: type[Number], count: int | None = None) -> npt.NDArray[Number]:
        """Return the memory as an array of `count` (default: all that fit) numbers of `dtype`."""
        item = np.dtype(dtype).itemsize
        return self._bytes[: (self.size // item if count is None else count) * item].view(dtype)


def _map(size: int) -> tuple[mmap.mmap, int]:
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    wanted = size
    while True:
        try:
            return mmap.mmap(-1, size, flags=flags), size
        except OSError as error:
            if size <= 1 << 20:
                raise StoreError(
                    f"the system grants no memory: {error}",
                    why=f"{wanted} bytes of address space were asked for, then less",
                    fix="raise the limit on virtual memory (ulimit -v)",
                ) from error
            size //= 2
