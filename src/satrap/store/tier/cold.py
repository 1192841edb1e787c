"""The rows of a group that left memory: an index of its own, and a file of records.

A row that comes back to memory keeps its slot in the file, so slots are never given away, and reading needs
no order with writing. `live` tells which slots hold a row that is nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError
from satrap.store.directory import MAX_SLOTS, PLAIN_OVERHEAD, Directory, plain_budget
from satrap.store.kernels import files
from satrap.store.kernels.marks import assign, mark, marked
from satrap.store.memory import Reserved
from satrap.store.steps import Plan, Rows
from satrap.store.tier.file import Bytes, RecordFile
from satrap.store.tier.settings import Tier
from satrap.store.types import Found, Ids, Inverse, Offsets, address
from satrap.store.workers import Workers

SHIFTS = ("rows", "created", "evicted", "refused")
"""Counters of a directory that rows which only move distort."""
MOST_INDEX = 0.75
"""Most of a group's memory that the index of its tier may take."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Rows of a request that were read from the file.

    Args:
        positions: int64[n] in the request, ascending.
        slots: int32[n] in the file.
        records: uint8[n, record].
    """

    positions: Offsets
    slots: Inverse
    records: Bytes


class Loose:
    """Rows that lie beside the slab, for the kernels; `slots` are their numbers, 0..count - 1."""

    def __init__(self, plan: Plan, dim: int, count: int) -> None:
        self._body = np.empty((count, plan.stride), np.uint8)
        scalars = np.empty(count if plan.layout.scalar else 0, np.float32)
        self.rows = Rows(address(self._body), np.uint64(plan.stride), np.uint64(dim), scalars)
        self.slots = np.arange(count, dtype=np.int32)


def most_records(
    tables: Sequence[str], record: int, tier: Tier | None, memory: int | None
) -> tuple[int, int | None]:
    """Return how many records of `record` bytes a tier holds, and the memory that their index leaves.

    Args:
        tables: names of the group's tables.
        record: bytes.
        tier: of the group; None: there is none.
        memory: the group's budget, of which the index is a part; a tier needs one.

    Raises:
        ConfigError: not one record fits the file, or the index of all leaves little room for rows.
    """
    if tier is None or memory is None:
        return 0, memory
    where = f"group of {', '.join(tables)}"
    records = min(MAX_SLOTS, tier.size // record)
    if records < 1:
        raise ConfigError(
            f"a tier of {tier.size} bytes is too small for one row of {record}",
            where=where,
            fix="give the tier more size",
        )
    _, index = plain_budget(records, len(tables))
    if index > MOST_INDEX * memory:
        most = max(0, math.floor((MOST_INDEX * memory - index) / PLAIN_OVERHEAD) + records) * record
        raise ConfigError(
            f"the index of a tier of {tier.size} bytes takes {index} bytes of a memory budget of {memory}",
            where=f"{where}: {records} rows of {record} bytes",
            why=f"more than {MOST_INDEX:.0%} of the memory would be no row's",
            fix=f"give these tables {math.ceil(index / MOST_INDEX)} bytes of memory, or {most} of the tier",
        )
    return records, memory - index


class Cold:
    """Rows of one table group in a file.

    Args:
        tables: names of the group's tables.
        dim: weights per row.
        plan: how a row lies in memory.
        tier: where the file is, and the most bytes it may have.
        workers: who share large requests.
        slots: most records, see `most_records`.
        memory: most slots of the rows in memory.

    Attributes:
        directory: which slot of the file each id has that ever left memory.
        file: the records.
        shifts: int64[len(SHIFTS), tables], to be added to the counters of the group's directory.
        clean: one bit per slot of memory: the file holds the row there as it is.
        reads, writes: records read and written so far.
        prefetched, prefetch_hits: records asked for ahead, and how many of them were then read.

    Raises:
        StoreError: the file cannot be made.
    """

    def __init__(
        self,
        tables: Sequence[str],
        dim: int,
        plan: Plan,
        tier: Tier,
        workers: Workers,
        *,
        slots: int,
        memory: int,
    ) -> None:
        self._tables, self._plan, self._dim, self._workers = tuple(tables), plan, dim, workers
        self.record, self._limit, self._memory = plan.row_bytes, slots, memory
        self.file = RecordFile(tier.path, self.record, slots)
        self.shifts = np.zeros((len(SHIFTS), len(tables)), np.int64)
        self.reads = self.writes = self.prefetched = self.prefetch_hits = 0
        self._open()

    def _open(self) -> None:
        room, _ = plain_budget(self._limit, len(self._tables))
        directory = Directory(self._tables, room, None, self._workers)
        live, ahead, clean = (
            Reserved(slots // 8 + 1, huge=False).array(np.uint8)
            for slots in (self._limit, self._limit, self._memory)
        )
        self.directory, self.live, self._ahead, self.clean = directory, live, ahead, clean

    def clear(self) -> None:
        """Forget every row.

        Raises:
            StoreError: there is no address space for an empty index beside the old; nothing has changed.
        """
        self._open()
        self.file.clear()
        self.shift("rows", -self.shifts[SHIFTS.index("rows")])

    def shift(self, counter: str, amounts: Offsets) -> None:
        """Add to a counter, int64[tables]."""
        self.shifts[SHIFTS.index(counter)] += amounts

    def find(self, ids: Ids, splits: Offsets, positions: Offsets) -> Inverse:
        """Return the slots int32[n] in the file of ids that are not in memory, -1 without a row."""
        return self.directory.find(ids[positions], np.searchsorted(positions, splits), use=False)[0]

    def fetch(self, ids: Ids, splits: Offsets, positions: Offsets) -> Fetched:
        """Read the rows that ids which are not in memory have.

        Raises:
            StoreError: the file cannot be read.
        """
        slots = self.find(ids, splits, positions)
        known = slots >= 0
        found = slots[known]
        ahead = marked(self._ahead, found)
        self.prefetch_hits += int(ahead.sum())
        assign(self._ahead, found[ahead], np.zeros(int(ahead.sum()), np.bool_))
        return Fetched(positions[known], found, self.read(found))

    def read(self, slots: Inverse) -> Bytes:
        """Return the records uint8[n, record] of slots.

        Raises:
            StoreError: the file cannot be read.
        """
        self.reads += len(slots)
        return self.file.read(slots)

    def reserve(self, rows: int) -> None:
        """Take the disk space for so many more rows.

        Raises:
            StoreError: there is none; nothing has changed.
        """
        self.file.reserve(self.directory.slots + rows)

    def write(self, slots: Inverse, rows: Rows, sources: Inverse) -> None:
        """Write rows, which lie in these slots of `rows`, to slots of the file.

        Raises:
            StoreError: the file cannot be written.
        """
        records = np.empty((len(slots), self.record), np.uint8)
        size = np.uint64(self.record)
        files.take(rows.base, rows.stride, rows.scalars, sources, address(records), size)
        self.writes += len(slots)
        self.file.write(slots, records)

    def put(self, records: Bytes, rows: Rows, targets: Inverse) -> None:
        """Write records to these slots of `rows`."""
        size = np.uint64(self.record)
        files.put(rows.base, rows.stride, rows.scalars, targets, address(records), size)

    def spread(self, records: Bytes) -> Loose:
        """Return records as rows."""
        loose = Loose(self._plan, self._dim, len(records))
        self.put(np.ascontiguousarray(records), loose.rows, loose.slots)
        return loose

    def place(self, ids: Ids, tables: Inverse) -> Inverse:
        """Return the slot int32[n] for each row of (id, table) that leaves memory; -1: there is no room."""
        order = np.argsort(tables, kind="stable")
        ids = ids[order]
        splits = np.searchsorted(tables[order], np.arange(len(self._tables) + 1)).astype(np.int64)
        slots, missing = self.directory.find(ids, splits, use=False)
        self.directory.create(ids, splits, missing, slots)
        result = np.empty_like(slots)
        result[order] = slots
        return result

    def create(self, ids: Ids, splits: Offsets, positions: Offsets) -> tuple[Offsets, Inverse]:
        """Give ids that have no row a slot, which the caller then writes; return (positions, slots).

        Of an id that is there twice, only the first position is returned; those without room are left out.
        """
        slots = np.full(len(ids), -1, np.int32)
        fresh = self.directory.create(ids, splits, positions, slots)
        created = self._per_table(fresh, splits)
        self.keep_only(slots[fresh], created)
        self.shift("created", created)
        return fresh, slots[fresh]

    def keep_only(self, slots: Inverse, amounts: Offsets) -> None:
        """Note that the rows of slots are here only; `amounts` of each table, int64[tables]."""
        mark(self.live, slots)
        self.shift("rows", amounts)

    def give(self, slots: Inverse, targets: Inverse, amounts: Offsets) -> None:
        """Note that the rows of slots are in memory again, in slots `targets`; `amounts` of each table."""
        mark(self.clean, targets)
        assign(self.live, slots, np.zeros(len(slots), np.bool_))
        self.shift("rows", -amounts)
        self.shift("created", -amounts)

    def expect(self, ids: Ids, splits: Offsets) -> Inverse:
        """Return the slots, ascending, of ids that are in the file only; they count as asked for ahead."""
        slots = self.find(ids, splits, np.arange(len(ids)))
        slots = slots[slots >= 0]
        slots = np.sort(slots[marked(self.live, slots) & ~marked(self._ahead, slots)])
        mark(self._ahead, slots)
        self.prefetched += len(slots)
        return slots

    def statistics(self) -> dict[str, int]:
        """Return `rows` that are here only, `bytes` of disk and `index_bytes` of memory taken, `reads` and
        `writes` of rows, rows `prefetched` and how many of them were read (`prefetch_hits`).
        """
        return {
            "rows": int(self.shifts[SHIFTS.index("rows")].sum()),
            "bytes": self.file.bytes,
            "index_bytes": self.directory.bytes,
            "reads": self.reads,
            "writes": self.writes,
            "prefetched": self.prefetched,
            "prefetch_hits": self.prefetch_hits,
        }

    def _per_table(self, positions: Offsets, splits: Offsets) -> npt.NDArray[np.int64]:
        return np.diff(np.searchsorted(positions, splits)).astype(np.int64)


def per_table(tables: Inverse, chosen: Found, count: int) -> npt.NDArray[np.int64]:
    """Return how many of the chosen rows each of `count` tables has."""
    return np.bincount(tables[chosen], minlength=count).astype(np.int64)
