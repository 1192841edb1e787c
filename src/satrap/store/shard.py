"""The embedding store of one process."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from satrap.errors import ConfigError, SatrapError, StoreError
from satrap.optim import Optimizer
from satrap.retention import Admission, Eviction
from satrap.runtime.arguments import checked
from satrap.runtime.formatting import size
from satrap.runtime.machine_limits import machine_bytes
from satrap.schema import Table
from satrap.settings.store import StoreConfig
from satrap.store.arrays import Floats, Found, Ids, Offsets, check_rows, plain
from satrap.store.batch_pooling import distinct, segment_sum
from satrap.store.buckets import mask_of
from satrap.store.group import GroupStore, check_room
from satrap.store.group_requests import GroupRequests
from satrap.store.grouping import shares
from satrap.store.hashes import BUCKETS
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_chunk import RowChunk
from satrap.store.snapshot import moved_buckets
from satrap.store.snapshot.changes import Changes
from satrap.store.statistics import Statistics, summed
from satrap.store.tier import Tier
from satrap.store.tier.prefetch import TierPrefetcher


@checked()
class Shard(GroupRequests):
    """The rows of many tables in one process: created on first use, read, and trained.

    ```python
    users = satrap.Table("user", dim=16, optimizer=satrap.optim.Adagrad(lr=0.01))
    shard = satrap.store.Shard([users], seed=7)
    rows = shard.lookup("user", ids)         # ids uint64[n] -> float32[n, 16]; new ids get their initial row
    shard.update("user", ids, gradients)     # duplicates are summed, then one step per unique id
    rows, found = shard.peek("user", ids)    # never creates a row, never counts as a use
    ```

    Tables of equal dim, dtype, optimizer, admission and eviction form a *group*; a table with its own memory
    forms a group alone. The methods of `GroupRequests` serve all tables of a group at once. A row's first
    value is a pure function of (seed, table name, id). Calls from several threads are served one after
    another. A refused request changes nothing.

    Args:
        tables: tables with unique names. Without tables, the store stays empty.
        seed: seed of the initial rows, any integer.
        optimizer: for tables without one.
        threads: number of threads that share a large request (above about 16,000 ids); None: the cores of
            this process, at most 4. The result does not depend on it, bit for bit.
        memory: budget in bytes for everything the rows need: weights, state, index (also the tier's),
            bookkeeping and rounding to pages. Tables with their own memory take it from this budget; groups
            share the rest so that all tables can have equally many rows. None: the machine's memory (its
            container's, if that has less), or a third of the remaining address space if that is limited
            (`ulimit -v`, `vm.overcommit_memory` 2).
        admission: which new ids get a row, in tables without their own setting; None: all.
        eviction: which rows are evicted once the budget is used up, in tables without their own setting;
            None: none, and new ids are refused. Without a budget only the policy "ttl" has an effect.
        tier: file that keeps evicted rows so that they can return, or host memory behind a GPU; None: evicted
            rows are lost. Tables that do not evict rows have no part of the tier.
        device: where rows and their optimizer state are: "cpu", or a GPU such as "cuda". On a GPU, `memory`
            is the device's, half of its free memory by default, and lookups return tensors there.

    Attributes:
        changes: tracks rows that change or are removed; off until first used, see `Changes`.
        weight_changes: the same for another reader, for which a lookup is not a change.
        ahead: prefetches rows of the tier before they are looked up, see `TierPrefetcher`.

    Raises:
        ConfigError: a repeated name, a table without optimizer, an invalid budget, tables whose own memory
            exceeds the store's, eviction that needs a budget, or a tier or device that cannot be used.
        StoreError: the system grants no memory, or no file for the tier.
    """

    def __init__(
        self,
        tables: Sequence[Table],
        *,
        seed: int = 0,
        optimizer: Optimizer | None = None,
        threads: int | None = None,
        memory: int | None = None,
        admission: Admission | None = None,
        eviction: Eviction | None = None,
        tier: Tier | None = None,
        device: str = "cpu",
    ) -> None:
        memory = _granted(device, memory, tier)
        parts = shares(
            tables, optimizer=optimizer, memory=memory, admission=admission, eviction=eviction, tier=tier
        )
        self.seed = seed
        self._another = partial(
            Shard, tables, seed=seed, optimizer=optimizer, threads=threads, admission=admission
        )  # its rows are in RAM
        self._workers = ThreadPool(threads)
        groups: list[GroupStore] = []
        try:
            for share in parts:
                groups.append(GroupStore(len(groups), share, seed=seed, workers=self._workers, device=device))
        except SatrapError:
            for group in groups:
                group.close()
            raise
        super().__init__(groups)
        self._where = {name: (g.index, t) for g in self.groups for t, name in enumerate(g.tables)}
        self.changes = Changes(self.groups, self._lock, uses=True)
        self.weight_changes = Changes(self.groups, self._lock, uses=False)
        self.ahead = TierPrefetcher(self.groups, self._lock)

    def __repr__(self) -> str:
        if self._closed:
            return "Shard(closed)"
        statistics = self.statistics()
        return f"Shard(tables={list(self._where)}, rows={statistics.rows}, memory={size(statistics.bytes)})"

    def group_of(self, table: str) -> tuple[int, int]:
        """Return (index of the table's group, position of the table in it).

        Raises:
            StoreError: unknown table.
        """
        self._open()
        if table not in self._where:
            raise StoreError(
                f"the store has no table {table!r}", fix=f"tables: {', '.join(self._where) or 'none'}"
            )
        return self._where[table]

    def lookup(self, table: str, ids: Ids) -> Floats:
        """Return the rows float32[n, dim] of ids uint64[n] (duplicates allowed); new ids get a row.

        An id that is not admitted yet reads its initial row.

        Raises:
            StoreError: wrong dtype or shape, unknown table, or no room for a new row.
        """
        g, splits, ids = self._one_table(table, ids)
        if self.groups[g].gate is None:
            return self.lookup_group(g, ids, splits)
        unique, splits, inverse = distinct(ids, splits)  # a request is one use of an id, even if repeated
        return self.lookup_group(g, unique, splits)[inverse]

    def peek(self, table: str, ids: Ids) -> tuple[Floats, Found]:
        """Return (rows float32[n, dim], found bool[n]) without creating rows or counting a use.

        An id without a row reads its initial row.

        Raises:
            StoreError: wrong dtype or shape, or unknown table.
        """
        g, splits, ids = self._one_table(table, ids)
        return self.peek_group(g, ids, splits)

    def update(self, table: str, ids: Ids, gradients: Floats, *, lr_scale: float = 1.0) -> None:
        """Sum the gradients of equal ids, then take one optimizer step per unique id.

        The gradient of an id without a row is lost and counted as dropped.

        Args:
            table: name of the table.
            ids: uint64[n], duplicates allowed.
            gradients: float32[n, dim].
            lr_scale: factor on the optimizer's lr for this update.

        Raises:
            StoreError: wrong dtype or shape, unknown table, or gradients that are NaN or infinite.
        """
        g, splits, ids = self._one_table(table, ids)
        gradients = check_rows(gradients, len(ids), self.groups[g].dim, "gradients")
        unique, splits, inverse = distinct(ids, splits)
        self.update_group(g, unique, splits, segment_sum(gradients, inverse, len(unique)), lr_scale=lr_scale)

    def export(
        self, table: str, *, buckets: Iterable[int] | None = None, chunk_rows: int = 16384
    ) -> Iterator[RowChunk]:
        """Yield the current rows of a table by bucket, then id; equal contents yield equal bytes.

        Args:
            table: name of the table.
            buckets: only rows of these buckets (0..4095); default all.
            chunk_rows: most rows per chunk. Memory in use: two chunks, and copies of rows that change before
                they are read, as for `snapshot`.

        Raises:
            StoreError: unknown table or bucket, chunk_rows < 1, or a store cleared or closed while exporting.
        """
        g, t = self.group_of(table)
        if chunk_rows < 1:
            raise StoreError(f"chunk_rows must be >= 1, got {chunk_rows}")
        wanted = sorted(range(BUCKETS) if buckets is None else set(buckets))
        for bucket in wanted[:1] + wanted[-1:]:
            if not 0 <= bucket < BUCKETS:
                raise StoreError(f"bucket {bucket} does not exist: buckets are 0..{BUCKETS - 1}")
        with self._lock:
            cut = self.groups[g].cut([t])
        return cut.every_chunk(chunk_rows, self._lock, wanted)

    def snapshot(
        self, *, buckets: Sequence[int] = range(BUCKETS), chunk_rows: int = 16384
    ) -> Generator[RowChunk, None, None]:
        """Yield the current rows of all tables, each table as `export` does: one consistent cut.

        `buckets`: only rows of these fixed buckets (0..4095), default all.

        Lookups and updates continue while the rows are read; each waits for at most one chunk. A row that
        changes before it has been read is copied first. So until the iterator is exhausted or dropped, the
        store needs memory for the copies (not part of the budget), and changes take up to twice as long.
        Copies are limited to a quarter of a group's rows, or 256 MiB if that is more; beyond that, requests
        wait for the reader. If the reader stalls for 10 seconds, it gets an error and the requests continue.

        With a tier of more than 256 MiB on disk, all rows are sorted in a second file there before the first
        chunk: a record and 8 bytes per row.

        Raises:
            StoreError: chunk_rows < 1; the store was cleared or closed while rows were read; too many rows
                changed before they were read; the disk has no space to sort the rows.
        """
        self._open()
        if chunk_rows < 1:
            raise StoreError(f"chunk_rows must be >= 1, got {chunk_rows}")
        with self._lock:
            cuts = [g.cut(list(range(len(g.tables)))) for g in self.groups]
        return (chunk for cut in cuts for chunk in cut.every_chunk(chunk_rows, self._lock, buckets))

    def load(self, table: str, chunk: RowChunk) -> None:
        """Insert or overwrite the rows of a chunk, with their optimizer state.

        A table that evicts, and does not have room for all rows, keeps the last ones of the chunk.

        Raises:
            StoreError: wrong dtype or shape, a repeated id, unknown table, or no room for a new row.
        """
        g, splits, ids = self._one_table(table, chunk.ids)
        if len(distinct(ids, splits)[0]) != len(ids):
            raise StoreError("the chunk has duplicate ids", where=f"table {table!r}")
        if len(ids) < 2:
            self.load_group(g, ids, splits, chunk.weights, chunk.state)
        elif self._write(g, ids, splits, chunk.weights, chunk.state):
            middle = len(ids) // 2  # rows of one request do not evict each other
            self.load(table, chunk.pick(slice(middle)))
            self.load(table, chunk.pick(slice(middle, None)))

    def statistics(self) -> Statistics:
        """Return the store's counters; rows in the tier count as rows, and as hits."""
        with self._lock:
            tables = {name: counts for g in self.groups for name, counts in g.statistics().items()}
            return Statistics(
                rows=sum(counts.rows for counts in tables.values()),
                bytes=sum(g.bytes for g in self.groups),
                refused=self._refused,
                load_factor=tuple(g.directory.load_factor for g in self.groups),
                tables=tables,
                tier=summed(g.backend.slower() for g in self.groups),
            )

    def remove(self, table: str, ids: Ids) -> None:
        """Forget the rows of unique ids uint64[n]; ids without a row are ignored.

        Raises:
            StoreError: wrong dtype or shape, unknown table, or the store has a tier; nothing has changed.
        """
        g, splits, ids = self._one_table(table, ids)
        group, t = self.groups[g], self.group_of(table)[1]
        with self._lock:
            slots = group.backend.find(ids, splits).slots
            group.backend.discard(t, ids[slots >= 0], slots[slots >= 0])

    def another(self) -> Shard:
        """Return an empty store of the same tables and seed, without budget and tier."""
        return self._another()

    def discard(self, buckets: Sequence[int]) -> int:
        """Drop the rows of some fixed buckets, because another store has them now; return their number.

        Changes are no longer tracked: the next `Changes.take` is full, and no delta lists these rows as
        deleted. Their memory is reused, but stays with the process.

        Raises:
            StoreError: the store has a tier; nothing has changed.
        """
        self._open()
        mask = mask_of(buckets)
        with self._lock:
            if any(len(group.backend.parts) > 1 for group in self.groups):
                raise StoreError("a store with a tier cannot drop individual rows")
            self.changes.stop()
            self.weight_changes.stop()
            return sum(moved_buckets.discard(group, mask) for group in self.groups)

    def rows_by_bucket(self, buckets: Sequence[int] = range(BUCKETS)) -> Offsets:
        """Return the number of rows in memory by group and fixed bucket, int64[groups, 4096].

        Args:
            buckets: count the rows of these buckets (default all); the others are 0. The time grows with the
                number of rows in them.
        """
        self._open()
        wanted = mask_of(buckets)
        with self._lock:
            counts = [moved_buckets.rows_by_bucket(group, wanted) for group in self.groups]
            return np.stack(counts) if counts else np.zeros((0, BUCKETS), np.int64)

    def clear(self) -> None:
        """Forget every row and its state; all counters but `rows` continue."""
        self._open()
        with self._lock:
            for group in self.groups:
                group.clear()

    def close(self) -> None:
        """Free all memory; later requests raise `StoreError`. Closing twice is fine."""
        self.ahead.close()
        with self._lock:
            for group in self.groups:
                group.close()
            self.groups, self._closed = (), True
            self.changes = Changes((), self._lock, uses=True)
            self.weight_changes = Changes((), self._lock, uses=False)
            self._where = {}
            self._workers.close()

    def _one_table(self, table: str, ids: Ids) -> tuple[int, Offsets, Ids]:
        g, t = self.group_of(table)
        ids = plain(ids, np.uint64, 1, "ids")
        splits = np.zeros(len(self.groups[g].tables) + 1, np.int64)
        splits[t + 1 :] = len(ids)
        return g, splits, ids


def _granted(device: str, memory: int | None, tier: Tier | None) -> int | None:
    """Return the memory of rows on a device: `memory`, on a GPU by default half of its free memory."""
    if tier is not None and tier.in_memory:
        _check_host_memory(device, tier)
    if device == "cpu":
        return memory
    from satrap.store.gpu.device import row_memory  # it imports torch, which shard servers do not need

    return row_memory(device, memory)


def _check_host_memory(device: str, tier: Tier) -> None:
    if device == "cpu":
        raise ConfigError(
            "a tier in host memory needs rows on a GPU",
            where=f"embedding.tier: {{path: {tier.path}}}",
            fix="set embedding.device to cuda, or the path of the tier to a folder on a fast disk",
        )
    if tier.size > (here := machine_bytes()):
        raise ConfigError(
            f"a tier of {size(tier.size)} in host memory does not fit in this machine's {size(here)}",
            fix="reduce embedding.tier.size, or give the tier a folder on a fast disk",
        )


def check_lookups(shard: Shard, requests: Iterable[tuple[int, Ids, Offsets]]) -> None:
    """Raise the error that `Shard.lookup_group` would raise for any request, before one creates a row.

    Groups with admission are not checked for room.

    Args:
        shard: the store.
        requests: group, ids and splits of each request, as in `Shard.lookup_group`.

    Raises:
        StoreError: wrong dtype or shape, unknown group, or no room for a new row.
    """
    checked = [shard._request(*request) for request in requests]
    with shard._lock:
        for group, ids, splits in checked:
            if group.gate is None:
                check_room(group, ids, splits)


@checked()
def open_store(config: StoreConfig, tables: Sequence[Table]) -> Shard:
    """Return an empty store with these tables; raises as `Shard` does."""
    return Shard(
        tables,
        seed=config.seed,
        memory=config.memory,
        admission=config.admission,
        eviction=config.eviction,
        tier=config.tier,
        device=config.device,
    )
