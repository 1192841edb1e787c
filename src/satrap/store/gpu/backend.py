"""Rows in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.errors import StoreError
from satrap.retention import Eviction
from satrap.store.arrays import Floats, Ids, Inverse, Offsets, Slots, check_out, check_rows
from satrap.store.backend import FAST, Block, FastBackend, MemoryPart, PartRows, Places
from satrap.store.gpu import index_image, layout
from satrap.store.gpu.budget import IndexRoom, index_sizes
from satrap.store.gpu.device import on_its_device, rows_device
from satrap.store.gpu.directory import DeviceDirectory, EachOnce, on_device
from satrap.store.gpu.index import DeviceIndex
from satrap.store.gpu.order import Distinct
from satrap.store.gpu.records import DeviceRecords
from satrap.store.gpu.slab import DeviceSlab
from satrap.store.memory.directory import Budget
from satrap.store.row_spec import RowSpec

_NOWHERE = np.empty(0, np.int64)


class DeviceRows(FastBackend):
    """The backend whose rows, state and index are on a device; see `RowBackend`.

    Requests from arrays, as `RowBackend` has them, wait for the device. Requests of whole batches do not, see
    `DeviceBatches`.

    Args:
        kind: the rows.
        room: most rows.
        eviction: which rows leave when the memory is full.
        device: its name, cuda or cuda:N.

    Attributes:
        index, slab: slots of ids, and rows by slot.
        room: lets the index grow.
        records: the rows as records on the host.
        epoch: changes when rows lose their slots other than by eviction.
        counts: words of the index's state after the last `insert`, on the device: `layout.REFUSED`, the ids
            without a place, and `layout.USED`.
        lost: how many rows had lost their slot at the last event of one.

    Raises:
        ConfigError: the device is not there, or cannot hold such rows.
        StoreError: the device does not grant the memory.
    """

    directory: DeviceDirectory  # type: ignore[assignment]
    announces = False

    def __init__(self, kind: RowSpec, room: Budget, eviction: Eviction | None, device: str) -> None:
        super().__init__()
        self.kind, self.device, evicts = kind, rows_device(device), eviction is not None
        # rows that evict use all of it soon, and where they are decides which one leaves
        sizes = [room.rows] if evicts else index_sizes(room.rows)
        self.index = DeviceIndex(kind.tables, sizes[0], eviction, device=self.device)
        self.room = IndexRoom(self.index, sizes)
        self.slab = DeviceSlab(kind, room.rows, self.device)
        self.directory = DeviceDirectory(self.index, kind.tables, self.device, evicts=evicts, limit=room.rows)
        self._new_parts()
        self._found: Distinct | None = None
        self.epoch, self.lost, self.counts = 0, 0, self.index.table.state.clone()
        self.records = DeviceRecords(self.slab)

    @on_its_device
    def clear(self) -> None:
        """Forget every row; the memory stays with the store."""
        self.index.clear()
        self.room.learn(0, self.room.asked)
        self.epoch += 1
        self._new_parts()

    def _new_parts(self) -> None:
        image = partial(index_image.save, self.index) if self.directory.evicts else None
        self.parts = (MemoryPart(self.directory, self._read, image=image),)  # type: ignore[arg-type]

    @on_its_device
    def _read(self, slots: Inverse) -> tuple[Floats, Floats]:
        weights, state = self.slab.read(on_device(slots, self.device))
        return weights.cpu().numpy(), state.cpu().numpy()

    def block(self, out: Block | None, rows: int, dim: int) -> Block:
        """Return `out`, an array, or a new tensor on the device, as float32[rows, dim]."""
        return torch.empty(rows, dim, device=self.device) if out is None else check_out(out, rows, dim)

    def gradients(self, values: Any, rows: int, dim: int) -> Tensor:
        """Return gradients, an array or a tensor, as a tensor on the device."""
        if not isinstance(values, Tensor):
            return on_device(check_rows(values, rows, dim, "gradients"), self.device)
        if values.shape != (rows, dim) or values.dtype != torch.float32:
            raise StoreError(
                f"gradients must be float32[{rows}, {dim}], got {values.dtype}{list(values.shape)}"
            )
        return values.detach().to(self.device).contiguous()

    @on_its_device
    def find(self, ids: Ids, splits: Offsets, *, use: bool = False, known: Slots | None = None) -> Places:
        """Return the locations of rows."""
        if known is not None and known.complete and known.reassigned == self.directory.reassigned:
            return Places(known.numbers, _NOWHERE)
        distinct = self.directory.distinct(ids, splits)
        slots, missing, misses = self.search(distinct, use=use)
        places = Places(*self.directory.positions(distinct, slots, len(ids)))
        if len(places.missing):
            self._found = distinct
        elif use:
            self.insert(distinct, missing, misses)  # it also ends a request without new ids
        if use and self.directory.evicts and self.observers:
            self.used(FAST, places.slots)
        return places

    def search(self, distinct: Distinct, *, use: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Do what `index.find` does, and report the rows that expire with this use."""
        if use:
            self.room.ask(distinct.capacity)
        since = self.index.reassigned if use and self.observers else 0
        result = self.index.find(distinct, use=use)
        if use:
            self._lose(since)
        return result

    @on_its_device
    def create(self, ids: Ids, splits: Offsets, places: Places, new: Offsets) -> None:
        """Create rows."""
        for _ in self.make(ids, splits, places.slots, new):
            pass
        places.missing = np.flatnonzero(places.slots < 0)

    def make(
        self, ids: Ids, splits: Offsets, slots: Inverse, new: Offsets, *, blank: bool = False
    ) -> Iterator[Offsets]:
        """See `FastBackend.make`."""
        pieces = self._make(ids, slots, new, blank=blank)
        while (fresh := self._next(pieces)) is not None:
            yield fresh

    @on_its_device
    def _next(self, pieces: Iterator[Offsets]) -> Offsets | None:
        return next(pieces, None)

    def _make(self, ids: Ids, slots: Inverse, new: Offsets, *, blank: bool) -> Iterator[Offsets]:
        distinct = self._found
        assert distinct is not None
        self._found = None
        runs = distinct.inverse[on_device(new, self.device)].unique()  # type: ignore[no-untyped-call]
        queue, count = torch.zeros_like(distinct.inverse), torch.zeros_like(distinct.runs)
        queue[: len(runs)] = runs
        for places, piece in self._pieces(distinct, queue, count.fill_(len(runs)), blank=blank):
            slots[:], _ = self.directory.positions(distinct, places, len(ids))
            made = piece[places[piece] >= 0]
            first = distinct.order[distinct.starts[made].long()].cpu().numpy()
            yield np.sort(first).astype(np.int64)

    @on_its_device
    def insert(self, distinct: Distinct, missing: Tensor, misses: Tensor, *, blank: bool = False) -> Tensor:
        """Create the rows of missing ids, after `index.find` with `use`; return the slots of all ids.

        Args:
            distinct: the distinct ids.
            missing, misses: int32[capacity], int32[1]: the ones that get a row.
            blank: rows are not written: the caller writes them.
        """
        if not self.observers:
            slots = self.index.insert(distinct, missing, misses)
            if not blank:  # before anything that takes memory may fail
                self.slab.initialize(distinct, slots, missing, misses)
            self.counts = self.index.table.state.clone()
            return slots
        *_, (slots, _) = self._pieces(distinct, missing, misses, blank=blank)
        return slots

    def _pieces(
        self, distinct: Distinct, missing: Tensor, misses: Tensor, *, blank: bool
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Create rows, so few at a time that the log names each evicted row.

        Yields:
            The slots of all runs, and the runs int64[k] of this piece.
        """
        many, missing = int(misses), missing.clone()
        piece = self.directory.piece if self.directory.evicts else max(many, 1)
        refused = torch.zeros_like(self.index.table.state[layout.REFUSED])
        for start in range(0, max(many, 1), piece):
            queue = missing.roll(-start)
            count = torch.full_like(distinct.runs, min(piece, many - start))
            if start:
                self.index.find(distinct, use=False)
            since = self.index.reassigned
            slots = self.index.insert(distinct, queue, count)
            refused += self.index.table.state[layout.REFUSED]
            self._lose(since)  # its observers read the old rows, before new ones take their slots
            runs = queue[: int(count)].long()
            made = slots[runs].cpu().numpy()
            self.made(FAST, made[made >= 0])
            if not blank:
                self.slab.initialize(distinct, slots, queue, count)
            self.counts = self.index.table.state.clone()
            self.counts[layout.REFUSED] = refused
            yield slots, runs

    def _lose(self, since: int) -> None:
        """Report rows that have lost their slot since `reassigned` was `since`."""
        if self.observers and self.index.reassigned != since:
            rows = self.index.taken(since)
            self.lost = since + len(rows.ids)
            order = np.argsort(rows.tables, kind="stable")
            splits = np.searchsorted(rows.tables[order], np.arange(len(self.kind.tables) + 1))
            self.gone(PartRows(FAST, rows.ids[order], splits, rows.slots[order]))

    @on_its_device
    def gather(self, ids: Ids, splits: Offsets, places: Places, out: Block) -> None:
        """Write the weights of rows, or their initial weights."""
        if not len(ids):
            return
        rows = torch.empty(out.shape, device=self.device) if isinstance(out, np.ndarray) else out
        runs, slots = EachOnce.of(ids, splits, self.device), on_device(places.slots, self.device)
        self.slab.gather(runs, slots, rows, initial=bool(len(places.missing)))
        if rows is not out:
            out[:] = rows.cpu().numpy()

    @on_its_device
    def step(self, ids: Ids, places: Places, gradients: Tensor, lr_scale: float, noise: np.uint64) -> None:
        """Take one optimizer step per id that has a row."""
        if len(ids):
            splits = np.array([0, len(ids)], np.int64)  # tables have no part in a step
            self.slab.numbers.set(lr_scale, noise)
            self.slab.step(
                EachOnce.of(ids, splits, self.device), on_device(places.slots, self.device), gradients
            )

    @on_its_device
    def write(self, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> int:
        """Insert or overwrite rows."""
        places = self.find(ids, splits)
        if len(places.missing):
            # without eviction, steps count only lookups, also after a resume
            step = self.directory.step
            places = self.find(ids, splits, use=True)
            for _ in self.make(ids, splits, places.slots, places.missing, blank=True):
                pass
            places.missing = np.flatnonzero(places.slots < 0)
            if not self.directory.evicts:
                self.directory.step = step
        self.announce(ids, splits, places)
        return len(ids) - self.overwrite(ids, places.slots, weights, state)

    @on_its_device
    def overwrite(self, ids: Ids, slots: Inverse, weights: Floats, state: Floats) -> int:
        """See `FastBackend.overwrite`."""
        self.slab.write(*(on_device(x, self.device) for x in (ids, slots, weights, state)))
        return int((slots >= 0).sum())

    @on_its_device
    def overlay(self, out: Block, positions: Offsets, weights: Floats) -> None:
        """See `FastBackend.overlay`."""
        if isinstance(out, np.ndarray):
            out[positions] = weights
        else:
            out[on_device(positions, self.device)] = on_device(weights, self.device)

    @on_its_device
    def discard(self, t: int, ids: Ids, slots: Inverse) -> None:
        """Drop rows."""
        splits = np.where(np.arange(len(self.kind.tables) + 1) > t, len(ids), 0).astype(np.int64)
        if self.observers:
            self.gone(PartRows(FAST, ids, splits, slots))
        self.directory.discarded += self.index.remove(self.directory.distinct(ids, splits))
        self.epoch += 1

    @on_its_device
    def restore(self, image: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the index from an image."""
        if image:
            index_image.restore(self.index, image)
            rows = self.index.entries()
            splits = np.searchsorted(rows.tables, np.arange(len(self.kind.tables) + 1)).astype(np.int64)
            runs, slots = EachOnce.of(rows.ids, splits, self.device), on_device(rows.slots, self.device)
            self.slab.initialize(runs, slots, runs.order, runs.runs)
