"""Copies of rows, made before the rows change and kept until a cut has read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from satrap.store import hashes
from satrap.store.arrays import Floats, Ids, Inverse
from satrap.store.kernels import copied_rows
from satrap.store.memory.reserve import Reserved

SMALLEST = 256 << 20
"""Bytes of copies that every cut may hold."""
SHARE = 4
"""A cut of many rows may hold copies of one in this many."""


class CopyOnWrite:
    """Copies of rows of one cut, by table and fixed bucket; freed positions are reused.

    A row has `dim` float32 of weights and `width` of state. Each of the `rows` rows is copied at most once.

    Attributes:
        limit: most copies at a time: a quarter of the rows, or 256 MiB of copies if that is more.

    Raises:
        StoreError: the system does not grant the address space.
    """

    def __init__(self, tables: Sequence[str], dim: int, width: int, rows: int) -> None:
        record = 4 * (dim + width) + 16  # with its id and its words in `nexts` and `free`
        self.limit = max(1, min(rows, max(SMALLEST // record, -(-rows // SHARE))))
        self._dim = dim
        floats = Reserved(4 * (dim + width) * self.limit, huge=False).array(np.float32)
        self._copies = copied_rows.Copies(
            salts=np.array([hashes.index_salt(name) for name in tables], np.uint64),
            done=np.zeros(len(tables), np.int32),
            ids=Reserved(8 * self.limit, huge=False).array(np.uint64),
            rows=floats.reshape(self.limit, dim + width),
            heads=np.zeros(len(tables) * hashes.BUCKETS, np.int32),
            nexts=Reserved(4 * self.limit, huge=False).array(np.int32),
            free=Reserved(4 * self.limit, huge=False).array(np.int32),
            counts=np.zeros(2, np.int64),
        )

    @property
    def count(self) -> int:
        """Number of copies now."""
        return int(self._copies.counts[copied_rows.USED] - self._copies.counts[copied_rows.FREE])

    def put(self, tables: Inverse, ids: Ids, weights: Floats, state: Floats) -> bool:
        """Store copies of rows; return False and store none if they would exceed `limit`."""
        if self.count + len(ids) > self.limit:
            return False
        copied_rows.put(self._copies, tables, ids, weights, state)
        return True

    def find(self, t: int, first: int, last: int) -> tuple[Ids, Inverse, Inverse]:
        """Return (ids, places, buckets) of the copies of table t in buckets first..last, in any order."""
        places, buckets = np.empty((2, self.count), np.int32)
        base = t * hashes.BUCKETS
        n = copied_rows.listed(self._copies, base + first, base + last, places, buckets)
        return self._copies.ids[places[:n]], places[:n], buckets[:n]

    def read(self, t: int, ids: Ids, buckets: Inverse) -> tuple[Floats, Floats]:
        """Return (weights, state) of copied ids of table t, given their buckets."""
        copied, places, _ = self.find(t, int(buckets.min()), int(buckets.max()))
        order = np.argsort(copied)
        rows = self._copies.rows[places[order[np.searchsorted(copied, ids, sorter=order)]]]
        return rows[:, : self._dim], rows[:, self._dim :]

    def take(self) -> tuple[Inverse, Ids, Floats, Floats]:
        """Return (tables int32[n], ids, weights, state) of all copies, in any order, and free them."""
        parts = [self.find(t, 0, hashes.BUCKETS - 1)[1] for t in range(len(self._copies.salts))]
        places = np.concatenate(parts)
        tables = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part) for part in parts])
        ids, rows = self._copies.ids[places], self._copies.rows[places]
        self._free(places)
        self._copies.heads[:] = 0
        return tables, ids, rows[:, : self._dim], rows[:, self._dim :]

    def let_go(self, t: int, buckets: int) -> None:
        """Free table t's copies in buckets below `buckets`, which the cut has read."""
        copies, base = self._copies, t * hashes.BUCKETS
        first = int(copies.done[t])
        self._free(self.find(t, first, buckets - 1)[1])
        copies.heads[base + first : base + buckets] = 0
        copies.done[t] = buckets

    def _free(self, places: Inverse) -> None:
        free = int(self._copies.counts[copied_rows.FREE])
        self._copies.free[free : free + len(places)] = places
        self._copies.counts[copied_rows.FREE] += len(places)
