"""The rows at one moment, read while the store changes: copy on write."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store import hashes
from satrap.store.arrays import Bytes, Floats, Found, Ids, Inverse, Offsets
from satrap.store.backend import FAST, PartRows, RowBackend, RowEvents
from satrap.store.buckets import mask_of
from satrap.store.row_chunk import RowChunk
from satrap.store.row_spec import RowSpec
from satrap.store.snapshot.copy_on_write import CopyOnWrite
from satrap.store.snapshot.cut_bitmap import Unread
from satrap.store.snapshot.spill import Spill

if TYPE_CHECKING:
    from threading import Condition

Row = tuple[Floats, Floats]

PATIENCE = 10.0
"""Seconds a request waits for a stalled reader before the cut is abandoned."""
RANGE_CHUNKS = 4
"""Find and sort the rows of about this many chunks at once, to amortize the cost per call."""
SMALL_FILE = 256 << 20
"""Bytes of a part's file above which most of its rows are read in file order."""
PAGE = 4096
"""Fewest bytes that the system reads from a file."""
SCANS = 16
"""Scans of the index for the ids of a part's slots; each scan covers this fraction of the slots."""
LISTED = 1 << 20
"""Rows of the index listed at once, with the store's lock held."""


class _Places(NamedTuple):
    """Locations of rows: their ids, slots (-1: copied), fixed buckets, and the part that holds them."""

    ids: Ids
    slots: Inverse
    buckets: Inverse
    parts: npt.NDArray[np.int8]

    def part(self, which: slice | Offsets | Found) -> _Places:
        """Return some of the rows."""
        return _Places(self.ids[which], self.slots[which], self.buckets[which], self.parts[which])


def _joined(places: list[_Places]) -> _Places:
    if len(places) == 1:
        return places[0]
    ids, slots, buckets, parts = (np.concatenate(column) for column in zip(*places, strict=True))
    return _Places(ids, slots, buckets, parts)


def wait_for_room(cuts: Iterable[Cut], rows: int, lock: Condition) -> None:
    """Wait, with the lock released, until each cut has room for this many copies or is abandoned."""
    for cut in list(cuts):
        while cut.waits(rows):
            if not lock.wait(PATIENCE):
                cut.give_up()


