"""Large arrays whose memory is reused after their last reference is gone.

Writing fresh memory costs a page fault per 4 KiB, which takes longer than filling it with rows. These arrays
use 2 MiB pages that the process keeps.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.runtime.arguments import checked
from satrap.store.memory.reserve import HUGE, Reserved

SMALLEST = 1 << 20
"""Fewest bytes of an array worth keeping; the allocator already keeps smaller arrays."""
KEPT = 8
"""Most unused buffers; the least recently used buffer is dropped first."""


class _Lease:
    """Owns a buffer while its array, or a view of the array, exists."""

    def __init__(self, memory: Reserved, free: deque[Reserved], shape: tuple[int, ...]) -> None:
        self._memory, self._free = memory, free
        self.__array_interface__: dict[str, Any] = {
            "shape": shape,
            "typestr": np.dtype(np.float32).str,
            "data": (memory.address, False),
            "version": 3,
        }

    def __del__(self) -> None:
        self._free.append(self._memory)


@checked()
class Buffers:
    """Allocates arrays and reclaims their memory automatically; thread-safe.

    ```python
    rows = Buffers().floats(50_000, 128)     # uninitialized; reclaimed when `rows` and all its views are gone
    ```
    """

    def __init__(self) -> None:
        self._free: deque[Reserved] = deque()

    def floats(self, *shape: int) -> npt.NDArray[np.float32]:
        """Return an uninitialized, C-contiguous float32 array.

        Raises:
            StoreError: the system does not grant the memory.
        """
        if min(shape, default=0) < 0:
            raise StoreError(f"an array cannot have the shape {shape}")
        size = 4 * math.prod(shape)
        if size < SMALLEST:
            return np.empty(shape, np.float32)
        return np.asarray(_Lease(self._take(size), self._free, shape))

    def _take(self, size: int) -> Reserved:
        fitting: Reserved | None = None
        others: list[Reserved] = []
        while fitting is None:
            try:
                memory = self._free.pop()  # the last used: much of it may still be in the cache
            except IndexError:
                break
            if size <= memory.size <= 2 * size + HUGE:
                fitting = memory
            else:
                others.append(memory)
        self._free.extend(reversed(others))
        while len(self._free) > KEPT:
            self._free.popleft()
        if fitting is not None:
            return fitting
        size = -(-(size + size // 16) // HUGE) * HUGE
        try:
            return Reserved(size)
        except StoreError:  # unused buffers hold address space, so free them and retry
            self._free.clear()
            return Reserved(size)


_BUFFERS = Buffers()


def floats(*shape: int) -> npt.NDArray[np.float32]:
    """Return an uninitialized, C-contiguous float32 array from the buffers of this process."""
    return _BUFFERS.floats(*shape)
