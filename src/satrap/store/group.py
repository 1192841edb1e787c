"""Tables of one kind: one backend holds their rows, and one call serves all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Condition
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, StoreError
from satrap.retention import Admission
from satrap.store.admission import AdmissionGate, ClosedAdmissionGate
from satrap.store.arrays import Bytes, Floats, Found, Ids, Offsets, Slots, per_table
from satrap.store.backend import FAST, Block, Places, RowBackend
from satrap.store.grouping import GroupSpec
from satrap.store.memory.buffers import floats
from satrap.store.memory.directory import Directory, budget
from satrap.store.memory.ram import Ram
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_spec import RowSpec
from satrap.store.snapshot.cut import Cut, wait_for_room
from satrap.store.statistics import TableStatistics
from satrap.store.tier import Tiered, fitting_records, most_records

COUNTERS = ("hits", "misses", "unadmitted", "dropped")
_GOLDEN = 0x9E3779B97F4A7C15


class GroupStore:
    """Tables of one kind, see `Kind`: admission, counters, and the order of backend calls.

    Made by `Shard`; read only. Methods take arrays that `Shard` has checked.
    `ids[splits[t]:splits[t + 1]]` belong to `tables[t]`.

    Attributes:
        index: position in `Shard.groups`.
        tables: names of its tables, in the order of `splits`.
        dim: weights per row.
        plan: how a row is laid out in memory; its size is `row_bytes`.
        optimizer: the optimizer of its rows.
        frozen: whether its rows never change, see `Table`.
        budget: key of a recipe that limits its rows.
        backend: holds the rows.
        batches: serves requests of whole batches, if the rows are on a device; else None.
        gate: decides which new ids get a row; None: all.
        updates: number of updates so far; the rounding of 16-bit weights is a function of it. To continue
            exactly as another group, set it along with the rows.
        counters: int64[len(COUNTERS), tables], see `TableStatistics`.
    """

    def __init__(
        self,
        index: int,
        share: GroupSpec,
        *,
        seed: int,
        workers: ThreadPool,
        device: str = "cpu",
    ) -> None:
        tables, tier, eviction = share.tables, share.tier, share.kind.eviction
        kind = RowSpec(tables, share.kind.optimizer, seed)
        self.index, self.optimizer, self._kind = index, share.kind.optimizer, kind
        self.tables, self.dim, self.plan = kind.tables, kind.dim, kind.plan
        self.row_bytes = kind.plan.row_bytes
        self.counters = np.zeros((len(COUNTERS), len(tables)), np.int64)
        self.updates = self._epoch = 0
        self.frozen, alone = share.kind.frozen, share.kind.alone
        self.budget = f"tables.{alone}.memory" if alone else "embedding.memory"
        self.gate = _gate(share.kind.admission, seed, self.tables, frozen=self.frozen)
        on_device = device != "cpu"
        if on_device and tier is not None:  # the index of the tier is in host memory
            records, memory = fitting_records(kind, tier), share.memory
        else:
            records, memory = most_records(kind, tier, share.memory)
        memory = _left_for_rows(memory, self.gate)
        self.backend: RowBackend
        self.batches: Any = None
        if on_device:
            from satrap.store.gpu.backend import DeviceRows  # they import torch
            from satrap.store.gpu.batches import DeviceBatches
            from satrap.store.gpu.budget import device_budget

            assert memory is not None  # `Shard` sets it
            rows = DeviceRows(kind, device_budget(memory, kind), eviction, device)
            slower = None if tier is None else Tiered(rows, tier, records, workers)
            self.backend = slower or rows
            self.batches = DeviceBatches(
                rows, self.gate, self._count, self._noise, frozen=self.frozen, slower=slower
            )
        else:
            room = budget(memory, self.row_bytes, self.plan.stride, len(tables), eviction)
            ram = Ram(kind, room, eviction, workers)
            self.backend = ram if tier is None else Tiered(ram, tier, records, workers)

    @property
    def directory(self) -> Directory:
        """The slot of each id in the backend's fast part."""
        return self.backend.directory

    def lookup(self, ids: Ids, splits: Offsets, out: Block, *, use: bool = True) -> Slots:
        """Write the rows of the ids, creating new ones; see `Shard.lookup_slots`."""
        if self.gate is not None:
            self.gate.requests += 1
        places, hits = self.backend.find(ids, splits, use=use), splits[1:] - splits[:-1]
        if len(places.missing):
            absent = per_table(places.absent, splits)
            self._create(ids, splits, places)
            self._count("misses", absent)
            hits -= absent
        self._count("hits", hits)
        self.backend.gather(ids, splits, places, out)
        complete = not len(places.missing)
        return Slots(self.index, places.slots, self._epoch, self.directory.reassigned, complete)

    def fetch(self, ids: Ids, splits: Offsets) -> tuple[Floats, Floats]:
        """Return (weights, state) of rows, creating new ones; see `Shard.fetch_group`."""
        rows = floats(len(ids), self.dim)
        slots = self.lookup(ids, splits, rows, use=False)
        if self.frozen:  # an id without a row reads zeros, and the table has no state
            return rows, floats(len(ids), 0)
        if not slots.complete:
            raise StoreError("an id has no row in memory", where=f"tables {', '.join(self.tables)}")
        return self.backend.parts[FAST].read(slots.numbers)

    def _create(self, ids: Ids, splits: Offsets, places: Places) -> None:
        """Create rows for the admitted ids that have none; raise if they do not fit."""
        new = places.absent
        if self.gate is not None:
            admitted = self.gate.admit(ids, splits, new)
            self._count("unadmitted", per_table(new[~admitted], splits))
            new = new[admitted]
        check_room(self, ids, splits, new)
        self.backend.create(ids, splits, places, new)

    def peek(
        self, ids: Ids, splits: Offsets, out: Block, known: Slots | None = None, *, warm: bool = False
    ) -> Found:
        """Write the rows of the ids, or their initial rows; return which ids have a row.

        `warm`: rows of a slower part move to the fast part.
        """
        places = self.backend.find(ids, splits, use=warm, known=self._present(known))
        present = np.ones(len(ids), np.bool_)
        present[places.absent] = False
        if warm and places.away is not None:
            self.backend.create(ids, splits, places, np.empty(0, np.int64))
        self.backend.gather(ids, splits, places, out)
        return present

    def update(
        self, ids: Ids, splits: Offsets, gradients: Block, lr_scale: float, known: Slots | None
    ) -> None:
        """Take one optimizer step per id that has a row; the others are counted as dropped.

        If the tables are frozen, nothing happens.
        """
        if self.frozen:
            return
        places = self.backend.find(ids, splits, known=self._present(known))
        if len(places.missing):
            self._count("dropped", per_table(places.absent, splits))
        self.backend.announce(ids, splits, places)
        self.backend.step(ids, places, gradients, lr_scale, self._noise())

    def _noise(self) -> np.uint64:
        """Return what decides the rounding of the next update."""
        self.updates += 1
        return np.uint64((int(self._kind.noise) + self.updates * _GOLDEN) % 2**64)

    def _present(self, slots: Slots | None) -> Slots | None:
        """Return the slots if still valid; None if the store has been cleared since."""
        return slots if slots is not None and slots.epoch == self._epoch else None

    def write(self, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> int:
        """Insert or overwrite rows, ignoring admission; ids are unique in each table.

        Overwriting a row does not count as a use. If the group evicts rows, return the number of rows that
        did not fit; otherwise raise `StoreError` unless all fit.
        """
        check_room(self, ids, splits)
        return self.backend.write(ids, splits, weights, state)

    def has(self, t: int, ids: Ids) -> Found:
        """Return which ids of table t have a row, bool[n]."""
        splits = np.where(np.arange(len(self.tables) + 1) > t, len(ids), 0).astype(np.int64)
        present = np.zeros(len(ids), np.bool_)
        for part in self.backend.parts:
            present |= part.directory.find(ids, splits, use=False)[0] >= 0
        return present

    def wait_for_readers(self, changes: int, uses: int, lock: Condition) -> None:
        """Wait, with the lock released, until the cuts being read have room for a request's changes.

        The request changes at most `changes` rows, and creates at most `uses`, which may evict other rows.
        """
        evicts = uses and self.directory.evicts
        lost = 2 * uses + self.directory.piece if evicts else 0  # an id may evict two rows
        wait_for_room(self._cuts, changes + lost, lock)

    @property
    def _cuts(self) -> list[Cut]:
        return [observer for observer in self.backend.observers if isinstance(observer, Cut)]

    def cut(self, tables: list[int], without: Sequence[Bytes] | None = None) -> Cut:
        """Return the rows of some tables (by position) as they are now; they can be read while others change.

        `without`: for each part of the backend, one bit per slot: rows to leave out.
        """
        return Cut(self.backend, self._kind, tables, without)

    def statistics(self) -> dict[str, TableStatistics]:
        """Return the counters of each table by name."""
        counted = dict(zip(COUNTERS, self.counters, strict=True))
        if self.batches is not None:
            counted |= {name: counted[name] + count for name, count in self.batches.counters().items()}
        counters = {**self.backend.counters(), **counted}
        return {
            name: TableStatistics(**{counter: int(values[t]) for counter, values in counters.items()})
            for t, name in enumerate(self.tables)
        }

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return, by name, the group's state other than rows, to continue exactly from a snapshot."""
        gate_state = {} if self.gate is None or self.frozen else self.gate.state()
        gate = {f"gate.{k}": v for k, v in gate_state.items()}
        image = self.backend.parts[FAST].image
        index = {} if image is None else image()
        counts = np.array([self.updates, self.directory.step], np.int64)
        return {"counts": counts, **gate, **{f"index.{k}": v for k, v in index.items()}}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Restore the result of `state`, before the rows are written.

        If the group evicts rows, all rows then exist, with their initial values until they are written. If
        they were saved on a device, and are in RAM now, or the other way round, none exists, and the order of
        eviction starts again.

        Raises:
            StoreError: the store holds other rows, or the state belongs to another budget.
        """
        arrays = state if self.directory.evicts else {}
        image = {k.removeprefix("index."): v for k, v in arrays.items() if k.startswith("index.")}
        if ("device" in image) != (self.batches is not None):  # rows have moved: other places, the same rows
            image = {}
        self.backend.restore(image)
        if image:
            self._forget_places()
        self.updates, self.directory.step = (int(count) for count in state["counts"])
        gate = {k.removeprefix("gate."): v for k, v in state.items() if k.startswith("gate.")}
        if self.gate is not None and gate:
            self.gate.restore(gate)

    def clear(self) -> None:
        """Forget every row and free its memory, and forget the uses counted for admission.

        Raises:
            StoreError: the address space cannot hold new, empty memory in addition to the old; nothing has
                changed.
        """
        self.backend.clear()
        self._forget_places()
        if self.gate is not None:
            self.gate.clear()

    def _forget_places(self) -> None:
        """Invalidate the slots in earlier lookups, trackers and cuts."""
        self._epoch += 1
        self.backend.observers.clear()

    def close(self) -> None:
        """Release the backend's files and devices; memory is freed with the group."""
        self.backend.close()

    @property
    def bytes(self) -> int:
        """Bytes of rows, state, index (the tier's too) and admission counts in use."""
        index = sum(part.directory.bytes for part in self.backend.parts)
        return self.directory.slots * self.row_bytes + index + (0 if self.gate is None else self.gate.bytes)

    def _count(self, name: str, amounts: Offsets) -> None:
        self.counters[COUNTERS.index(name)] += amounts


def _gate(
    admission: Admission | None, seed: int, tables: tuple[str, ...], *, frozen: bool
) -> AdmissionGate | None:
    if frozen:
        return ClosedAdmissionGate(Admission(), seed, tables)
    return None if admission is None else AdmissionGate(admission, seed, tables)


def _left_for_rows(memory: int | None, gate: AdmissionGate | None) -> int | None:
    """Return the memory left after the admission counts; raise `ConfigError` if less than half is left."""
    if memory is None or gate is None:
        return memory
    if 2 * gate.bytes > memory:
        raise ConfigError(
            f"the counts of admission take {gate.bytes} bytes of a table group's memory budget of {memory}",
            why="less than half of the budget would be left for rows",
            fix="reduce admission.memory, or increase the budget of the tables",
        )
    return memory - gate.bytes


def check_room(group: GroupStore, ids: Ids, splits: Offsets, missing: Offsets | None = None) -> None:
    """Raise `StoreError` if a group that does not evict has no room for all of these ids.

    `missing`: the positions of the ids to create rows for; None: all ids without a row.
    """
    room = group.directory.room
    if group.directory.evicts or len(ids if missing is None else missing) <= room:
        return
    if missing is None:
        _, missing = group.directory.find(ids, splits, use=False)
    tables = np.searchsorted(splits, missing, side="right")
    needed = len(np.unique(np.rec.fromarrays([tables, ids[missing]])))
    if needed > room:
        raise StoreError(
            f"no room for {needed} more rows: {int(group.directory.counters()['rows'].sum())} rows use "
            f"{group.bytes} bytes",
            where=f"tables {', '.join(group.tables)}",
            why="the memory budget is used up; the request was refused and changed nothing",
            fix=f"increase {group.budget} (if it is not set, ulimit -v applies), evict rows, or add shards",
        )
