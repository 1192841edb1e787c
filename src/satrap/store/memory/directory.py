"""The slot in the slab of each id of a table group, within a memory budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, StoreError
from satrap.retention import Eviction
from satrap.runtime.machine_limits import machine_bytes
from satrap.store import hashes
from satrap.store.arrays import Ids, Inverse, Offsets, address
from satrap.store.kernels.index import growth, layout, slot_index
from satrap.store.kernels.index.layout import PAGE_BYTES, SEGMENT_PAGES, SPARE_PAGES, Index
from satrap.store.memory.reserve import HUGE, PAGE, Reserved
from satrap.store.memory.thread_pool import ThreadPool

MAX_SLOTS = 2**31 - 2
INDEX_BYTES = 17
"""Bytes of index per row under a budget, with buckets 75 % full. Without a budget: 17 to 21."""
OVERHEAD = 24
"""Bytes per row in addition to weights and state if rows are evicted: index, notes, eviction log, a mark."""
PLAIN_OVERHEAD = 19
"""Bytes per row in addition to weights and state if rows are not evicted: the same without notes."""
LARGEST_LOG = 1 << 18
_POLICIES = {"lru": layout.RECENT, "lfu": layout.FREQUENT, "ttl": layout.RECENT}
"""Policy -> the contents of the index's notes: steps or counts."""


