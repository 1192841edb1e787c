"""Tables of equal dim, dtype and optimizer: one slab of rows, one index memory, one kernel call for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import ConfigError, StoreError
from satrap.optim import Optimizer
from satrap.schema import Table
from satrap.store import hashes
from satrap.store.admission import Admission, Gate
from satrap.store.kernels import index as index_kernels
from satrap.store.kernels import rows as row_kernels
from satrap.store.kernels.formats import Float32
from satrap.store.kernels.index import PAGE_BYTES, SEGMENT_PAGES, Index
from satrap.store.memory import Reserved, machine_bytes
from satrap.store.steps import Rows, plan
from satrap.store.types import Floats, Found, Ids, Inverse, Offsets, address

COUNTERS = ("rows", "created", "hits", "misses", "unadmitted", "dropped")
_MAX_SLOTS = 2**31 - 2
_NO_NOISE = np.uint64(0)
_GOLDEN = 0x9E3779B97F4A7C15


class Group:
    """Tables of equal (dim, dtype, optimizer): they share one slab of rows. Made by `Shard`, to be read.

    Methods take arrays that `Shard` has checked. `ids[splits[t]:splits[t + 1]]` belong to `tables[t]`.

    Attributes:
        index: position in `Shard.groups`.
        tables: names of its tables, in the order that `splits` follows.
        dim: weights per row.
        optimizer: the step of its rows.
        gate: decides which new ids get a row; None: all.
        updates: number of updates so far, of which the rounding of 16-bit weights is a function. Set it, with
            the rows, to go on as another group would have.
        counters: int64[len(COUNTERS), tables], see `Shard.statistics`.
    """

    def __init__(
        self,
        index: int,
        tables: Sequence[Table],
        optimizer: Optimizer,
        *,
        seed: int,
        memory: int | None,
        admission: Admission | None = None,
    ) -> None:
        self.index, self.optimizer = index, optimizer
        self.tables = tuple(table.name for table in tables)
        self.dim = tables[0].dim
        self.plan = plan(optimizer, self.dim, tables[0].dtype)
        self.row_bytes = self.plan.row_bytes
        self.counters = np.zeros((len(COUNTERS), len(tables)), np.int64)
        self._memory = memory
        self._seeds = np.array([hashes.row_seed(seed, name) for name in self.tables], np.uint64)
        self._scales = np.array([table.initial_scale for table in tables], np.float32)
        self._noise = hashes.row_seed(seed, "")
        self.updates = 0
        self.gate = None if admission is None or admission.open else Gate(admission, seed, self.tables)
        if memory is not None and self.gate is not None and 2 * self.gate.bytes > memory:
            raise ConfigError(
                f"the counts of admission take {self.gate.bytes} bytes of a group's budget of {memory}",
                why="less than half would be left for rows",
                fix="give admission less memory, or the tables more",
            )
        self._tick = 0
        self._reserve()

    def clear(self) -> None:
        """Forget every row and give their memory back; uses counted for admission are forgotten too."""
        if self.gate is not None:
            self.gate.clear()
        self.counters[COUNTERS.index("rows")] = 0
        self._reserve()

    def _reserve(self) -> None:
        self._used = 0
        stride = self.plan.stride
        self._slab = Reserved(machine_bytes())
        self._limit = min(_MAX_SLOTS, self._slab.size // stride - 16)
        scalars = np.empty(0, np.float32)
        if self.plan.layout.scalar:
            scalars = Reserved(4 * self._limit).array(np.float32)
            self._limit = min(self._limit, len(scalars))
        self.rows = Rows(np.uint64(self._slab.address), np.uint64(stride), np.uint64(self.dim), scalars)
        self._pages = Reserved(machine_bytes())
        self._index = self._make_index(self._pages.size // PAGE_BYTES)
        if not index_kernels.open_tables(self._index, len(self.tables)):
            raise StoreError(f"no memory for the index of {len(self.tables)} tables")

    def _make_index(self, pages: int) -> Index:
        segments = pages // (SEGMENT_PAGES // 2) + 4 * len(self.tables) + 64
        directory = 16 * segments
        counts = np.zeros(index_kernels.COUNTS, np.int64)
        counts[index_kernels.PAGES_LIMIT] = pages
        counts[index_kernels.SEGMENTS_LIMIT] = segments
        counts[index_kernels.DIRECTORY_LIMIT] = directory
        arrays: dict[str, npt.NDArray[Any]] = {
            "pages": _lazy(segments * SEGMENT_PAGES),
            "segment_pages": _lazy(segments),
            "segment_used": _lazy(segments),
            "segment_depth": _lazy(segments),
            "directory": _lazy(directory),
            "free_pages": _lazy(pages),
            "roots": np.zeros(len(self.tables), np.int64),
            "depths": np.zeros(len(self.tables), np.int64),
            "salts": np.array([hashes.index_salt(name) for name in self.tables], np.uint64),
            "counts": counts,
        }
        self._arrays, self._counts = arrays, counts  # the kernels see addresses only: keep the memory
        addresses = {name: address(array) for name, array in arrays.items()}
        return Index(entries=np.uint64(self._pages.address), **addresses)

    def find(self, ids: Ids, splits: Offsets, *, touch: bool) -> tuple[Inverse, Offsets]:
        """Return (slots int32[n], -1 without a row; positions int64[m] of those, ascending)."""
        n = len(ids)
        slots, missing = np.empty(n, np.int32), np.empty(n, np.int64)
        scratch = np.empty(n + index_kernels.AHEAD, np.uint64)
        tick = np.uint32(self._tick if touch else 0)
        left = index_kernels.find(self._index, ids, splits, tick, slots, missing, scratch)
        return slots, missing[:left]

    def lookup(self, ids: Ids, splits: Offsets, out: Floats) -> None:
        """Write the rows of the ids, creating those that are new."""
        self._advance()
        slots, missing = self.find(ids, splits, touch=True)
        self._count("hits", np.diff(splits))
        if len(missing):
            absent = self._per_table(missing, splits)
            self._count("hits", -absent)
            self._count("misses", absent)
            if self.gate is not None:
                missing = self._admit(ids, splits, missing, out)
            self.create(ids, splits, missing, slots)
        self._gather(slots, out)

    def _admit(self, ids: Ids, splits: Offsets, missing: Offsets, out: Floats) -> Offsets:
        """Return the positions of the missing ids that get a row; write initial rows for the others."""
        assert self.gate is not None
        admitted = self.gate.admit(ids, splits, missing)
        waiting = missing[~admitted]
        self._count("unadmitted", self._per_table(waiting, splits))
        self._write_initial(ids, splits, waiting, out)
        return missing[admitted]

    def create(self, ids: Ids, splits: Offsets, missing: Offsets, slots: Inverse) -> None:
        """Give each missing id a slot and its initial row; fills in `slots`.

        Raises:
            StoreError: the memory budget or the machine's memory is used up; rows up to there were created.
        """
        limit, before = self._room(), self._used
        self._used = row_kernels.create(
            self._index, ids, splits, missing, np.uint32(self._tick), slots, before, limit
        )
        failed = slots[missing] < 0
        done = missing[~failed] if failed.any() else missing
        # an id that occurs twice has one slot: keep the first position of each
        fresh = (
            done[np.unique(slots[done], return_index=True)[1]] if self._used - before < len(done) else done
        )
        self._initialize(ids, splits, np.sort(fresh), slots)
        created = self._per_table(fresh, splits)
        self._count("created", created)
        self._count("rows", created)
        if failed.any():
            raise StoreError(
                f"no room for more rows: {self._used} rows use {self.bytes} bytes",
                why=f"{int(failed.sum())} ids of the request have no row",
                fix="give the store a larger memory budget, or use more shards",
            )

    def _initialize(self, ids: Ids, splits: Offsets, missing: Offsets, slots: Inverse) -> None:
        row_kernels.initialize(
            self.plan.format(_NO_NOISE),
            self.rows.base,
            self.rows.stride,
            self.rows.scalars,
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
        slots, missing = self.find(ids, splits, touch=False)
        self._gather(slots, out)
        self._write_initial(ids, splits, missing, out)
        return slots >= 0

    def _write_initial(self, ids: Ids, splits: Offsets, positions: Offsets, out: Floats) -> None:
        fmt, seeds, scales = self.plan.format(_NO_NOISE), self._seeds, self._scales
        dim, step = self.rows.dim, np.uint64(out.strides[0])
        row_kernels.initial_rows(fmt, ids, splits, positions, seeds, scales, dim, address(out), step)

    def update(self, ids: Ids, splits: Offsets, gradients: Floats, lr_scale: float) -> None:
        """Take one optimizer step per id that has a row; the others are counted as dropped."""
        slots, missing = self.find(ids, splits, touch=True)
        if len(missing):
            self._count("dropped", self._per_table(missing, splits))
        self.updates += 1
        noise = np.uint64((int(self._noise) + self.updates * _GOLDEN) % 2**64)
        self.plan.step(self.rows, ids, slots, address(gradients), lr_scale, noise)

    def read(self, slots: Inverse) -> tuple[Floats, Floats]:
        """Return (weights float32[n, dim], state float32[n, width]) of slots."""
        weights = np.empty((len(slots), self.dim), np.float32)
        self._gather(slots, weights)
        state = np.empty((len(slots), self.plan.layout.state), np.float32)
        start, stride = self.rows.base + np.uint64(self.plan.weights), self.rows.stride
        floats, step = np.uint64(self.plan.layout.state), np.uint64(state.strides[0])
        row_kernels.gather(Float32(_NO_NOISE), start, stride, slots, floats, address(state), step)
        if self.plan.layout.scalar:
            state = np.concatenate([state, self.rows.scalars[slots][:, None]], axis=1)
        return weights, state

    def write(self, ids: Ids, splits: Offsets, weights: Floats, state: Floats) -> None:
        """Insert or overwrite rows; ids are distinct inside each table."""
        self._advance()
        slots, missing = self.find(ids, splits, touch=True)
        if len(missing):
            self.create(ids, splits, missing, slots)
        inner = np.ascontiguousarray(state[:, : self.plan.layout.state])
        row_kernels.scatter(
            self.plan.format(self._noise),
            self.rows.base,
            self.rows.stride,
            ids,
            slots,
            address(weights),
            self.rows.dim,
            address(inner),
            np.uint64(self.plan.layout.state),
        )
        if self.plan.layout.scalar:
            self.rows.scalars[slots] = state[:, -1]

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return, by name, what the group needs besides its rows to go on exactly; for a snapshot."""
        gate = {} if self.gate is None else {f"gate.{k}": v for k, v in self.gate.state().items()}
        return {"counts": np.array([self.updates, self._tick], np.int64), **gate}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take over what `state` returned, after the rows were written."""
        self.updates, self._tick = (int(count) for count in state["counts"])
        if self.gate is not None:
            self.gate.restore({k.removeprefix("gate."): v for k, v in state.items() if k.startswith("gate.")})

    def ranges(self, t: int, chunk_rows: int) -> Iterator[tuple[int, int]]:
        """Yield (first, last) bucket of consecutive ranges of about `chunk_rows` rows of table t."""
        rows = max(1, int(self.counters[0, t]))
        step = max(1, min(hashes.BUCKETS, hashes.BUCKETS * chunk_rows // rows))
        for first in range(0, hashes.BUCKETS, step):
            yield first, min(first + step, hashes.BUCKETS) - 1

    def collect(self, t: int, first: int, last: int) -> tuple[Ids, Inverse, Inverse]:
        """Return (ids, slots, buckets) of the rows of table t in buckets first..last, by bucket then id."""
        room = 1024
        while True:
            ids = np.empty(room, np.uint64)
            slots, buckets = np.empty(room, np.int32), np.empty(room, np.int32)
            found = index_kernels.collect(self._index, t, first, last, ids, slots, buckets)
            if found <= room:
                order = np.lexsort((ids[:found], buckets[:found]))
                return ids[order], slots[order], buckets[order]
            room = found

    @property
    def bytes(self) -> int:
        """Bytes of rows, state, index and admission counts in use."""
        counts = self._counts
        pages = int(counts[index_kernels.PAGES_USED] - counts[index_kernels.PAGES_FREE])
        counts_bytes = 0 if self.gate is None else self.gate.bytes
        return self._used * self.row_bytes + pages * PAGE_BYTES + counts_bytes

    @property
    def load_factor(self) -> float:
        """Share of the index's entries that are in use."""
        counts = self._counts
        pages = int(counts[index_kernels.PAGES_USED] - counts[index_kernels.PAGES_FREE])
        return int(self.counters[0].sum()) / (pages * index_kernels.ENTRIES_PER_PAGE)

    def _advance(self) -> None:
        self._tick = self._tick % 0xFFFFFFFE + 1

    def _room(self) -> int:
        if self._memory is None:
            return self._limit
        return min(self._limit, self._used + max(0, self._memory - self.bytes) // (self.row_bytes + 24))

    def _gather(self, slots: Inverse, out: Floats) -> None:
        fmt, base, stride, dim = self.plan.format(_NO_NOISE), self.rows.base, self.rows.stride, self.rows.dim
        row_kernels.gather(fmt, base, stride, slots, dim, address(out), np.uint64(out.strides[0]))

    def _per_table(self, positions: Offsets, splits: Offsets) -> Offsets:
        return np.diff(np.searchsorted(positions, splits)).astype(np.int64)

    def _count(self, name: str, amounts: Offsets) -> None:
        self.counters[COUNTERS.index(name)] += amounts


def _lazy(count: int) -> Inverse:
    reserved = Reserved(4 * count, huge=False)
    if reserved.size < 4 * count:
        raise StoreError("the system grants too little address space", fix="raise ulimit -v")
    return reserved.array(np.int32, count)
