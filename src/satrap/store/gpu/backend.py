"""Rows in the memory of a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.errors import StoreError
from satrap.retention import Eviction
from satrap.store.arrays import Floats, Ids, Inverse, Offsets, Slots, check_out, check_rows
from satrap.store.backend import FAST, Block, MemoryPart, PartRows, Places, RowBackend
from satrap.store.gpu import index_image, layout
from satrap.store.gpu.budget import index_sizes
from satrap.store.gpu.device import on_its_device, rows_device
from satrap.store.gpu.directory import DeviceDirectory, EachOnce, on_device
from satrap.store.gpu.index import DeviceIndex
from satrap.store.gpu.order import Distinct
from satrap.store.gpu.slab import DeviceSlab
from satrap.store.memory.directory import Budget
from satrap.store.row_spec import RowSpec

_NOWHERE = np.empty(0, np.int64)
_AHEAD = 8
"""Further requests of the same size that an index has room for when it has grown. The host learns the number
of rows some requests later, so this keeps it from counting them again and again."""


class DeviceRows(RowBackend):
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
        asked: positions of all requests that used rows.
        epoch: changes when rows lose their slots other than by eviction.
        counts: words of the index's state after the last `insert`, on the device: `layout.REFUSED`, the ids
            without a place, and `layout.USED`.

    Raises:
        ConfigError: the device is not there, or cannot hold such rows.
        StoreError: the device does not grant the memory.
    """

    directory: DeviceDirectory  # type: ignore[assignment]

    def __init__(self, kind: RowSpec, room: Budget, eviction: Eviction | None, device: str) -> None:
        super().__init__()
        self.kind, self.device, evicts = kind, rows_device(device), eviction is not None
        # rows that evict use all of it soon, and where they are decides which one leaves
        self._sizes = [room.rows] if evicts else index_sizes(room.rows)
        self.index = DeviceIndex(kind.tables, self._sizes[0], eviction, device=self.device)
        self.slab = DeviceSlab(kind, room.rows, self.device)
        self.directory = DeviceDirectory(self.index, kind.tables, self.device, evicts=evicts, limit=room.rows)
        self._new_parts()
        self._found: Distinct | None = None
        self.epoch, self.counts = 0, self.index.table.state.clone()
        self.asked = self._not_new = 0  # positions of requests, and how many of them surely made no row

    @on_its_device
    def clear(self) -> None:
        """Forget every row; the memory stays with the store."""
        self.index.clear()
        self.learn(0, self.asked)
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
            self._make_room(distinct.capacity)
        since = self.index.reassigned if use and self.observers else 0
        result = self.index.find(distinct, use=use)
        if use:
            self._lose(since)
        return result

    def _make_room(self, positions: int) -> None:
        """Let the index grow, unless it has room for a request even if all of its ids are new.

        The host knows how many slots were used after some earlier request (`learn`), and how many positions
        were asked for since. Only if these could fill the index, it waits to count the rows.
        """
        self.asked += positions
        most = self._sizes[-1]
        if self.index.rows == most or self.asked - self._not_new <= self.index.rows:
            return
        self.learn(self.index.slots, self.asked - positions)
        needed = self.asked - self._not_new
        wanted = needed + _AHEAD * positions
        if wanted > self.index.rows:
            spare = needed <= self.index.rows  # it could wait, and tries again
            with suppress(torch.OutOfMemoryError) if spare else nullcontext():
                self.index.grow(next((size for size in self._sizes if size >= wanted), most))

    def learn(self, used: int, asked: int) -> None:
        """Note that `used` slots were in use when `asked` had this value."""
        self._not_new = max(self._not_new, asked - used)

    @on_its_device
    def create(self, ids: Ids, splits: Offsets, places: Places, new: Offsets) -> None:
        """Create rows."""
        self._make(ids, places, new)

    def _make(self, ids: Ids, places: Places, new: Offsets, *, blank: bool = False) -> None:
        """Give new ids a slot and their first row, after `find`; `blank`: rows are not written."""
        distinct = self._found
        assert distinct is not None
        self._found = None
        runs = distinct.inverse[on_device(new, self.device)].unique()  # type: ignore[no-untyped-call]
        queue, count = torch.zeros_like(distinct.inverse), torch.zeros_like(distinct.runs)
        queue[: len(runs)] = runs
        slots = self.insert(distinct, queue, count.fill_(len(runs)), blank=blank)
        places.slots, places.missing = self.directory.positions(distinct, slots, len(ids))

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
            made = slots[queue[: int(count)].long()].cpu().numpy()
            self.made(FAST, made[made >= 0])
            if not blank:
                self.slab.initialize(distinct, slots, queue, count)
        self.counts = self.index.table.state.clone()
        self.counts[layout.REFUSED] = refused
        return slots

    def named(self, distinct: Distinct, runs: Inverse) -> tuple[Ids, Offsets, Offsets]:
        """Return (ids uint64[n] by table, their order among `runs`, splits int64[tables + 1]), on the host.

        Args:
            distinct: the distinct ids of a request.
            runs: int32[n], some of them.
        """
        at = on_device(runs, self.device).long()
        ids = distinct.ids[at].cpu().numpy().view(np.uint64)
        tables = np.zeros(len(runs), np.int16)
        if len(self.kind.tables) > 1:
            tables = distinct.tables[at].cpu().numpy()
        order = np.argsort(tables, kind="stable")
        splits = np.searchsorted(tables[order], np.arange(len(self.kind.tables) + 1)).astype(np.int64)
        return ids[order], order, splits

    def _lose(self, since: int) -> None:
        """Report rows that have lost their slot since `reassigned` was `since`."""
        if self.observers and self.index.reassigned != since:
            rows = self.index.taken(since)
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
            self._make(ids, places, places.missing, blank=True)
            if not self.directory.evicts:
                self.directory.step = step
        self.announce(ids, splits, places)
        columns = (on_device(x, self.device) for x in (ids, places.slots, weights, state))
        self.slab.write(*columns)
        return len(places.missing)

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