@dataclass(frozen=True, slots=True)
class IndexMemory:
    """The memory of an index, see `layout.Index`: `memory` by name, `counts` and `records` as arrays."""

    memory: Mapping[str, Reserved]
    counts: npt.NDArray[np.int64]
    records: npt.NDArray[np.int64]

    def buckets(self, pages: int) -> npt.NDArray[np.uint32]:
        """Return the first pages of the index as uint32[buckets, words]."""
        words = self.memory["entries"].array(np.uint32, pages * layout.PAGE_BYTES // 4)
        return words.reshape(-1, layout.BUCKET_BYTES // 4)

    def notes(self, pages: int) -> npt.NDArray[np.uint32]:
        """Return the notes of the first pages, uint32[buckets, ENTRIES]."""
        flat = self.memory["notes"].array(np.uint32, pages * layout.PAGE_BUCKETS * layout.ENTRIES)
        return flat.reshape(-1, layout.ENTRIES)

    def numbers(self, name: str, count: int) -> npt.NDArray[np.int32]:
        """Return the first `count` numbers of one of the lists."""
        return self.memory[name].array(np.int32, count)


@dataclass(frozen=True, slots=True)
class Budget:
    """Number of rows that fit in a memory budget, and how the memory is allocated.

    Args:
        rows: most rows.
        index_bytes: most bytes of index.
        huge_rows, huge_index: whether 2 MiB pages stay within the budget.
    """

    rows: int
    index_bytes: int
    huge_rows: bool = True
    huge_index: bool = True


def budget(memory: int | None, row_bytes: int, stride: int, tables: int, eviction: Eviction | None) -> Budget:
    """Return the budget that keeps rows, index, page rounding and bookkeeping within `memory` bytes.

    Raises:
        ConfigError: no row fits.
    """
    machine = min(MAX_SLOTS, machine_bytes() // stride - 16)
    first = (tables + SPARE_PAGES) * PAGE_BYTES
    if memory is None:
        return Budget(machine, machine_bytes())
    huge_rows, huge_index = memory >= 32 * HUGE, memory >= 32 * HUGE * tables
    rounding = 2 * (HUGE if huge_rows else PAGE) + tables * (HUGE if huge_index else PAGE) + 4 * PAGE
    each = row_bytes + (PLAIN_OVERHEAD if eviction is None else OVERHEAD)
    if eviction is not None and eviction.policy == "ttl":
        each += 4  # the stack of free slots
    rows = (memory - first - rounding) // each
    if rows < 1:
        least = first + tables * PAGE + 6 * PAGE + each
        raise ConfigError(
            f"a memory budget of {memory} bytes is too small for one row",
            where=f"group of {tables} tables with {row_bytes} bytes per row",
            fix=f"give this group at least {least} bytes",
        )
    rows = min(rows, machine)
    return Budget(rows, first + rows * INDEX_BYTES, huge_rows, huge_index)


def plain_budget(rows: int, tables: int) -> tuple[Budget, int]:
    """Return the budget of an index whose rows are never evicted, and its bytes, including marks of slots.

    It uses small pages: a request that grows the index waits at most 1 ms for a fresh page, against 13 ms
    with large pages; finding 16,384 ids among 16 million takes 0.65 ms instead of 0.35 ms.
    """
    index = (tables + SPARE_PAGES) * PAGE_BYTES + rows * INDEX_BYTES
    rounding = (tables + 8) * PAGE
    return Budget(rows, index, False, False), index + rounding + rows * (PLAIN_OVERHEAD - INDEX_BYTES)


class Directory:
    """Slots of the ids of one table group; `eviction` chooses the rows to evict when `room` is used up.

    Attributes:
        step: number of requests that used rows so far; defines "recent".
        limit: most slots.
        parts: the memory of the index, for `image`.
        discard: given (table, ids uint64[n]), removes these ids and frees their slots.
        name_slots: given (table, first and last fixed bucket, slot, ids uint64[n], tables int32[n]), writes
            ids and tables of the n slots from `slot` on whose rows are in these buckets, and perhaps of more.
    """

    def __init__(
        self, tables: Sequence[str], room: Budget, eviction: Eviction | None, workers: ThreadPool
    ) -> None:
        self._tables, self._workers, self._eviction = len(tables), workers, eviction
        self.step, self.limit = 0, room.rows
        self._scratch = np.empty((2, 0), np.int64)
        self._policy = layout.NONE if eviction is None else _POLICIES[eviction.policy]
        pages = room.index_bytes // PAGE_BYTES
        segments = 2 * pages // SEGMENT_PAGES + 2 * self._tables + 64
        log = max(64, min(LARGEST_LOG, room.rows // 16))
        self._counts = np.zeros(layout.COUNTS, np.int64)
        self._counts[layout.LOG_SIZE] = log
        for word, value in (
            (layout.TABLES, self._tables),
            (layout.SLOTS_LIMIT, room.rows),
            (layout.PAGES_LIMIT, pages),
            (layout.SEGMENTS_LIMIT, segments),
            (layout.DIRECTORY_LIMIT, 16 * segments),
        ):
            self._counts[word] = value
        self._records = np.zeros((self._tables, layout.RECORD), np.int64)
        salts = np.array([hashes.index_salt(name) for name in tables], np.uint64)
        self._records[:, layout.SALT] = salts.view(np.int64)
        self._memory = {
            "entries": Reserved(pages * PAGE_BYTES, huge=room.huge_index),
            "notes": Reserved(4 * layout.ENTRIES * layout.PAGE_BUCKETS * pages, huge=room.huge_index),
            "directory": Reserved(4 * 16 * segments, huge=room.huge_index, small=HUGE),
            "pages": Reserved(4 * SEGMENT_PAGES * segments, huge=room.huge_index, small=HUGE),
            "facts": Reserved(4 * layout.FACTS * segments, huge=False),
            "free_pages": Reserved(4 * pages, huge=False),
            "free": Reserved(4 * room.rows, huge=False),
            "log": Reserved(layout.LOG_ENTRY * log, huge=False),
        }
        self.parts = IndexMemory(self._memory, self._counts, self._records)
        self._marks = Reserved(room.rows // 8 + 1, huge=False)
        addresses = {name: np.uint64(memory.address) for name, memory in self._memory.items()}
        if not self.evicts:
            addresses["notes"] = np.uint64(0)
        self._index = Index(
            tables=address(self._records), counts=address(self._counts), policy=self._policy, **addresses
        )
        self.discard = partial(slot_index.discard, self._index)
        self.name_slots = partial(slot_index.name_slots, self._index)
        if not growth.open_tables(self._index):
            raise StoreError(f"not enough memory for the index of {self._tables} tables")

    def advance(self) -> None:
        """Start a request that uses rows; drop some expired rows."""
        self.step = self.step % 0xFFFFFFFE + 1
        if self._eviction is not None and self._eviction.ttl is not None:
            pairs = 4 * self._pages * layout.PAGE_BUCKETS // 2 // self._eviction.ttl + 1
            slot_index.sweep(self._index, np.uint32(self.step), self._eviction.ttl, pairs)

    def find(self, ids: Ids, splits: Offsets, *, use: bool) -> tuple[Inverse, Offsets]:
        """Return (slots int32[n], -1 without a row; positions int64[m] of ids without a row, ascending).

        With `use`, this counts for eviction and statistics.
        """
        n = len(ids)
        if n > self._scratch.shape[1]:  # reused, since fresh memory costs a page fault per 4 KiB
            self._scratch = np.empty((2, n), np.int64)
        missing, places = self._scratch[0], self._scratch[1].view(np.uint64)
        slots = np.empty(n, np.int32)
        step = np.uint32(self.step) if use and self.evicts else None
        ranges = self._workers.ranges(n)
        counts, seconds = {}, np.zeros((len(ranges), self._tables), np.int64)

        def search(first: int, end: int) -> None:
            s = slice(first, end)
            part = splits if len(ranges) == 1 else np.clip(splits - first, 0, end - first)
            row = seconds[ranges.index((first, end))]
            counts[first] = slot_index.find(
                self._index, ids[s], part, step, slots[s], missing[s], places[s], row
            )

        self._workers.run(ranges, search)
        if use:
            self._records[:, layout.SECOND] += seconds.sum(axis=0)
        if len(ranges) == 1:
            return slots, missing[: counts[0]].copy()
        return slots, np.concatenate([missing[first : first + counts[first]] + first for first, _ in ranges])

    def create(self, ids: Ids, splits: Offsets, missing: Offsets, slots: Inverse) -> Offsets:
        """Give each missing id a slot; return the positions of new rows, one per unique id.

        An id that does not fit keeps slot -1.
        """
        fresh = np.empty(len(missing), np.int64)
        step = np.uint32(self.step)
        made = slot_index.create(self._index, ids, splits, missing, step, slots, fresh)
        return fresh[:made]

    @property
    def reassigned(self) -> int:
        """Number of slots taken from their rows so far."""
        return int(self._counts[layout.REASSIGNED])

    def taken(self, since: int) -> tuple[Ids, Inverse, Inverse]:
        """Return (ids, tables, slots) of the rows that lost their slot since `reassigned` was `since`."""
        at = np.arange(since, self.reassigned) % int(self._counts[layout.LOG_SIZE])
        log = self._memory["log"].array(np.uint64, 2 * int(self._counts[layout.LOG_SIZE])).reshape(-1, 2)[at]
        words = log.view(np.int32).reshape(-1, 4)
        return log[:, 0].copy(), words[:, 3].copy(), words[:, 2].copy()

    @property
    def piece(self) -> int:
        """Most ids to create at once if `taken` must report every evicted row."""
        return int(self._counts[layout.LOG_SIZE]) // 2

    def refresh(self, ids: Ids, splits: Offsets, slots: Inverse, since: int) -> tuple[Inverse, Offsets]:
        """Do what `find` does, given slots that were valid when `reassigned` was `since`."""
        if self.reassigned - since > int(self._counts[layout.LOG_SIZE]):
            return self.find(ids, splits, use=False)
        stale = np.empty(len(slots), np.int64)
        marks = self._marks.array(np.uint8)
        count = slot_index.stale_slots(self._index, since, marks, slots, stale)
        if not count:
            return slots, stale[:0]
        stale, slots = stale[:count], slots.copy()
        current, missing = self.find(ids[stale], np.searchsorted(stale, splits), use=False)
        slots[stale] = current
        return slots, stale[missing]

    def collect(self, t: int, first: int, last: int) -> tuple[Ids, Inverse, Inverse]:
        """Return (ids, slots, buckets) of the rows of table t in fixed buckets first..last, in any order."""
        share = (last - first + 1) / hashes.BUCKETS
        room = int(1.1 * share * int(self._records[t, layout.USED])) + 1024
        while True:
            ids = np.empty(room, np.uint64)
            slots, buckets = np.empty(room, np.int32), np.empty(room, np.int32)
            count = slot_index.collect(self._index, t, first, last, ids, slots, buckets)
            if count <= room:
                return ids[:count], slots[:count], buckets[:count]
            room = count

    def counters(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] each: rows, created, evicted, refused, second_probes."""
        words = {
            "rows": layout.USED,
            "created": layout.CREATED,
            "evicted": layout.EVICTED,
            "refused": layout.REFUSED,
            "second_probes": layout.SECOND,
        }
        return {name: self._records[:, word] for name, word in words.items()}

    @property
    def slots(self) -> int:
        """Slots handed out so far, including free ones: rows are in 0..slots - 1."""
        return int(self._counts[layout.SLOTS_USED])

    @property
    def room(self) -> int:
        """Number of additional rows that fit without eviction."""
        counts = self._counts
        return int(counts[layout.SLOTS_LIMIT] - counts[layout.SLOTS_USED] + counts[layout.SLOTS_FREE])

    @property
    def evicts(self) -> bool:
        """Whether rows are evicted when the budget is used up."""
        return self._policy != layout.NONE

    @property
    def bytes(self) -> int:
        """Bytes of index in use."""
        return self._pages * PAGE_BYTES

    @property
    def load_factor(self) -> float:
        """Share of the index entries that are in use."""
        entries = self._pages * layout.PAGE_BUCKETS * layout.ENTRIES
        return int(self._records[:, layout.USED].sum()) / entries

    @property
    def _pages(self) -> int:
        return int(self._counts[layout.PAGES_USED] - self._counts[layout.PAGES_FREE])

    def keep_counters(self, before: Directory) -> None:
        """Take over the counters of a discarded directory; rows start at 0."""
        for word in (layout.CREATED, layout.EVICTED, layout.REFUSED, layout.SECOND):
            self._records[:, word] = before._records[:, word]
