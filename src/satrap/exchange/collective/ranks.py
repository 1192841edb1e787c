"""The group communication that a collective exchange needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]


class Ranks(Protocol):
    """Processes that send each other bytes, all at the same time.

    Every method is called by all of them, in the same order, by one thread of each. It raises `ExchangeError`
    if a process does not take part in time.

    Attributes:
        rank: number of this process, 0..size - 1.
        size: number of processes.
    """

    rank: int
    size: int

    def all_to_all(self, given: Bytes, lengths: Sequence[int], sizes: Sequence[int]) -> list[Bytes]:
        """Send bytes to all ranks.

        Args:
            given: bytes to send, in order of rank.
            lengths: bytes to each rank.
            sizes: bytes from each rank.

        Returns:
            The bytes from each rank.
        """

    def another(self) -> Ranks:
        """Return the same processes for another thread."""

    def close(self) -> None:
        """Disconnect from the other processes."""


class Alone:
    """A single process; see `Ranks`."""

    rank, size = 0, 1

    def all_to_all(self, given: Bytes, lengths: Sequence[int], sizes: Sequence[int]) -> list[Bytes]:
        """Return the bytes given."""
        return [given]

    def another(self) -> Alone:
        """Return this object."""
        return self

    def close(self) -> None:
        """Do nothing: there are no other ranks."""
