"""Tables of equal dim, dtype and optimizer: one slab of rows, one index memory, one kernel call for all."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from threading import Condition
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, StoreError
from satrap.optim import Optimizer
from satrap.schema import Table
from satrap.store import copying, hashes
from satrap.store.admission import Admission, Gate
from satrap.store.buffers import floats
from satrap.store.changes import Bits, Tracker
from satrap.store.copying import NO_NOISE
from satrap.store.cut import Cut, wait_for_room
from satrap.store.directory import Budget, Directory, budget
from satrap.store.eviction import Eviction
from satrap.store.image import place, save
from satrap.store.kernels import rows as row_kernels
from satrap.store.kernels.marks import marked, unmark
from satrap.store.memory import Reserved
from satrap.store.pooling import gather_features
from satrap.store.steps import Rows, plan
from satrap.store.tier import Cold, Fetched, Tier
from satrap.store.tier.cold import SHIFTS, Loose, most_records, per_table
from satrap.store.tier.file import Bytes
from satrap.store.types import Floats, Found, Ids, Inverse, Offsets, Slots, address
from satrap.store.workers import Workers

COUNTERS = ("hits", "misses", "unadmitted", "dropped")
_GOLDEN = 0x9E3779B97F4A7C15


class Group:
    """Tables of equal (dim, dtype, optimizer): they share one slab of rows. Made by `Shard`, to be read.

    Methods take arrays that `Shard` has checked. `ids[splits[t]:splits[t + 1]]` belong to `tables[t]`.

    Attributes:
        index: position in `Shard.groups`.
        tables: names of its tables, in the order that `splits` follows.
        dim: weights per row.
        optimizer: the step of its rows.
        directory: which slot each id has.
        gate: decides which new ids get a row; None: all.
        updates: number of updates so far, of which the rounding of 16-bit weights is a function. Set it, with
            the rows, to go on as another group would have.
        counters: int64[len(COUNTERS), tables], see `Shard.statistics`.
        cold: its rows in the tier; None: there is no tier.
        tracker: notes which rows change and go, see `Changes`; None: nobody wants to know.
    """

    def __init__(
        self,
        index: int,
        tables: Sequence[Table],
        optimizer: Optimizer,
        *,
        seed: int,
        workers: Workers,
        memory: int | None = None,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        tier: Tier | None = None,
    ) -> None:
        self.index, self.optimizer = index, optimizer
        self.tables = tuple(table.name for table in tables)
        self.dim = tables[0].dim
        self.plan = plan(optimizer, self.dim, tables[0].dtype)
        self.row_bytes = self.plan.row_bytes
        self.counters = np.zeros((len(COUNTERS), len(tables)), np.int64)
        self._seeds = np.array([hashes.row_seed(seed, name) for name in self.tables], np.uint64)
        self._scales = np.array([table.initial_scale for table in tables], np.float32)
        self._noise = hashes.row_seed(seed, "")
        self.updates = 0
        self.gate = None if admission is None or admission.open else Gate(admission, seed, self.tables)
        self._workers, self._eviction = workers, eviction
        records, memory = most_records(self.tables, self.row_bytes, tier, memory)
        self._budget = self._plan_memory(memory)
        self._cuts: weakref.WeakSet[Cut] = weakref.WeakSet()
        self.tracker: Tracker | None = None
        self._epoch = 0
        self._restored = False  # the rows that belong in memory are there, others are to be loaded elsewhere
        self._slab, self.rows, self.directory = self._reserve()
        sizes = {"slots": records, "memory": self.directory.limit}
        self.cold = None if tier is None else Cold(self.tables, self.dim, self.plan, tier, workers, **sizes)

    def _plan_memory(self, memory: int | None) -> Budget:
        if memory is not None and self.gate is not None:
            if 2 * self.gate.bytes > memory:
                raise ConfigError(
                    f"the counts of admission take {self.gate.bytes} bytes of a group's budget of {memory}",
                    why="less than half would be left for rows",
                    fix="give admission less memory, or the tables more",
                )
            memory -= self.gate.bytes
        return budget(memory, self.row_bytes, self.plan.stride, len(self.tables), self._eviction)

    def _reserve(self) -> tuple[Reserved, Rows, Directory]:
        """Return memory for the rows of the budget, which holds none yet."""
        room, stride = self._budget, self.plan.stride
        slab = Reserved(room.rows * stride, huge=room.huge_rows)
        scalars = np.empty(0, np.float32)
        if self.plan.layout.scalar:
            scalars = Reserved(4 * room.rows, huge=room.huge_rows).array(np.float32)
        rows = Rows(np.uint64(slab.address), np.uint64(stride), np.uint64(self.dim), scalars)
        return slab, rows, Directory(self.tables, room, self._eviction, self._workers)

    def clear(self) -> None:
        """Forget every row and give their memory back; uses counted for admission are forgotten too.

        Raises:
            StoreError: there is no address space for empty memory beside the old; nothing has changed.
        """
        fresh = self._reserve()
        if self.cold is not None:
            self.cold.clear()
        fresh[-1].keep_counters(self.directory)
        self._slab, self.rows, self.directory = fresh
        self._epoch += 1
        self.tracker = None
        if self.gate is not None:
            self.gate.clear()

    def close(self) -> None:
        """Give the file of the tier back; memory goes with the group."""
        if self.cold is not None:
            self.cold.file.close()

    def lookup(
        self, ids: Ids, splits: Offsets, out: Floats, inverse: Inverse | None = None, features: int = 1
    ) -> Slots:
        """Write the rows of the ids, creating those that are new; see `Shard.lookup_slots`."""
        slots, missing, away = self._locate(ids, splits)
        if inverse is not None and not len(missing):
            copying.gather_features(self.plan, self.rows, self._workers, slots, inverse, features, out)
        else:
            rows = out if inverse is None else floats(len(ids), self.dim)
            copying.gather(self.plan, self.rows, self._workers, slots, rows)
            self._write_initial(ids, splits, missing, rows)
            if away is not None:
                self._write_cold(away.positions, slots, away.records, rows)
            if inverse is not None:
                gather_features(rows, inverse, features, out)
        return Slots(self.index, slots, self._epoch, self.directory.reassigned, not len(missing))

    def _locate(self, ids: Ids, splits: Offsets) -> tuple[Inverse, Offsets, Fetched | None]:
        """Return the slots of ids, creating rows; positions of those without one; what came from the tier."""
        self._advance()
        self._restored = False
        if self.gate is not None:
            self.gate.requests += 1
        slots, missing = self.directory.find(ids, splits, use=True)
        hits, away = splits[1:] - splits[:-1], None
        if len(missing):
            absent = self._per_table(missing, splits)
            if self.cold is not None:
                away = self.cold.fetch(ids, splits, missing)
                absent = absent - self._per_table(away.positions, splits)
            self._create(ids, splits, missing, slots, away)
            self._count("misses", absent)
            hits = hits - absent
        self._count("hits", hits)
        if self.tracker is not None and self.directory.evicts:
            self.tracker.change(slots)
        return slots, missing[slots[missing] < 0], away

    def _write_cold(self, positions: Offsets, slots: Inverse, records: Bytes, out: Floats) -> None:
        """Write the weights of records to the positions of `out` that have no slot in memory."""
        stay = slots[positions] < 0
        if stay.any() and self.cold is not None:
            loose = self.cold.spread(records[stay])
            out[positions[stay]] = self.read(loose.slots, loose.rows)[0]

    def _advance(self) -> None:
        taken = self.directory.reassigned
        self.directory.advance()
        self._keep_taken(taken)

    def _create(
        self,
        ids: Ids,
        splits: Offsets,
        missing: Offsets,
        slots: Inverse,
        away: Fetched | None = None,
        *,
        blank: bool = False,
    ) -> None:
        """Give each missing id that is admitted, or was away, a slot and its row; fills in `slots`.

        Rows of slots are left `blank` for a caller that writes them all.

        Raises:
            StoreError: no room, and no eviction, or no disk space for the tier; nothing was created.
        """
        if self.cold is not None and self.directory.room < 2 * len(missing):
            self.cold.reserve(3 * len(missing))  # an id may push out two rows, and be placed there itself
        if away is not None:
            missing = np.setdiff1d(missing, away.positions, assume_unique=True)
        if self.gate is not None:
            admitted = self.gate.admit(ids, splits, missing)
            self._count("unadmitted", self._per_table(missing[~admitted], splits))
            missing = missing[admitted]
        new = missing
        if away is not None:
            missing = np.union1d(missing, away.positions)
        check_room(self, ids, splits, missing)
        pieces = self._cuts or self.tracker is not None or self.cold is not None
        piece = self.directory.piece if pieces else len(missing)
        for i in range(0, len(missing), max(1, piece)):
            taken = self.directory.reassigned
            fresh = self.directory.create(ids, splits, missing[i : i + piece], slots)
            self._keep_taken(taken)
            self._note_made(slots[fresh])
            if not blank:
                self._initialize(ids, splits, fresh, slots, self.rows)
            if away is not None:
                self._bring(splits, fresh, slots, away)
        if self.cold is not None:
            self._create_cold(ids, splits, slots, new, away)

    def _note_made(self, slots: Inverse) -> None:
        for cut in self._cuts:
            cut.ignore(slots)
        if self.tracker is not None:
            self.tracker.make(slots)

    def _bring(self, splits: Offsets, fresh: Offsets, slots: Inverse, away: Fetched) -> None:
        """Write the rows that were away to the slots they were given."""
        at = np.flatnonzero(np.isin(away.positions, fresh, assume_unique=True))
        if self.cold is None or not len(at):
            return
        targets = slots[away.positions[at]]
        self.cold.put(away.records[at], self.rows, targets)
        self.cold.give(away.slots[at], targets, self._per_table(away.positions[at], splits))
        if self.tracker is not None:
            self.tracker.cold.move(away.slots[at], self.tracker, targets)

    def _create_cold(
        self, ids: Ids, splits: Offsets, slots: Inverse, new: Offsets, away: Fetched | None
    ) -> None:
        """Make the rows for which memory has no place, since all is in use by this request, in the tier."""
        assert self.cold is not None
        refused = new[slots[new] < 0]
        # an id that is named twice may have found room the second time
        slots[refused], left = self.directory.find(ids[refused], np.searchsorted(refused, splits), use=False)
        new = refused[left]
        fresh, targets = self.cold.create(ids, splits, new)
        if len(fresh):
            loose, at = Loose(self.plan, self.dim, len(fresh)), np.full(len(ids), -1, np.int32)
            at[fresh] = loose.slots
            self._initialize(ids, splits, fresh, at, loose.rows)
            self.cold.write(targets, loose.rows, loose.slots)
            if self.tracker is not None:
                self.tracker.cold.make(targets)
        served = np.setdiff1d(refused, new[self.cold.find(ids, splits, new) < 0], assume_unique=True)
        if away is not None:
            served = np.union1d(served, away.positions[slots[away.positions] < 0])
        self.cold.shift("refused", -self._per_table(served, splits))

    def _initialize(self, ids: Ids, splits: Offsets, missing: Offsets, slots: Inverse, rows: Rows) -> None:
        row_kernels.initialize(
            self.plan.format(NO_NOISE),
            rows.base,
            rows.stride,
            rows.scalars,
            ids,
            splits,
            missing,
            slots,
            self._seeds,
            self._scales,
            self.rows.dim,
            np.float32(self.plan.layout.state_start),
            np.float32(self.plan.layout.scalar_start),
        )

    def peek(self, ids: Ids, splits: Offsets, out: Floats) -> Found:
        """Write the rows of the ids, or what they would start from; return which have a row."""
        slots, missing = self.directory.find(ids, splits, use=False)
        copying.gather(self.plan, self.rows, self._workers, slots, out)
        found: Found = slots >= 0
        if self.cold is not None and len(missing):
            away = self.cold.fetch(ids, splits, missing)
            self._write_cold(away.positions, slots, away.records, out)
            found[away.positions] = True
            missing = missing[~found[missing]]
        self._write_initial(ids, splits, missing, out)
        return found

    def _write_initial(self, ids: Ids, splits: Offsets, positions: Offsets, out: Floats) -> None:
        if len(positions):
            fmt, seeds, scales = self.plan.format(NO_NOISE), self._seeds, self._scales
            dim, step = self.rows.dim, np.uint64(out.strides[0])
            row_kernels.initial_rows(fmt, ids, splits, positions, seeds, scales, dim, address(out), step)

    def update(
        self, ids: Ids, splits: Offsets, gradients: Floats, lr_scale: float, known: Slots | None
    ) -> None:
        """Take one optimizer step per id that has a row; the others are counted as dropped."""
        slots, missing = self._slots_of(ids, splits, known)
        away = None
        if self.cold is not None and len(missing):
            away = self.cold.fetch(ids, splits, missing)
            missing = np.setdiff1d(missing, away.positions, assume_unique=True)
        if len(missing):
            self._count("dropped", self._per_table(missing, splits))
        self._keep(ids, splits, slots)
        self.updates += 1
        noise = np.uint64((int(self._noise) + self.updates * _GOLDEN) % 2**64)
        step = gradients.strides[0]

        def work(first: int, end: int) -> None:
            start = np.uint64(gradients.ctypes.data + first * step)
            self.plan.step(self.rows, ids[first:end], slots[first:end], start, lr_scale, noise)

        self._workers.run(self._workers.ranges(len(ids)), work)
        if away is not None and self.cold is not None and len(away.positions):
            own = gradients[away.positions]
            loose = self.cold.spread(away.records)
            self.plan.step(loose.rows, ids[away.positions], loose.slots, address(own), lr_scale, noise)
            self._write_back(ids, splits, away.positions, away.slots, loose)

    def _write_back(
        self, ids: Ids, splits: Offsets, positions: Offsets, slots: Inverse, loose: Loose
    ) -> None:
        """Write changed rows to their slots of the tier."""
        assert self.cold is not None
        tables = (np.searchsorted(splits, positions, side="right") - 1).astype(np.int32)
        for cut in self._cuts:
            cut.keep_cold(ids[positions], tables, slots)
        if self.tracker is not None:
            self.tracker.cold.change(slots)
        self.cold.write(slots, loose.rows, loose.slots)

    def _slots_of(self, ids: Ids, splits: Offsets, known: Slots | None) -> tuple[Inverse, Offsets]:
        """Return what `directory.find` would, sparing what `known` still tells."""
        if known is None or known.epoch != self._epoch:
            return self.directory.find(ids, splits, use=False)
        if known.complete and known.reassigned == self.directory.reassigned:
            return known.numbers, np.empty(0, np.int64)
        return self.directory.refresh(ids, splits, known.numbers, known.reassigned)

    def read(self, slots: Inverse, rows: Rows | None = None) -> tuple[Floats, Floats]:
        """Return (weights float32[n, dim], state float32[n, width]) of slots; rows of -1 are anything.

        `rows` are others than those in memory.
        """
        return copying.read(self.plan, self.rows if rows is None else rows, self._workers, slots)

    def read_cold(self, slots: Inverse) -> tuple[Floats, Floats]:
        """Return what `read` does of slots of the tier."""
        assert self.cold is not None
        loose = self.cold.spread(self.cold.read(slots))
        return self.read(loose.slots, loose.rows)

    def write(self, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> None:
        """Insert or overwrite rows, whatever the admission; ids are distinct inside each table.

        Rows that are only overwritten do not count as used.

        Raises:
            StoreError: no room for all.
        """
        slots, missing = self.directory.find(ids, splits, use=False)
        if self.cold is not None:
            missing = self._place_cold(ids, splits, missing)
        if len(missing):
            if self.directory.evicts:  # else the steps count lookups alone, also after a resume
                self._advance()
            slots, absent = self.directory.find(ids, splits, use=True)
            missing = absent if self.cold is None else missing
        gate, self.gate = self.gate, None
        try:
            self._create(ids, splits, missing, slots, blank=True)
        finally:
            self.gate = gate
        outside = np.flatnonzero(slots < 0)
        away = np.full(len(outside), -1) if self.cold is None else self.cold.find(ids, splits, outside)
        self._keep(ids, splits, slots)
        inside = np.flatnonzero(slots >= 0) if len(outside) else slice(None)
        copying.scatter(
            self.plan, self._noise, self.rows, ids[inside], slots[inside], weights[inside], state[inside]
        )
        lost, outside, away = int((away < 0).sum()), outside[away >= 0], away[away >= 0]
        if self.cold is not None and len(outside):
            loose = Loose(self.plan, self.dim, len(outside))
            copying.scatter(
                self.plan,
                self._noise,
                loose.rows,
                ids[outside],
                loose.slots,
                weights[outside],
                state[outside],
            )
            self._write_back(ids, splits, outside, away, loose)
        if lost:
            raise StoreError(
                f"no room for {lost} of {len(ids)} rows that are loaded together",
                fix="give the store more memory, or load smaller chunks",
            )

    def _place_cold(self, ids: Ids, splits: Offsets, missing: Offsets) -> Offsets:
        """Make rows in the tier once memory is full, so that loading pushes none out; return those left."""
        assert self.cold is not None
        missing = missing[self.cold.find(ids, splits, missing) < 0]
        room = 0 if self._restored else self.directory.room
        self.cold.reserve(3 * len(missing))  # as `_create` will ask for, when nothing may fail any more
        placed, targets = self.cold.create(ids, splits, missing[room:])
        if self.tracker is not None:
            self.tracker.cold.make(targets)
        return np.setdiff1d(missing, placed, assume_unique=True)

    def has(self, t: int, ids: Ids) -> Found:
        """Return which ids of table t have a row, bool[n]."""
        splits = np.where(np.arange(len(self.tables) + 1) > t, len(ids), 0).astype(np.int64)
        slots, missing = self.directory.find(ids, splits, use=False)
        found: Found = slots >= 0
        if self.cold is not None:
            found[missing] = self.cold.find(ids, splits, missing) >= 0
        return found

    def wait_for_readers(self, changes: int, uses: int, lock: Condition) -> None:
        """Wait, with the lock free, until the cuts being read have room for what a request changes.

        Args:
            changes: rows it may change.
            uses: ids it may create, for which other rows may go.
            lock: held now; whoever reads a cut notifies it.
        """
        evicts = uses and self.directory.evicts
        lost = 2 * uses + self.directory.piece if evicts else 0  # an id may push out two rows
        wait_for_room(self._cuts, changes + lost, lock)

    def cut(self, tables: list[int], without: Bits | None = None, without_cold: Bits | None = None) -> Cut:
        """Return the rows of some tables (by position) as they are now, to be read while others change.

        Args:
            tables: positions.
            without: one bit per slot: these rows are left out.
            without_cold: the same of the tier.
        """
        cut = Cut(self, tables, without, without_cold)
        self._cuts.add(cut)
        return cut

    def statistics(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] of each counter, see `Shard.statistics`."""
        counters = self.directory.counters()
        if self.cold is not None:
            for name, amounts in zip(SHIFTS, self.cold.shifts, strict=True):
                counters[name] = counters[name] + amounts
        return {**counters, **dict(zip(COUNTERS, self.counters, strict=True))}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return, by name, what the group needs besides its rows to go on exactly; for a snapshot."""
        gate = {} if self.gate is None else {f"gate.{k}": v for k, v in self.gate.state().items()}
        index = save(self.directory.parts) if self.directory.evicts else {}
        counts = np.array([self.updates, self.directory.step], np.int64)
        return {"counts": counts, **gate, **{f"index.{k}": v for k, v in index.items()}}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` returned, before the rows are written.

        Where rows are evicted they are all here then, with their initial value until they are written.

        Raises:
            StoreError: there are other rows here, or it is of another budget.
        """
        if self.cold is not None and self.cold.statistics()["rows"]:
            raise StoreError("the tier of the store holds rows already", fix="clear it first")
        if self.directory.evicts and "index.keys" in state:
            image = {k.removeprefix("index."): v for k, v in state.items() if k.startswith("index.")}
            self._restored = True
            self._epoch += 1  # slots that lookups remember are others now
            self.tracker = None  # it has not seen these rows come
            rows, slots, fresh = place(self.directory, image)
            self._initialize(rows.ids, rows.splits, fresh, slots, self.rows)
        self.updates, self.directory.step = (int(count) for count in state["counts"])
        gate = {k.removeprefix("gate."): v for k, v in state.items() if k.startswith("gate.")}
        if self.gate is not None and gate:
            self.gate.restore(gate)

    @property
    def bytes(self) -> int:
        """Bytes of rows, state, index (the tier's too) and admission counts in use."""
        gate = 0 if self.gate is None else self.gate.bytes
        cold = 0 if self.cold is None else self.cold.directory.bytes
        return self.directory.slots * self.row_bytes + self.directory.bytes + cold + gate

    def _keep(self, ids: Ids, splits: Offsets, slots: Inverse) -> None:
        for cut in self._cuts:
            cut.keep(ids, splits, slots)
        if self.tracker is not None:
            self.tracker.change(slots)
        if self.cold is not None:
            unmark(self.cold.clean, slots)

    def _keep_taken(self, since: int) -> None:
        followed = self._cuts or self.tracker is not None or self.cold is not None
        if not followed or self.directory.reassigned == since:
            return
        ids, tables, slots = self.directory.taken(since)
        for cut in self._cuts:
            cut.keep_taken(ids, tables, slots)
        gone = np.ones(len(ids), np.bool_) if self.cold is None else self._send(ids, tables, slots)
        if self.tracker is not None:
            self.tracker.lose(ids[gone], tables[gone], slots[gone])

    def _send(self, ids: Ids, tables: Inverse, slots: Inverse) -> Found:
        """Move rows without a slot to the tier, writing what it has not; return what has no room, bool[n]."""
        assert self.cold is not None
        targets = self.cold.place(ids, tables)
        stays = targets >= 0
        write = stays & ~marked(self.cold.clean, slots)
        unmark(self.cold.clean, slots)  # other rows will have them
        for cut in self._cuts:
            cut.keep_cold(ids[write], tables[write], targets[write])
        self.cold.write(targets[write], self.rows, slots[write])
        targets, moved = targets[stays], per_table(tables, stays, len(self.tables))
        self.cold.keep_only(targets, moved)
        self.cold.shift("evicted", -moved)
        if self.tracker is not None:
            self.tracker.move(slots[stays], self.tracker.cold, targets)
        return ~stays

    def _per_table(self, positions: Offsets, splits: Offsets) -> Offsets:
        return np.diff(np.searchsorted(positions, splits)).astype(np.int64)

    def _count(self, name: str, amounts: Offsets) -> None:
        self.counters[COUNTERS.index(name)] += amounts


def check_room(group: Group, ids: Ids, splits: Offsets, missing: Offsets | None = None) -> None:
    """Refuse ids for which a group that does not evict has no room.

    Args:
        group: that is asked.
        ids, splits: as in `Shard.lookup_group`.
        missing: positions of those without a row that are to get one; None: all without a row.

    Raises:
        StoreError: there is no room for all.
    """
    room = group.directory.room
    if group.directory.evicts or len(ids if missing is None else missing) <= room:
        return
    if missing is None:
        _, missing = group.directory.find(ids, splits, use=False)
    tables = np.searchsorted(splits, missing, side="right")
    wanted = len(np.unique(np.rec.fromarrays([tables, ids[missing]])))
    if wanted > room:
        raise StoreError(
            f"no room for {wanted} more rows: {int(group.directory.counters()['rows'].sum())} rows use "
            f"{group.bytes} bytes",
            why="the memory budget is used up; the request was refused and changed nothing",
            fix="set embedding.memory to more (without it ulimit -v counts), evict rows, or add shards",
        )
