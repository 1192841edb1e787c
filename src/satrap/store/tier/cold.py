"""The rows of a group that left memory: their index, and a file of records.

A row that returns to memory keeps its slot in the file, so slots are never reused, and reads need no ordering
with writes. `live` marks the slots whose row is only in the file. Behind a GPU, the file may be host memory.
"""

from __future__ import annotations

import math

import numpy as np

from satrap.errors import ConfigError
from satrap.settings.tier import Tier
from satrap.store.arrays import Bytes, Floats, Ids, Inverse, Offsets, per_table
from satrap.store.backend import Away
from satrap.store.kernels.marks import mark, marked, unmark
from satrap.store.memory.directory import MAX_SLOTS, PLAIN_OVERHEAD, Directory, plain_budget
from satrap.store.memory.reserve import Reserved
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec
from satrap.store.statistics import TierStatistics
from satrap.store.tier.file import RecordFile
from satrap.store.tier.host_memory import RecordMemory

SHIFTS = ("rows", "created", "evicted", "refused")
"""Counters of a directory that also count rows moved between memory and file, and need correction."""
MOST_INDEX = 0.95
"""Largest share of a group's memory for the index of its tier."""


def fitting_records(kind: RowSpec, tier: Tier) -> int:
    """Return the capacity of a group's tier in rows; raise `ConfigError` if no row fits."""
    record = kind.plan.row_bytes
    records = min(MAX_SLOTS, tier.size // record)
    if records < 1:
        raise ConfigError(
            f"a tier of {tier.size} bytes is too small for one row of {record} bytes",
            where=f"group of {', '.join(kind.tables)}",
            fix="increase the size of the tier",
        )
    return records


def most_records(kind: RowSpec, tier: Tier | None, memory: int | None) -> tuple[int, int | None]:
    """Return the capacity of a group's tier in rows, and the memory left after their index.

    Without a tier or a budget, returns 0 and `memory`.

    Raises:
        ConfigError: the file cannot hold one record, or the index of all records leaves too little for rows.
    """
    if tier is None or memory is None:
        return 0, memory
    record, records = kind.plan.row_bytes, fitting_records(kind, tier)
    _, index = plain_budget(records, len(kind.tables))
    if index > MOST_INDEX * memory:
        most = max(0, math.floor((MOST_INDEX * memory - index) / PLAIN_OVERHEAD) + records) * record
        raise ConfigError(
            f"the index of a tier of {tier.size} bytes takes {index} bytes of a memory budget of {memory}",
            where=f"group of {', '.join(kind.tables)}: {records} rows of {record} bytes",
            why=f"the index alone would need more than {MOST_INDEX:.0%} of the memory",
            fix=f"give these tables {math.ceil(index / MOST_INDEX)} bytes of memory, or {most} of the tier",
        )
    return records, memory - index


class Cold:
    """Rows of one table group in a file of at most `slots` records; memory has at most `memory` rows.

    Attributes:
        directory: the slot in the file of each id whose row has ever left memory.
        file: the records; in host memory if that is the path of the tier.
        live: one bit per slot of the file: the row is only in the file.
        clean: one bit per slot of memory: the file holds the current state of that row.
        shifts: int64[len(SHIFTS), tables], corrections to add to the counters of the group's directory.
        reads, writes: records read and written so far.
        prefetched, prefetch_hits: records prefetched, and prefetched records that were then read.

    Raises:
        StoreError: the file cannot be created.
    """

    def __init__(self, kind: RowSpec, tier: Tier, workers: ThreadPool, *, slots: int, memory: int) -> None:
        self._kind, self._workers, self._limit, self._memory = kind, workers, slots, memory
        self.file: RecordFile | RecordMemory
        if tier.in_memory:
            self.file = RecordMemory(kind, slots, workers)
        else:
            self.file = RecordFile(tier.path, kind.plan.row_bytes, slots)
        self.shifts = np.zeros((len(SHIFTS), len(kind.tables)), np.int64)
        self.reads = self.writes = self.prefetched = self.prefetch_hits = 0
        self.open(self.index())

    def index(self) -> tuple[Directory, list[Bytes]]:
        """Return an empty index, for `open`; raise `StoreError` if memory is insufficient."""
        room, _ = plain_budget(self._limit, len(self._kind.tables))
        directory = Directory(self._kind.tables, room, None, self._workers)
        slots = (self._limit, self._limit, self._memory)
        return directory, [Reserved(n // 8 + 1, huge=False).array(np.uint8) for n in slots]

    def open(self, index: tuple[Directory, list[Bytes]]) -> None:
        """Forget every row, and use an empty index."""
        self.directory, (self.live, self._ahead, self.clean) = index
        self.file.clear()
        self.shift("rows", -self.shifts[SHIFTS.index("rows")])

    def shift(self, counter: str, amounts: Offsets) -> None:
        """Add to a counter, int64[tables]."""
        self.shifts[SHIFTS.index(counter)] += amounts

    def find(self, ids: Ids, splits: Offsets, positions: Offsets) -> Inverse:
        """Return the slots int32[n] in the file of ids that are not in memory, -1 without a row."""
        return self.directory.find(ids[positions], np.searchsorted(positions, splits), use=False)[0]

    def fetch(self, ids: Ids, splits: Offsets, positions: Offsets) -> Away:
        """Read the rows of ids that are not in memory; raise `StoreError` if the file cannot be read."""
        slots = self.find(ids, splits, positions)
        present = slots >= 0
        filled = slots[present]
        ahead = filled[marked(self._ahead, filled)]
        self.prefetch_hits += len(ahead)
        unmark(self._ahead, ahead)
        self.reads += len(filled)
        return Away(positions[present], filled, self.file.read(filled))

    def read(self, slots: Inverse) -> tuple[Floats, Floats]:
        """Return (weights float32[n, dim], state float32[n, width]) of slots; raises as `fetch`."""
        self.reads += len(slots)
        loose = self.spread(self.file.read(slots))
        return loose.read(loose.slots)

    def spread(self, records: Bytes) -> Slab:
        """Return records as a slab of rows."""
        loose = Slab(self._kind, len(records), self._workers)
        loose.put(loose.slots, records)
        return loose

    def reserve(self, rows: int) -> None:
        """Reserve the disk space for this many more rows; see `RecordFile.reserve`."""
        self.file.reserve(self.directory.slots + rows)

    def write(self, slots: Inverse, records: Bytes) -> None:
        """Write the result of `Slab.records` to slots of the file; see `RecordFile.write`."""
        self.writes += len(slots)
        self.file.write(slots, records)

    def place(self, ids: Ids, splits: Offsets) -> Inverse:
        """Return a slot int32[n] for each row that leaves memory; -1: the file is full."""
        slots, missing = self.directory.find(ids, splits, use=False)
        self.directory.create(ids, splits, missing, slots)
        return slots

    def create(self, ids: Ids, splits: Offsets, positions: Offsets) -> tuple[Offsets, Inverse]:
        """Give ids without a row a slot for the caller to write; return (positions, slots).

        A repeated id returns only its first position; ids without room are left out.
        """
        slots = np.full(len(ids), -1, np.int32)
        fresh = self.directory.create(ids, splits, positions, slots)
        created = per_table(fresh, splits)
        self.keep_only(slots[fresh], created)
        self.shift("created", created)
        return fresh, slots[fresh]

    def keep_only(self, slots: Inverse, amounts: Offsets) -> None:
        """Record that the rows of slots are only in the file; `amounts`: int64[tables], their numbers."""
        mark(self.live, slots)
        self.shift("rows", amounts)

    def give(self, slots: Inverse, targets: Inverse, amounts: Offsets, *, clean: bool) -> None:
        """Record that rows are back in memory.

        Args:
            slots, targets: int32[n], their slots here and in memory.
            amounts: int64[tables], their number.
            clean: whether their next changes are announced here; else they are written when they leave again.
        """
        if clean:
            mark(self.clean, targets)
        unmark(self.live, slots)
        self.shift("rows", -amounts)
        self.shift("created", -amounts)

    def expect(self, ids: Ids, splits: Offsets) -> Inverse:
        """Return the slots, ascending, of ids that are only in the file; count them as prefetched."""
        slots = self.find(ids, splits, np.arange(len(ids)))
        slots = slots[slots >= 0]
        slots = np.sort(slots[marked(self.live, slots) & ~marked(self._ahead, slots)])
        mark(self._ahead, slots)
        self.prefetched += len(slots)
        return slots

    def statistics(self) -> TierStatistics:
        """Return the counters of the file."""
        return TierStatistics(
            rows=int(self.shifts[SHIFTS.index("rows")].sum()),
            bytes=self.file.bytes,
            index_bytes=self.directory.bytes,
            reads=self.reads,
            writes=self.writes,
            prefetched=self.prefetched,
            prefetch_hits=self.prefetch_hits,
        )
