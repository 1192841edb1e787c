"""What a collective exchange needs of the processes that take part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Ranks(Protocol):
    """Processes that send each other bytes, all at the same time.

    Every method is called by all of them, in the same order, by one thread of each. It raises `ExchangeError`
    if one does not take part in time.

    Attributes:
        rank: number of this process, 0..size - 1.
        size: number of processes.
    """

    rank: int
    size: int

    def all_to_all(self, given: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        """Send `given[r]` to rank r; return what each rank sent to this one, `sizes[r]` bytes from rank r."""

    def close(self) -> None:
        """Leave the others."""


class Alone:
    """A process alone; see `Ranks`."""

    rank, size = 0, 1

    def all_to_all(self, given: Sequence[Bytes], sizes: Sequence[int]) -> list[Bytes]:
        """Return what was given."""
        return list(given)

    def close(self) -> None:
        """Nobody is there to be left."""
