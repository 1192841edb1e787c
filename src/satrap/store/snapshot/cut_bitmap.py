"""The rows of a part that a cut has neither read nor copied yet."""

from __future__ import annotations

import numpy as np

from satrap.store.arrays import Bytes, Found, Inverse, Offsets
from satrap.store.backend import MemoryPart
from satrap.store.kernels.index.slot_index import claim

_PIECE = 1 << 20
"""Bytes of marks that are counted at once."""


class Unread:
    """One bit per slot of a part, set once its row was read or copied; `without`: rows to leave out.

    Attributes:
        part: the part.
        limit: slots that the part had allocated; later slots do not hold rows of the cut.
    """

    def __init__(self, part: MemoryPart, without: Bytes | None) -> None:
        self.part, self.limit = part, part.directory.slots
        self._marks = np.zeros(self.limit // 8 + 1, np.uint8)
        if part.live is not None:
            self._marks |= ~part.live[: len(self._marks)]
        if without is not None:
            self._marks |= without

    @property
    def count(self) -> int:
        """Number of slots below the limit neither read nor copied yet, at most eight too many."""
        pieces = range(0, len(self._marks), _PIECE)
        read = sum(int(np.unpackbits(self._marks[i : i + _PIECE]).sum(dtype=np.int64)) for i in pieces)
        return 8 * len(self._marks) - read

    def claim(self, slots: Inverse) -> Offsets:
        """Return the positions of slots neither read nor copied yet; from now on they count as read."""
        won = np.empty(len(slots), np.int64)
        return won[: claim(self._marks, slots, self.limit, won)]

    def among(self, slots: Inverse) -> Found:
        """Return which slots hold rows of the cut neither read nor copied yet, bool[n]."""
        inside = np.minimum(slots, self.limit)  # beyond the limit, the bit does not matter
        marks = (self._marks[inside >> 3] >> (inside & 7).astype(np.uint8) & 1).astype(np.bool_)
        unread: Found = (slots < self.limit) & ~marks
        return unread
