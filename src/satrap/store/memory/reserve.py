"""Address space that is reserved in advance and backed by memory only as it is used.

Rows and index never move: a slab as large as the machine's memory is reserved, and the system adds zeroed
pages, of 2 MiB if possible, as slots are used.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.runtime.machine_limits import address_bytes

Number = TypeVar("Number", bound=np.generic)
PAGE = os.sysconf("SC_PAGE_SIZE")
HUGE = 1 << 21
"""Bytes of a large page."""
_NORESERVE = 0x4000 if os.uname().sysname == "Linux" else 0
"""MAP_NORESERVE, which Python 3.11 does not define."""


class Reserved:
    """Zeroed memory of `size` bytes, > 0, backed by pages only as it is used.

    Raises `StoreError` unless all of it can be reserved, as kernels do not check. Pages of 2 MiB (`huge`)
    halve the time of random access; small pages use no more memory than was touched. The first `small` bytes,
    a multiple of 2 MiB, always get small pages.
    """

    def __init__(self, size: int, *, huge: bool = True, small: int = 0) -> None:
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
            self._map, self.size = mmap.mmap(-1, size, flags=flags), size
        except (OSError, OverflowError) as error:
            available = address_bytes()
            raise StoreError(
                f"the system does not grant {size} bytes of address space: {error}",
                why="this process has no limit of its own"
                if available is None
                else f"the limits of this process leave {available} bytes",
                fix="reduce embedding.memory, or raise the limit (ulimit -v, vm.overcommit_memory)",
            ) from error
        small = min(small, self.size) if huge else self.size
        if hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):  # a system without huge pages is slower, but correct
                if small:
                    self._map.madvise(mmap.MADV_NOHUGEPAGE, 0, small)
                if small < self.size:
                    self._map.madvise(mmap.MADV_HUGEPAGE, small)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self.address: int = self._bytes.ctypes.data

    def array(self, dtype: type[Number], count: int | None = None) -> npt.NDArray[Number]:
        """Return the memory as an array of `count` (default: as many as fit) numbers of `dtype`."""
        item = np.dtype(dtype).itemsize
        count = self.size // item if count is None else count
        assert count * item <= self.size
        return self._bytes[: count * item].view(dtype)
