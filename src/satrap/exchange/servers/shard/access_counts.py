"""A shard's recent use counts of the rows in each bucket."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from satrap.exchange import kernels
from satrap.store import BUCKETS
from satrap.store.arrays import Ids, Offsets
from satrap.store.hashes import index_salt

HALF_LIFE = 300.0
"""Seconds after which a use counts half. All shards decay by the clock, so their counts are comparable."""
_AGING = 1.0
"""Seconds between two decays of the counts: a use may count up to 0.3 % too much for its age."""

Counts = npt.NDArray[np.float64]


class AccessCounts:
    """Counts of uses by bucket, which halve every `HALF_LIFE` seconds.

    Its methods are called by one thread.

    Args:
        groups: names of the tables of each table group.
        clock: returns seconds, default `time.monotonic`.
    """

    def __init__(self, groups: Sequence[Sequence[str]], clock: Callable[[], float] = time.monotonic) -> None:
        self._salts = [np.array([index_salt(t) for t in tables], np.uint64) for tables in groups]
        self._clock, self._counts, self._aged = clock, np.zeros(BUCKETS), clock()

    def count(self, group: int, ids: Ids, splits: Offsets) -> None:
        """Count one use of each id.

        Args:
            group: index of the table group.
            ids: uint64[n], by table.
            splits: int64[tables + 1]; `ids[splits[t]:splits[t + 1]]` belong to table t of the group.
        """
        if self._clock() - self._aged > _AGING:
            self._age()
        kernels.count_buckets(ids, splits, self._salts[group], self._counts)

    def lately(self) -> Counts:
        """Return the present counts, float64[4096]."""
        self._age()
        return self._counts.copy()

    def clear(self) -> None:
        """Reset all counts."""
        self._counts[:] = 0

    def _age(self) -> None:
        now = self._clock()
        self._counts *= 0.5 ** ((now - self._aged) / HALF_LIFE)
        self._aged = now
