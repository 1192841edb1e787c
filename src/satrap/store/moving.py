"""Rows of a table group by fixed bucket: how many there are, and dropping those that have moved elsewhere."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from satrap.store.buckets import Mask
from satrap.store.group import Group
from satrap.store.hashes import BUCKETS
from satrap.store.types import Ids, Inverse, Offsets

_PIECE = 64
"""Fixed buckets whose rows are listed at once, so that the list stays small."""


def discard(group: Group, buckets: Mask) -> int:
    """Drop the rows of some fixed buckets, bool[4096]; return how many.

    Raises:
        StoreError: the backend cannot; nothing has changed.
    """
    dropped = 0
    for t, ids, slots, numbers in _listed(group):
        chosen = buckets[numbers]
        group.backend.discard(t, ids[chosen], slots[chosen])
        dropped += int(chosen.sum())
    return dropped


def rows_by_bucket(group: Group) -> Offsets:
    """Return the number of rows in each fixed bucket, int64[4096], in the fast part."""
    counts = np.zeros(BUCKETS, np.int64)
    for _, _, _, numbers in _listed(group):
        counts += np.bincount(numbers, minlength=BUCKETS)
    return counts


def _listed(group: Group) -> Iterator[tuple[int, Ids, Inverse, Inverse]]:
    """Yield (table, ids, slots, buckets) of all rows of the fast part, piece by piece."""
    for t in range(len(group.tables)):
        for first in range(0, BUCKETS, _PIECE):
            yield t, *group.directory.collect(t, first, first + _PIECE - 1)
