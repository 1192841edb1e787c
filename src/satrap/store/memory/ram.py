"""Rows in the memory of this process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.retention import Eviction
from satrap.store.arrays import Floats, Ids, Inverse, Offsets, Slots
from satrap.store.backend import FAST, FastBackend, MemoryPart, PartRows, Places
from satrap.store.memory.directory import Budget, Directory
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec
from satrap.store.snapshot.index_snapshot import place, save

_NOWHERE = np.empty(0, np.int64)


class Ram(FastBackend):
    """The backend that keeps its rows in one slab, sized by `room`; see `RowBackend`.

    Raises:
        StoreError: the system does not grant the memory.
    """

    def __init__(self, kind: RowSpec, room: Budget, eviction: Eviction | None, workers: ThreadPool) -> None:
        super().__init__()
        self.kind, self._room, self._eviction, self._workers = kind, room, eviction, workers
        self._open()

    def _open(self) -> None:
        slab = Slab(self.kind, self._room.rows, self._workers, huge=self._room.huge_rows)
        self.directory = Directory(self.kind.tables, self._room, self._eviction, self._workers)
        image = partial(save, self.directory.parts) if self.directory.evicts else None
        self.slab = self.records = slab
        self.parts = (MemoryPart(self.directory, slab.read, image=image),)

    def clear(self) -> None:
        """Forget every row."""
        before = self.directory
        self._open()
        self.directory.keep_counters(before)

    def find(self, ids: Ids, splits: Offsets, *, use: bool = False, known: Slots | None = None) -> Places:
        """Return the locations of rows."""
        if use:
            self.advance()
        if known is None:
            places = Places(*self.directory.find(ids, splits, use=use))
        elif known.complete and known.reassigned == self.directory.reassigned:
            places = Places(known.numbers, _NOWHERE)
        else:
            places = Places(*self.directory.refresh(ids, splits, known.numbers, known.reassigned))
        if use and self.directory.evicts and self.observers:
            self.used(FAST, places.slots)
        return places

    def advance(self) -> None:
        """Start a request that uses rows; drop some expired rows."""
        taken = self.directory.reassigned
        self.directory.advance()
        self._lose(taken)

    def create(self, ids: Ids, splits: Offsets, places: Places, new: Offsets) -> None:
        """Create rows."""
        for _ in self.make(ids, splits, places.slots, new):
            pass
        places.missing = places.missing[places.slots[places.missing] < 0]

    def make(
        self, ids: Ids, splits: Offsets, slots: Inverse, new: Offsets, *, blank: bool = False
    ) -> Iterator[Offsets]:
        """See `FastBackend.make`."""
        size = max(1, self.directory.piece if self.observers else len(new))
        for first in range(0, len(new), size):
            yield self._make(ids, splits, slots, new[first : first + size], blank=blank)

    def _make(self, ids: Ids, splits: Offsets, slots: Inverse, new: Offsets, *, blank: bool) -> Offsets:
        taken = self.directory.reassigned
        fresh = self.directory.create(ids, splits, new, slots)
        self._lose(taken)
        if self.observers:
            self.made(FAST, slots[fresh])
        if not blank:
            self.slab.initialize(ids, splits, fresh, slots)
        return fresh

    def _lose(self, since: int) -> None:
        """Report rows that have lost their slot since `reassigned` was `since`."""
        if self.observers and self.directory.reassigned != since:
            ids, tables, slots = self.directory.taken(since)
            order = np.argsort(tables, kind="stable")
            splits = np.searchsorted(tables[order], np.arange(len(self.kind.tables) + 1))
            self.gone(PartRows(FAST, ids[order], splits, slots[order]))

    def gather(self, ids: Ids, splits: Offsets, places: Places, out: Floats) -> None:
        """Write the weights of rows, or their initial weights."""
        self.slab.gather(places.slots, out)
        self.kind.initial_rows(ids, splits, places.missing, out)

    def step(self, ids: Ids, places: Places, gradients: Floats, lr_scale: float, noise: np.uint64) -> None:
        """Take one optimizer step per id that has a row."""
        self.slab.step(ids, places.slots, gradients, lr_scale, noise)

    def write(self, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> int:
        """Insert or overwrite rows."""
        places = self.find(ids, splits)
        if len(places.missing):
            if self.directory.evicts:  # without eviction, steps count only lookups, also after a resume
                self.advance()
            places = Places(*self.directory.find(ids, splits, use=True))
            for _ in self.make(ids, splits, places.slots, places.missing, blank=True):
                pass
        self.announce(ids, splits, places)
        return len(ids) - self.overwrite(ids, places.slots, weights, state)

    def overlay(self, out: Floats, positions: Offsets, weights: Floats) -> None:
        """See `FastBackend.overlay`."""
        out[positions] = weights

    def overwrite(self, ids: Ids, slots: Inverse, weights: Floats, state: Floats) -> int:
        """See `FastBackend.overwrite`."""
        inside = np.flatnonzero(slots >= 0)
        if len(inside) == len(ids):
            self.slab.write(ids, slots, weights, state)
        else:
            self.slab.write(ids[inside], slots[inside], weights[inside], state[inside])
        return len(inside)

    def discard(self, t: int, ids: Ids, slots: Inverse) -> None:
        """Drop rows."""
        if self.observers:
            splits = np.where(np.arange(len(self.kind.tables) + 1) > t, len(ids), 0)
            self.gone(PartRows(FAST, ids, splits, slots))
        self.directory.discard(t, ids)

    def restore(self, image: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the index to an image."""
        if image:
            rows, slots, fresh = place(self.directory, image)
            self.slab.initialize(rows.ids, rows.splits, fresh, slots)