class Cut(RowEvents):
    """The rows that a backend had when the cut was created.

    While it exists, the cut observes the rows: a row that has not been read yet is copied once, before it
    changes or is removed. So a cut needs one bit per row, and memory for the rows that change before they are
    read: at most a quarter of the rows, or 256 MiB of them. Before that limit is exceeded, requests wait for
    the reader (`wait_for_room`). If the reader stalls for `PATIENCE` seconds, or one request changes too many
    rows, the cut is abandoned: training continues, and the reader gets an error.

    A row that moves to slower memory is also copied. A row that returns from there keeps its old record there
    until it moves there again.

    Args:
        backend, kind: of the rows.
        tables: positions of the tables to read.
        without: for each part uint8[slots // 8 + 1], one bit per slot: rows to leave out; default: none.
    """

    def __init__(
        self, backend: RowBackend, kind: RowSpec, tables: list[int], without: Sequence[Bytes] | None = None
    ) -> None:
        super().__init__()
        self._backend, self._kind, self._parts = backend, kind, backend.parts
        self._wanted = np.zeros(len(kind.tables), np.bool_)
        self._wanted[tables] = True
        marks: Sequence[Bytes | None] = without or [None] * len(backend.parts)
        self._unread = [Unread(part, bits) for part, bits in zip(backend.parts, marks, strict=True)]
        self._most = sum(part.directory.slots for part in backend.parts)
        self._aside: CopyOnWrite | None = CopyOnWrite(kind.tables, kind.dim, kind.plan.width, self._most)
        backend.observers.add(self)

    @property
    def given_up(self) -> bool:
        """Whether the cut was abandoned, so that the remaining rows cannot be read."""
        return self._aside is None

    def waits(self, rows: int) -> bool:
        """Return whether a request that may change this many rows must wait for the reader.

        It never waits for more than half of the room: many of its rows may be read already, or not change.
        """
        if self._aside is None or self._aside.limit >= self._most:
            return False
        return self._aside.count + min(rows, self._aside.limit // 2) > self._aside.limit

    def give_up(self) -> None:
        """Abandon the cut and free the copies; a reader that continues gets an error."""
        self._aside = None

    def changing(self, rows: PartRows) -> None:
        """Copy rows that are about to change or to lose their slot."""
        if self._aside is None:
            return
        unread = self._unread[rows.part]
        won = unread.claim(rows.slots)
        tables = (np.searchsorted(rows.splits, won, side="right") - 1).astype(np.int32)
        selected = self._wanted[tables]
        won, tables = won[selected], tables[selected]
        copies = unread.part.read(rows.slots[won]) if len(won) else None
        if copies is not None and not self._aside.put(tables, rows.ids[won], *copies):
            self.give_up()

    def moved(self, rows: PartRows, to: int, targets: Inverse) -> None:
        """Copy rows that leave the fast part, since their slots will be reused."""
        if rows.part == FAST:
            self.changing(rows)

    def gone(self, rows: PartRows) -> None:
        """Copy rows that are removed."""
        self.changing(rows)

    def made(self, part: int, slots: Inverse) -> None:
        """Leave out rows created after this cut."""
        self._unread[part].claim(slots)

    def every_chunk(
        self, chunk_rows: int, lock: Condition, buckets: Sequence[int] = range(hashes.BUCKETS)
    ) -> Iterator[RowChunk]:
        """Yield the rows of each table of the cut in some fixed buckets (default all), by bucket, then id.

        Each chunk of a table except its last has exactly `chunk_rows` rows, so equal rows yield equal chunks.
        """
        wanted, tables = mask_of(buckets), np.flatnonzero(self._wanted).tolist()
        folder = self._parts[-1].folder
        if folder is None or not self._scattered(wanted):
            for t in tables:
                yield from self._chunks(t, wanted, chunk_rows, lock)
            return
        rows = int(self._backend.counters()["rows"][tables].max())
        with Spill(folder, self._kind, rows, wanted) as spill:
            for unread in self._unread:
                self._sweep(unread, tables, spill, chunk_rows, lock)
            with lock:
                self._backend.observers.discard(self)
                copies = self._copies().take()
            spill.put(*copies)
            for t in tables:
                yield from spill.chunks(t, chunk_rows)

    def _scattered(self, wanted: Found) -> bool:
        """Return whether reading the wanted rows one by one would read more than their whole file."""
        unread = self._unread[-1]
        size = unread.limit * self._kind.plan.row_bytes
        return size > SMALL_FILE and unread.count * float(wanted.mean()) * PAGE > size

    def _sweep(
        self, unread: Unread, tables: list[int], spill: Spill, chunk_rows: int, lock: Condition
    ) -> None:
        """Write the unread rows of a part to the spill, in slot order."""
        share = max(LISTED, -(-unread.limit // SCANS))
        for first in range(0, unread.limit, share):
            ids, owners = self._names(unread, tables, first, min(share, unread.limit - first), lock)
            for start in range(0, len(ids), chunk_rows):
                at = np.flatnonzero(owners[start : start + chunk_rows] >= 0) + start
                slots = (at + first).astype(np.int32)
                with lock:
                    aside = self._copies()
                    won = unread.claim(slots)
                    rows = unread.part.read(slots[won])
                    copies = aside.take() if aside.count > min(chunk_rows, aside.limit // 2) else None
                    lock.notify_all()
                spill.put(owners[at[won]], ids[at[won]], *rows)
                if copies is not None:
                    spill.put(*copies)

    def _names(
        self, unread: Unread, tables: list[int], first: int, count: int, lock: Condition
    ) -> tuple[Ids, Inverse]:
        """Return (ids uint64[count], tables int32[count], -1: none) of the slots from `first` on."""
        ids, owners = np.empty(count, np.uint64), np.full(count, -1, np.int32)
        directory = unread.part.directory
        for t in tables:
            rows = max(1, int(directory.counters()["rows"][t]))
            width = max(1, min(hashes.BUCKETS, LISTED * hashes.BUCKETS // rows))
            for bucket in range(0, hashes.BUCKETS, width):
                last = min(bucket + width, hashes.BUCKETS) - 1
                with lock:
                    directory.name_slots(t, bucket, last, first, ids, owners)
        return ids, owners

    def _chunks(self, t: int, wanted: Found, chunk_rows: int, lock: Condition) -> Iterator[RowChunk]:
        """Yield the rows of table t in the wanted fixed buckets, bool[4096], each read in place."""
        rows = max(1, int(self._backend.counters()["rows"][t]))
        width = max(1, min(hashes.BUCKETS, RANGE_CHUNKS * hashes.BUCKETS * chunk_rows // rows))
        waiting: _Places | None = None
        done = 0
        for first in range(0, hashes.BUCKETS, width):
            last = min(first + width, hashes.BUCKETS) - 1
            some = np.flatnonzero(wanted[first : last + 1]) + first
            if len(some):
                places = self._in_order(t, int(some[0]), int(some[-1]), wanted, lock)
                waiting = places if waiting is None else _joined([waiting, places])
            if waiting is None:
                continue
            ready = len(waiting.ids) // chunk_rows * chunk_rows
            if last == hashes.BUCKETS - 1:
                ready = len(waiting.ids)
            for i in range(0, ready, chunk_rows):
                part = waiting.part(slice(i, min(i + chunk_rows, ready)))
                with lock:
                    rows_read = self._read(t, part)
                yield RowChunk(self._kind.tables[t], part.ids, *rows_read)
            waiting = waiting.part(slice(ready, None))
            unread = int(waiting.buckets[0]) if len(waiting.ids) else last + 1
            if unread > done:
                with lock:
                    self._copies().let_go(t, unread)
                    lock.notify_all()
                done = unread

    def _in_order(self, t: int, first: int, last: int, wanted: Found, lock: Condition) -> _Places:
        """Return the locations of the rows in the wanted buckets of first..last, by bucket, then id."""
        with lock:
            places = self._collect(t, first, last)
        order = hashes.canonical_order(places.ids, places.buckets)
        if not wanted[first : last + 1].all():
            order = order[wanted[places.buckets[order]]]
        return places.part(order)

    def _collect(self, t: int, first: int, last: int) -> _Places:
        """Return the locations of all unread rows, copied ones included, in any order."""
        aside = self._copies()
        places: list[_Places] = []
        for number, unread in enumerate(self._unread):
            ids, slots, buckets = unread.part.directory.collect(t, first, last)
            every = _Places(ids, slots, buckets, np.full(len(ids), number, np.int8))
            live = unread.among(slots)
            places.append(every if live.all() else every.part(live))
        ids, _, buckets = aside.find(t, first, last)
        nowhere = np.full(len(ids), -1, np.int32)
        return _joined([*places, _Places(ids, nowhere, buckets, np.zeros(len(ids), np.int8))])

    def _read(self, t: int, rows: _Places) -> Row:
        """Return (weights, state) of rows, read in place or from the copies."""
        aside = self._copies()
        here = np.full(len(rows.slots), -1, np.int8)
        for number, unread in enumerate(self._unread):
            slots = np.where(rows.parts == number, rows.slots, -1).astype(np.int32)
            here[unread.claim(slots)] = number
        weights, state = self._parts[FAST].read(np.where(here == FAST, rows.slots, -1).astype(np.int32))
        for number, part in enumerate(self._parts[1:], 1):
            at = np.flatnonzero(here == number)
            weights[at], state[at] = part.read(rows.slots[at])
        at = np.flatnonzero(here < 0)
        if len(at):
            weights[at], state[at] = aside.read(t, rows.ids[at], rows.buckets[at])
        return weights, state

    def _copies(self) -> CopyOnWrite:
        """Return the copies; raise if the remaining rows can no longer be read."""
        if self._backend.parts is not self._parts:
            raise StoreError("the store was cleared or closed while it was being exported")
        if self._aside is None:
            raise StoreError(
                "an export was abandoned: too many rows changed before they were read",
                why="changed rows are copied until they have been read, and the memory for copies is limited",
                fix="save to a faster disk, or read the export without long pauses",
            )
        return self._aside
