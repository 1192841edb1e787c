"""Rows in fast memory, and in a file or in host memory if they do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.settings.tier import Tier
from satrap.store.arrays import Floats, Ids, Inverse, Offsets, Slots, on_host, per_table
from satrap.store.backend import FAST, Away, Block, FastBackend, MemoryPart, PartRows, Places, RowBackend
from satrap.store.batch_pooling import distinct
from satrap.store.kernels.marks import marked, unmark
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.statistics import TierStatistics
from satrap.store.tier.cold import SHIFTS, Cold

FILE = 1


class Tiered(RowBackend):
    """The backend that adds a file, or host memory, to a faster backend; see `RowBackend`.

    It observes the rows in `memory`, which are evicted by "lru" or "lfu". Evicted rows move to the file, and
    the observers of this backend are notified of the move. The file holds `records` rows, see `most_records`.

    Raises:
        StoreError: the file cannot be created.
    """

    def __init__(self, memory: FastBackend, tier: Tier, records: int, workers: ThreadPool) -> None:
        super().__init__()
        self.memory, self._workers = memory, workers
        self.block, self.gradients = memory.block, memory.gradients  # type: ignore[method-assign]
        self.cold = Cold(memory.kind, tier, workers, slots=records, memory=memory.directory.limit)
        memory.observers.add(self)
        self._open()

    def _open(self) -> None:
        self._restored = False  # True: memory has all of its rows, so further rows are loaded into the file
        self.directory = self.memory.directory
        cold = self.cold
        self.parts = (*self.memory.parts, MemoryPart(cold.directory, cold.read, cold.live, cold.file.path))

    def clear(self) -> None:
        """Forget every row."""
        index = self.cold.index()
        self.memory.clear()
        self.cold.open(index)
        self._open()

    def close(self) -> None:
        """Close the file."""
        self.cold.file.close()

    def find(self, ids: Ids, splits: Offsets, *, use: bool = False, known: Slots | None = None) -> Places:
        """Return the locations of rows, and read rows that are in the file."""
        self._restored &= not use
        places = self.memory.find(ids, splits, use=use, known=known)
        if missing := len(places.missing):
            places.away = self.cold.fetch(ids, splits, places.missing)
            if use:
                self._reserve(missing)
        return places

    def _reserve(self, new: int) -> None:
        """Reserve the disk space that this many new rows may need."""
        if self.directory.room < 2 * new:
            self.cold.reserve(3 * new)  # an id may evict two rows, and be placed in the file itself

    def create(self, ids: Ids, splits: Offsets, places: Places, new: Offsets) -> None:
        """Create rows, in the file if the request fills memory; move rows from the file to memory."""
        slots, away = places.slots, places.away
        assert away is not None
        for fresh in self.memory.make(ids, splits, slots, np.union1d(new, away.positions)):
            self.bring(ids, splits, fresh, slots, away)
        self._create_cold(ids, splits, slots, new)
        stay = away.positions[slots[away.positions] < 0]
        self.cold.shift("refused", -per_table(stay, splits))
        places.missing = places.missing[slots[places.missing] < 0]

    def bring(self, ids: Ids, splits: Offsets, fresh: Offsets, slots: Inverse, away: Away) -> None:
        """Write rows from the file to their new slots in memory.

        Args:
            ids, splits, slots: of the request, with the new slots.
            fresh: int64[k], positions with a new slot.
            away: rows of the request in the file.
        """
        at = np.flatnonzero(np.isin(away.positions, fresh, assume_unique=True))
        if not len(at):
            return
        positions = away.positions[at]
        targets = slots[positions]
        self.memory.records.put(targets, away.records[at])
        amounts = per_table(positions, splits)
        self.cold.give(away.slots[at], targets, amounts, clean=self.memory.announces)
        if self.observers:
            rows = PartRows(FILE, ids[positions], np.searchsorted(positions, splits), away.slots[at])
            self.moved(rows, FAST, targets)
            self.used(FAST, targets)

    def _create_cold(self, ids: Ids, splits: Offsets, slots: Inverse, new: Offsets) -> None:
        """Create rows in the file if they do not fit in memory, because this request fills it."""
        refused = new[slots[new] < 0]
        # the second occurrence of a repeated id may have got a row
        slots[refused], rest = self.directory.find(ids[refused], np.searchsorted(refused, splits), use=False)
        new = refused[rest]
        fresh, targets = self.cold.create(ids, splits, new)
        if len(fresh):
            loose, at = Slab(self.memory.kind, len(fresh), self._workers), np.full(len(ids), -1, np.int32)
            at[fresh] = loose.slots
            loose.initialize(ids, splits, fresh, at)
            self.cold.write(targets, loose.records(loose.slots))
            self.made(FILE, targets)
        served = np.setdiff1d(refused, new[self.cold.find(ids, splits, new) < 0], assume_unique=True)
        self.cold.shift("refused", -per_table(served, splits))

    def gather(self, ids: Ids, splits: Offsets, places: Places, out: Block) -> None:
        """Write the weights of rows, or their initial weights."""
        self.memory.gather(ids, splits, places, out)
        if (away := places.away) is None:
            return
        stay = places.slots[away.positions] < 0
        loose = self.cold.spread(away.records[stay])
        self.memory.overlay(out, away.positions[stay], loose.read(loose.slots)[0])

    def changing(self, rows: PartRows) -> None:
        """Record that the file no longer holds the current state of these rows of memory."""
        unmark(self.cold.clean, rows.slots)
        super().changing(rows)

    def gone(self, rows: PartRows) -> None:
        """Move rows evicted from memory to the file while it has room; write only rows that changed."""
        targets = self.cold.place(rows.ids, rows.splits)
        stays = targets >= 0
        write = stays & ~marked(self.cold.clean, rows.slots)
        unmark(self.cold.clean, rows.slots)  # the slots will be reused
        if self.observers:
            super().changing(PartRows(FILE, rows.ids, rows.splits, targets).where(write))
        self.cold.write(targets[write], self.memory.records.records(rows.slots[write]))
        moved = rows.where(stays)
        amounts = np.diff(moved.splits)
        self.cold.keep_only(targets[stays], amounts)
        self.cold.shift("evicted", -amounts)
        if self.observers:
            self.moved(moved, FILE, targets[stays])
            super().gone(rows.where(~stays))

    def announce(self, ids: Ids, splits: Offsets, places: Places) -> None:
        """Notify the observers that rows are about to change."""
        self.memory.announce(ids, splits, places)
        if (away := places.away) is not None and self.observers:
            at = np.searchsorted(away.positions, splits)
            super().changing(PartRows(FILE, ids[away.positions], at, away.slots))

    def step(self, ids: Ids, places: Places, gradients: Block, lr_scale: float, noise: np.uint64) -> None:
        """Take one optimizer step per id that has a row; rows in the file are updated there."""
        self.memory.step(ids, places, gradients, lr_scale, noise)
        if (away := places.away) is not None and len(away.positions):
            loose = self.cold.spread(away.records)
            rows = on_host(gradients[away.positions])
            loose.step(ids[away.positions], loose.slots, rows, lr_scale, noise)
            self.cold.write(away.slots, loose.records(loose.slots))

    def write(self, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> int:
        """Insert or overwrite rows; once memory is full, in the file, so that no row is evicted."""
        slots = self._place(ids, splits)
        outside = np.flatnonzero(slots < 0)
        at = self.cold.find(ids, splits, outside)
        away = Away(outside[at >= 0], at[at >= 0], np.empty((0, 0), np.uint8))
        self.announce(ids, splits, Places(slots, outside, away))
        self.memory.overwrite(ids, slots, weights, state)
        if len(away.positions):
            loose = Slab(self.memory.kind, len(away.positions), self._workers)
            loose.write(ids[away.positions], loose.slots, weights[away.positions], state[away.positions])
            self.cold.write(away.slots, loose.records(loose.slots))
        return int((at < 0).sum())

    def _place(self, ids: Ids, splits: Offsets) -> Inverse:
        """Return the slots of rows in memory; an id without a row gets a slot in memory or in the file."""
        slots, missing = self.directory.find(ids, splits, use=False)
        missing = missing[self.cold.find(ids, splits, missing) < 0]
        room = 0 if self._restored else self.directory.room
        self.cold.reserve(3 * len(missing))  # first, because it may fail and nothing has changed yet
        placed, targets = self.cold.create(ids, splits, missing[room:])
        self.made(FILE, targets)
        missing = np.setdiff1d(missing, placed, assume_unique=True)
        if len(missing):
            slots = self.memory.find(ids, splits, use=True).slots
            self._reserve(len(missing))
            for _ in self.memory.make(ids, splits, slots, missing, blank=True):
                pass
            self._create_cold(ids, splits, slots, missing)
        return slots

    def expect(self, ids: Ids, splits: Offsets) -> Callable[[], object]:
        """Note that ids will be looked up soon; return a function that prefetches their rows.

        In front of host memory, their rows move to fast memory at once, since a lookup would wait for it.
        """
        if self.cold.file.path is None:
            self._bring_ahead(*distinct(ids, splits)[:2])
            return lambda: None
        return partial(self.cold.file.prefetch, self.cold.expect(ids, splits))

    def _bring_ahead(self, ids: Ids, splits: Offsets) -> None:
        """Move the rows of unique ids that are only in the file to fast memory."""
        if len(self.cold.expect(ids, splits)):
            places = self.find(ids, splits, use=True)  # of all ids, so that their rows stay here
            self.create(ids, splits, places, np.empty(0, np.int64))

    def counters(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] each: rows, created, evicted, refused, second_probes."""
        counters = self.memory.counters()
        for name, amounts in zip(SHIFTS, self.cold.shifts, strict=True):
            counters[name] = counters[name] + amounts
        return counters

    def slower(self) -> TierStatistics:
        """Return the counters of the file."""
        return self.cold.statistics()

    def restore(self, image: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the index of memory to an image; rows written later go to the file."""
        if self.cold.statistics().rows:
            raise StoreError("the tier of the store already holds rows", fix="clear the store first")
        self._restored |= bool(image)
        self.memory.restore(image)
