"""Counts the pending lookups of each row."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.store import Shard, Slots

Mask = npt.NDArray[np.bool_]


class PendingRows:
    """Counts the lookups that wait for each row of a store.

    Each pending lookup is followed by an update of its rows. So a row that another lookup waits for will
    change before the turn of a later one, and any other row will not.

    Args:
        shard: the store; it evicts nothing, so that rows stay in their slots.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._counts = [np.zeros(0, np.uint16) for _ in shard.groups]

    def among(self, slots: Slots) -> Mask:
        """Return, for each of these rows, whether a lookup waits for it."""
        size, counts = self._shard.groups[slots.group].directory.slots, self._counts[slots.group]
        if len(counts) < size:
            counts = np.concatenate([counts, np.zeros(size * 5 // 4 - len(counts), np.uint16)])
            self._counts[slots.group] = counts
        awaited: Mask = counts[slots.numbers] > 0
        return awaited

    def add(self, slots: Slots) -> None:
        """Count one more lookup of these rows, after `among`."""
        self._counts[slots.group][slots.numbers] += np.uint16(1)

    def remove(self, slots: Slots) -> None:
        """Count one lookup of these rows less, after its update."""
        self._counts[slots.group][slots.numbers] -= np.uint16(1)
