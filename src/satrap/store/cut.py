"""The rows of a moment, read while the store goes on: copy before write."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store import hashes
from satrap.store.chunk import Chunk
from satrap.store.kernels.eviction import claim
from satrap.store.types import Floats, Found, Ids, Inverse, Offsets

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from satrap.store.directory import Directory
    from satrap.store.group import Group

Row = tuple[Floats, Floats]


class Part:
    """The rows of a cut that lay in one place, memory or the tier.

    Args:
        directory: which slot each id has there.
        read: returns (weights, state) of slots; rows of -1 are anything.
        marks: uint8[slots // 8 + 1], one bit per slot: rows to leave out, or that were read or copied.
    """

    def __init__(
        self, directory: Directory, read: Callable[[Inverse], Row], marks: npt.NDArray[np.uint8] | None
    ) -> None:
        self.directory, self.read, self._limit = directory, read, directory.slots
        self._marks = np.zeros(self._limit // 8 + 1, np.uint8) if marks is None else marks

    def claim(self, slots: Inverse) -> Offsets:
        """Return the positions of slots not read or copied yet; from now on they count as read."""
        won = np.empty(len(slots), np.int64)
        return won[: claim(self._marks, slots, self._limit, won)]

    def unread(self, slots: Inverse) -> Found:
        """Return which slots hold rows of the cut that were not read or copied yet, bool[n]."""
        inside = np.minimum(slots, self._limit)  # beyond the limit: any bit will do
        marks = (self._marks[inside >> 3] >> (inside & 7).astype(np.uint8) & 1).astype(np.bool_)
        unread: Found = (slots < self._limit) & ~marks
        return unread


class Cut:
    """The rows that a group had when this was made.

    Making it costs nothing that grows with the rows, but for a bit per row. While it exists, the group calls
    `keep` before it changes rows and `keep_taken` when rows lose their slot: what has not been read yet is
    copied aside first, once. So the memory it needs is one bit per row and the rows that change until they
    have been read.

    A row that moves to the tier loses its slot; one that comes back keeps what it was in the file until it
    moves there again.

    Args:
        group: whose rows.
        tables: positions of the tables that will be read.
        without: uint8[slots // 8 + 1], one bit per slot of the group: rows to leave out; None: none.
        without_cold: the same for the slots of its tier.
    """

    def __init__(
        self,
        group: Group,
        tables: list[int],
        without: npt.NDArray[np.uint8] | None = None,
        without_cold: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        self._group, self._directory = group, group.directory
        self._wanted = np.zeros(len(group.tables), np.bool_)
        self._wanted[tables] = True
        self._memory = Part(group.directory, group.read, without)
        self._parts = [self._memory]
        if group.cold is not None:
            elsewhere = ~group.cold.live[: group.cold.directory.slots // 8 + 1]
            marks = elsewhere if without_cold is None else elsewhere | without_cold
            self._parts.append(Part(group.cold.directory, group.read_cold, marks))
        self._aside: list[tuple[Inverse, Ids, Floats, Floats]] = []
        self._kept: dict[tuple[int, int], dict[int, Row]] = {}

    def keep(self, ids: Ids, splits: Offsets, slots: Inverse) -> None:
        """Copy rows that are about to change."""
        tables = np.repeat(np.arange(len(splits) - 1, dtype=np.int32), np.diff(splits))
        self.keep_taken(ids, tables, slots)

    def keep_taken(self, ids: Ids, tables: Inverse, slots: Inverse) -> None:
        """Copy rows of (id, table) that have lost their slot but are still there."""
        self._keep(self._memory, ids, tables, slots)

    def keep_cold(self, ids: Ids, tables: Inverse, slots: Inverse) -> None:
        """Copy rows of (id, table) whose slots of the tier are about to be written; -1 is none."""
        self._keep(self._parts[1], ids, tables, slots)

    def _keep(self, part: Part, ids: Ids, tables: Inverse, slots: Inverse) -> None:
        won = part.claim(slots)
        won = won[self._wanted[tables[won]]]
        if len(won):
            self._aside.append((tables[won], ids[won], *part.read(slots[won])))

    def ignore(self, slots: Inverse) -> None:
        """Leave out rows made after this."""
        self._memory.claim(slots)

    def _sort_aside(self) -> None:
        """Put what was copied where its bucket will look for it."""
        aside, self._aside = self._aside, []
        for tables, ids, weights, state in aside:
            for t in np.unique(tables).tolist():
                at = np.flatnonzero(tables == t)
                buckets = hashes.bucket_of(self._group.tables[t], ids[at])
                for i, bucket in zip(at.tolist(), buckets.tolist(), strict=True):
                    self._kept.setdefault((t, bucket), {})[int(ids[i])] = (weights[i], state[i])

    def chunks(
        self, t: int, wanted: Found, chunk_rows: int, lock: AbstractContextManager[object]
    ) -> Iterator[Chunk]:
        """Yield the rows of table t in the wanted fixed buckets (bool[4096]), by bucket, then id."""
        rows = max(1, int(self._group.statistics()["rows"][t]))
        width = max(1, min(hashes.BUCKETS, hashes.BUCKETS * chunk_rows // rows))
        for first in range(0, hashes.BUCKETS, width):
            last = min(first + width, hashes.BUCKETS) - 1
            if not wanted[first : last + 1].any():
                continue
            with lock:
                self._check()
                ids, slots, buckets, places = self._collect(t, first, last)
                self._sort_aside()
            kept = [
                (key, bucket) for bucket in range(first, last + 1) for key in self._kept.get((t, bucket), ())
            ]
            ids = np.append(ids, np.array([key for key, _ in kept], np.uint64))
            buckets = np.append(buckets, np.array([bucket for _, bucket in kept], np.int32))
            slots = np.append(slots, np.full(len(kept), -1, np.int32))
            places = np.append(places, np.zeros(len(kept), np.int8))
            order = hashes.canonical_order(ids, buckets)
            order = order[wanted[buckets[order]]]
            for i in range(0, len(order), chunk_rows):
                part = order[i : i + chunk_rows]
                with lock:
                    self._check()
                    rows_read = self._read(t, ids[part], buckets[part], slots[part], places[part])
                yield Chunk(self._group.tables[t], ids[part], *rows_read)
            for bucket in range(first, last + 1):
                self._kept.pop((t, bucket), None)

    def _collect(self, t: int, first: int, last: int) -> tuple[Ids, Inverse, Inverse, npt.NDArray[np.int8]]:
        """Return (ids, slots, buckets, which of the parts) of the rows not read or copied yet."""
        found: list[tuple[Ids, Inverse, Inverse, npt.NDArray[np.int8]]] = []
        for place, part in enumerate(self._parts):
            ids, slots, buckets = part.directory.collect(t, first, last)
            live = part.unread(slots)
            places = np.full(int(live.sum()), place, np.int8)
            found.append((ids[live], slots[live], buckets[live], places))
        if len(found) == 1:
            return found[0]
        ids, slots, buckets, places = (np.concatenate(column) for column in zip(*found, strict=True))
        return ids, slots, buckets, places

    def _read(self, t: int, ids: Ids, buckets: Inverse, slots: Inverse, places: npt.NDArray[np.int8]) -> Row:
        """Return (weights, state) of rows, from where they lie or from the copies."""
        self._sort_aside()
        here = np.full(len(slots), -1, np.int8)
        for place, part in enumerate(self._parts):
            here[part.claim(np.where(places == place, slots, -1).astype(np.int32))] = place
        weights, state = self._memory.read(np.where(here == 0, slots, -1).astype(np.int32))
        for place, part in enumerate(self._parts[1:], 1):
            at = np.flatnonzero(here == place)
            weights[at], state[at] = part.read(slots[at])
        for i in np.flatnonzero(here < 0).tolist():
            weights[i], state[i] = self._kept[t, int(buckets[i])][int(ids[i])]
        return weights, state

    def _check(self) -> None:
        if self._group.directory is not self._directory:
            raise StoreError("the store was cleared or closed while it was being exported")
