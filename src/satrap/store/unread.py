"""Which rows of a part a cut has not read or copied yet."""

from __future__ import annotations

import numpy as np

from satrap.store.backend import Part
from satrap.store.kernels.index import claim
from satrap.store.types import Bytes, Found, Inverse, Offsets

_PIECE = 1 << 20
"""Bytes of marks that are counted at once."""


class Unread:
    """One bit per slot of a part, set once its row was read or copied; `without`: rows to leave out.

    Attributes:
        part: whose rows.
        limit: slots that the part had handed out; later ones hold no row of the cut.
    """

    def __init__(self, part: Part, without: Bytes | None) -> None:
        self.part, self.limit = part, part.directory.slots
        self._marks = np.zeros(self.limit // 8 + 1, np.uint8)
        if part.live is not None:
            self._marks |= ~part.live[: len(self._marks)]
        if without is not None:
            self._marks |= without

    @property
    def count(self) -> int:
        """Number of slots below the limit that were not read or copied yet, or up to eight more."""
        pieces = range(0, len(self._marks), _PIECE)
        read = sum(int(np.unpackbits(self._marks[i : i + _PIECE]).sum(dtype=np.int64)) for i in pieces)
        return 8 * len(self._marks) - read

    def claim(self, slots: Inverse) -> Offsets:
        """Return the positions of slots not read or copied yet; from now on they count as read."""
        won = np.empty(len(slots), np.int64)
        return won[: claim(self._marks, slots, self.limit, won)]

    def among(self, slots: Inverse) -> Found:
        """Return which slots hold rows of the cut that were not read or copied yet, bool[n]."""
        inside = np.minimum(slots, self.limit)  # beyond the limit, any bit will do
        marks = (self._marks[inside >> 3] >> (inside & 7).astype(np.uint8) & 1).astype(np.bool_)
        unread: Found = (slots < self.limit) & ~marks
        return unread
