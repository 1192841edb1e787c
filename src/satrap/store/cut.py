"""The rows of a moment, read while the store goes on: copy before write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store import hashes
from satrap.store.aside import Aside
from satrap.store.chunk import Chunk
from satrap.store.kernels.eviction import claim
from satrap.store.types import Floats, Found, Ids, Inverse, Offsets

if TYPE_CHECKING:
    from threading import Condition

    from satrap.store.directory import Directory
    from satrap.store.group import Group

Row = tuple[Floats, Floats]

PATIENCE = 10.0
"""Seconds a request waits for a reader that does not read on, before the cut is given up."""
RANGE_CHUNKS = 4
"""About how many chunks' rows are found and sorted at once: what that costs by the call is shared by more."""


class _Places(NamedTuple):
    """Where rows are: their ids, slots (-1: copied aside), fixed buckets, and which of the parts has them."""

    ids: Ids
    slots: Inverse
    buckets: Inverse
    parts: npt.NDArray[np.int8]

    def part(self, which: slice | Offsets | Found) -> _Places:
        """Return some of them."""
        return _Places(self.ids[which], self.slots[which], self.buckets[which], self.parts[which])


def _joined(places: list[_Places]) -> _Places:
    if len(places) == 1:
        return places[0]
    ids, slots, buckets, parts = (np.concatenate(column) for column in zip(*places, strict=True))
    return _Places(ids, slots, buckets, parts)


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


def wait_for_room(cuts: Iterable[Cut], rows: int, lock: Condition) -> None:
    """Wait, with the lock free, until each cut has room for so many copies, or is given up."""
    for cut in list(cuts):
        while cut.waits(rows):
            if not lock.wait(PATIENCE):
                cut.give_up()


class Cut:
    """The rows that a group had when this was made.

    Making it costs nothing that grows with the rows, but for a bit per row. While it exists, the group calls
    `keep` before it changes rows and `keep_taken` when rows lose their slot: what has not been read yet is
    copied aside first, once. So the memory it needs is one bit per row and the rows that change until they
    have been read, at most a quarter of the rows or 256 MiB. Before more would be needed, requests wait for
    the reader (`wait_for_room`); if it does not read on for `PATIENCE` seconds, or one request changes too
    many rows, the cut is given up: training goes on, and the reader gets an error.

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
        self._most = sum(part.directory.slots for part in self._parts)
        self._aside: Aside | None = Aside(group.tables, group.dim, group.plan.width, self._most)

    @property
    def given_up(self) -> bool:
        """Whether nothing is copied any more, so that the rest cannot be read."""
        return self._aside is None

    def waits(self, rows: int) -> bool:
        """Return whether a request that may change so many rows must wait until more have been read.

        Half of the room is enough for any: most of the rows it names may have been read, or stay as they are.
        """
        if self._aside is None or self._aside.limit >= self._most:
            return False
        return self._aside.count + min(rows, self._aside.limit // 2) > self._aside.limit

    def give_up(self) -> None:
        """Copy nothing more and forget the copies; who reads on gets an error."""
        self._aside = None

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
        if self._aside is None:
            return
        won = part.claim(slots)
        won = won[self._wanted[tables[won]]]
        if len(won) and not self._aside.put(tables[won], ids[won], *part.read(slots[won])):
            self.give_up()

    def ignore(self, slots: Inverse) -> None:
        """Leave out rows made after this."""
        self._memory.claim(slots)

    def chunks(self, t: int, wanted: Found, chunk_rows: int, lock: Condition) -> Iterator[Chunk]:
        """Yield the rows of table t in the wanted fixed buckets (bool[4096]), by bucket, then id.

        Each chunk but the last has just `chunk_rows` rows, so that equal rows make equal chunks.
        """
        rows = max(1, int(self._group.statistics()["rows"][t]))
        width = max(1, min(hashes.BUCKETS, RANGE_CHUNKS * hashes.BUCKETS * chunk_rows // rows))
        waiting: _Places | None = None
        done = 0
        for first in range(0, hashes.BUCKETS, width):
            last = min(first + width, hashes.BUCKETS) - 1
            if wanted[first : last + 1].any():
                found = self._in_order(t, first, last, wanted, lock)
                waiting = found if waiting is None else _joined([waiting, found])
            if waiting is None:
                continue
            ready = len(waiting.ids) // chunk_rows * chunk_rows
            if last == hashes.BUCKETS - 1:
                ready = len(waiting.ids)
            for i in range(0, ready, chunk_rows):
                part = waiting.part(slice(i, min(i + chunk_rows, ready)))
                with lock:
                    rows_read = self._read(t, part)
                yield Chunk(self._group.tables[t], part.ids, *rows_read)
            waiting = waiting.part(slice(ready, None))
            unread = int(waiting.buckets[0]) if len(waiting.ids) else last + 1
            if unread > done:
                with lock:
                    self._copies().let_go(t, unread)
                    lock.notify_all()
                done = unread

    def _in_order(self, t: int, first: int, last: int, wanted: Found, lock: Condition) -> _Places:
        """Return where the rows of the wanted buckets of first..last are, by bucket, then id."""
        with lock:
            found = self._collect(t, first, last)
        order = hashes.canonical_order(found.ids, found.buckets)
        if not wanted[first : last + 1].all():
            order = order[wanted[found.buckets[order]]]
        return found.part(order)

    def _collect(self, t: int, first: int, last: int) -> _Places:
        """Return the rows not read or copied yet, in any order."""
        aside = self._copies()
        found: list[_Places] = []
        for number, part in enumerate(self._parts):
            ids, slots, buckets = part.directory.collect(t, first, last)
            every = _Places(ids, slots, buckets, np.full(len(ids), number, np.int8))
            live = part.unread(slots)
            found.append(every if live.all() else every.part(live))
        ids, _, buckets = aside.find(t, first, last)
        nowhere = np.full(len(ids), -1, np.int32)
        return _joined([*found, _Places(ids, nowhere, buckets, np.zeros(len(ids), np.int8))])

    def _read(self, t: int, rows: _Places) -> Row:
        """Return (weights, state) of rows, from where they lie or from the copies."""
        aside = self._copies()
        if len(self._parts) == 1:
            won = self._memory.claim(rows.slots)
            if len(won) == len(rows.slots):
                return self._memory.read(rows.slots)
            here = np.full(len(rows.slots), -1, np.int8)
            here[won] = 0
        else:
            here = np.full(len(rows.slots), -1, np.int8)
            for number, part in enumerate(self._parts):
                here[part.claim(np.where(rows.parts == number, rows.slots, -1).astype(np.int32))] = number
        weights, state = self._memory.read(np.where(here == 0, rows.slots, -1).astype(np.int32))
        for number, part in enumerate(self._parts[1:], 1):
            at = np.flatnonzero(here == number)
            weights[at], state[at] = part.read(rows.slots[at])
        at = np.flatnonzero(here < 0)
        if len(at):
            weights[at], state[at] = aside.read(t, rows.ids[at], rows.buckets[at])
        return weights, state

    def _copies(self) -> Aside:
        """Return the copies; raise if the rest cannot be read any more."""
        if self._group.directory is not self._directory:
            raise StoreError("the store was cleared or closed while it was being exported")
        if self._aside is None:
            raise StoreError(
                "an export was given up: too many rows changed before they were read",
                why="a changed row is copied until it has been read, and memory for that is bounded",
                fix="save to a faster disk, or read on while rows change",
            )
        return self._aside
