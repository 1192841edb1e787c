"""What a collective exchange needs of the processes that take part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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

    def all_to_all(self, given: Bytes, lengths: Sequence[int], sizes: Sequence[int]) -> list[Bytes]:
        """Send bytes to all ranks.

        Args:
            given: what is sent, in order of rank.
            lengths: bytes to each rank.
            sizes: bytes from each rank.

        Returns:
            What each rank has sent to this one.
        """

    def another(self) -> Ranks:
        """Return the same processes for another thread."""

    def close(self) -> None:
        """Leave the others."""


class Alone:
    """A process alone; see `Ranks`."""

    rank, size = 0, 1

    def all_to_all(self, given: Bytes, lengths: Sequence[int], sizes: Sequence[int]) -> list[Bytes]:
        """Return what was given."""
        return [given]

    def another(self) -> Alone:
        """Return this."""
        return self

    def close(self) -> None:
        """Nobody is there to be left."""


def joined(parts: Iterable[Bytes]) -> Bytes:
    """Return bytes one after the other; a part that is alone is not copied."""
    filled = [part for part in parts if len(part)]
    return filled[0] if len(filled) == 1 else np.concatenate([np.empty(0, np.uint8), *filled])
