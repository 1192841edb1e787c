"""The host's view of an index on a device: what snapshots, statistics and requests from arrays need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.store.arrays import Ids, Inverse, Offsets
from satrap.store.gpu import layout
from satrap.store.gpu.device import on_its_device
from satrap.store.gpu.index import DeviceIndex, Rows
from satrap.store.gpu.order import Distinct, Order
from satrap.store.hashes import bucket_of

LEAST_CAPACITY = 128
"""Positions of the smallest request. Larger ones are rounded up to a power of two, so few sizes exist."""


def on_device(array: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """Return a copy of an array on a device, without waiting; uint64 becomes int64 of the same bits."""
    plain = torch.from_numpy(
        np.ascontiguousarray(array.view(np.int64) if array.dtype == np.uint64 else array)
    )
    if device.type == "cuda":  # PyTorch keeps pinned memory until its copy is done
        return plain.pin_memory().to(device, non_blocking=True)
    return plain.clone()


@dataclass(frozen=True, slots=True)
class EachOnce:
    """The ids of a request, one after another, as `slab.DistinctRuns`: for requests whose ids do not repeat.

    Args:
        ids: int64[n].
        tables: int32[n].
        runs: int32[1]: n.
        starts: int32[n + 1].
        order, inverse: int32[n].
    """

    ids: Tensor
    tables: Tensor
    runs: Tensor
    starts: Tensor
    order: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, ids: Ids, splits: Offsets, device: torch.device) -> EachOnce:
        """Return the runs of a request, `ids[splits[t]:splits[t + 1]]` of table t."""
        n = len(ids)
        tables = np.repeat(np.arange(len(splits) - 1, dtype=np.int32), np.diff(splits))
        numbers = torch.arange(n + 1, dtype=torch.int32, device=device)
        return cls(
            on_device(ids, device), on_device(tables, device), numbers[n:], numbers, numbers[:n], numbers[:n]
        )


class DeviceDirectory:
    """A `memory.directory.Directory` of rows on a device. Each method waits for the device.

    Args:
        index: the index.
        tables: names of the tables.
        device: where it is.
        evicts: whether rows are evicted when the budget is used up.
        limit: most slots, also after the index has grown.

    Attributes:
        device, evicts, limit: of the arguments.
        discarded: rows that `DeviceRows.discard` has dropped.
    """

    def __init__(
        self, index: DeviceIndex, tables: tuple[str, ...], device: torch.device, *, evicts: bool, limit: int
    ) -> None:
        self._index, self._tables, self.device = index, tables, device
        self.evicts, self.limit = evicts, limit
        self._orders: dict[int, Order] = {}
        self.discarded = 0

    def distinct(self, ids: Ids, splits: Offsets) -> Distinct:
        """Return the distinct ids of a request, until the next call for a request of this size."""
        n = len(ids)
        capacity = max(LEAST_CAPACITY, 1 << max(n - 1, 0).bit_length())
        if capacity not in self._orders:
            self._orders[capacity] = Order(self._tables, capacity, self.device)
        padded = torch.zeros(capacity, dtype=torch.int64, device=self.device)
        padded[:n] = on_device(ids, self.device)
        count = torch.tensor([n], dtype=torch.int32, device=self.device)
        return self._orders[capacity].distinct(padded, on_device(splits, self.device), count)

    @on_its_device
    def find(self, ids: Ids, splits: Offsets, *, use: bool = False) -> tuple[Inverse, Offsets]:
        """Return (slots int32[n], -1 without a row; positions int64[m] of ids without a row, ascending)."""
        assert not use  # a request that uses rows is one of `DeviceRows`
        distinct = self.distinct(ids, splits)
        return self.positions(distinct, self._index.find(distinct, use=False)[0], len(ids))

    @staticmethod
    def positions(distinct: Distinct, slots: Tensor, n: int) -> tuple[Inverse, Offsets]:
        """Return the slots of n positions, and the positions of -1, given the slots of distinct ids."""
        here: Inverse = slots[distinct.inverse[:n].long()].cpu().numpy()
        return here, np.flatnonzero(here < 0)

    def named(self, distinct: Distinct, runs: Inverse) -> tuple[Ids, Offsets, Offsets]:
        """Return (ids uint64[n] by table, their order among `runs`, splits int64[tables + 1]), on the host.

        Args:
            distinct: the distinct ids of a request.
            runs: int32[n], some of them.
        """
        at = on_device(runs, self.device).long()
        ids = distinct.ids[at].cpu().numpy().view(np.uint64)
        tables = np.zeros(len(runs), np.int16)
        if len(self._tables) > 1:
            tables = distinct.tables[at].cpu().numpy()
        order = np.argsort(tables, kind="stable")
        splits = np.searchsorted(tables[order], np.arange(len(self._tables) + 1)).astype(np.int64)
        return ids[order], order, splits

    @property
    def slots(self) -> int:
        """Slots handed out so far, including free ones: rows are in 0..slots - 1."""
        return self._index.slots

    @property
    def room(self) -> int:
        """Number of additional rows that fit without eviction."""
        return self.limit - int(self.counters()["rows"].sum())

    @property
    def reassigned(self) -> int:
        """Number of slots taken from their rows so far, also by `DeviceRows.discard`."""
        return self._index.reassigned + self.discarded

    @property
    def piece(self) -> int:
        """Most ids to create at once if the log must report every evicted row."""
        return max(1, int(self._index.table.state[layout.LOG]) // 2)

    @property
    def step(self) -> int:
        """Number of requests that used rows so far; defines "recent"."""
        return int(self._index.table.state[layout.STEP])

    @step.setter
    def step(self, step: int) -> None:
        self._index.table.state[layout.STEP] = step

    @property
    def bytes(self) -> int:
        """Bytes of the index."""
        return self._index.bytes

    @property
    def load_factor(self) -> float:
        """Share of the index entries that are in use."""
        segments, width = self._index.table.state[[layout.SEGMENTS, layout.WIDTH]].tolist()
        entries = int(segments) * int(width) * layout.ENTRIES
        return int(self.counters()["rows"].sum()) / entries

    def counters(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] each: rows, created, evicted, refused, second_probes."""
        return self._index.counters()

    def collect(self, t: int, first: int, last: int) -> tuple[Ids, Inverse, Inverse]:
        """Return (ids, slots, buckets) of the rows of table t in fixed buckets first..last."""
        rows = self._of(t, first, last)
        return rows.ids, rows.slots, bucket_of(self._tables[t], rows.ids).astype(np.int32)

    def name_slots(self, t: int, first: int, last: int, slot: int, ids: Ids, tables: Inverse) -> None:
        """Write ids and tables of the n slots from `slot` on whose rows are in these buckets of table t."""
        rows = self._of(t, first, last)
        at = rows.slots - slot
        inside = (at >= 0) & (at < len(ids))
        ids[at[inside]], tables[at[inside]] = rows.ids[inside], t

    def _of(self, t: int, first: int, last: int) -> Rows:
        rows = self._index.entries(first, last)
        begin, end = np.searchsorted(rows.tables, [t, t + 1])
        tables, ids, slots, notes = (column[begin:end] for column in rows)
        return Rows(tables, ids, slots, notes)  # type: ignore[arg-type]
