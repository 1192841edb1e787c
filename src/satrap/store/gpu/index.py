"""The slot of each id of a table group, found and assigned on the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.errors import StoreError
from satrap.retention import Eviction
from satrap.store.arrays import Ids, Inverse
from satrap.store.gpu import layout
from satrap.store.gpu.layout import Buckets, Expired, Found, Inserted, Lists, Queue
from satrap.store.gpu.order import Distinct, blocks
from satrap.store.hashes import BUCKETS, canonical_order, index_salt

LARGEST_LOAD = 0.8
"""Rows per entry at the limit. The README has the shares of ids without a place at higher loads."""
SEGMENT = 1024
"""Most buckets of a segment. Large segments fill evenly; ids are inserted in many segments in parallel."""
MOST_ROWS = int(LARGEST_LOAD * (2**31 - 2**16))
"""Most rows of an index: entries are numbered in 31 bits."""
LARGEST_LOG = 1 << 18
_POLICIES = {"lru": layout.RECENT, "lfu": layout.FREQUENT, "ttl": layout.RECENT}
_INVERSE = pow(0xD6E8FEB86659FD93, -1, 1 << 64)
"""Undoes the factor of `store.kernels.hashing.mix`."""
_KEYS, _SWEPT, _COUNTED = 256, 1024, 256
"""In a program: keys that `find` probes, entries that `expire` checks, keys that `tally` counts."""
_PARTS = 64
"""Most programs of `tally` for the same tables; each takes eight blocks of keys or more."""


class Rows(NamedTuple):
    """Rows on the host: tables int32[n], ids uint64[n], slots int32[n], notes uint32[n]."""

    tables: Inverse
    ids: Ids
    slots: Inverse
    notes: npt.NDArray[np.uint32]


class _Request:
    """Memory of requests of at most n positions, which each of them uses again."""

    def __init__(self, n: int, tables: int, device: torch.device) -> None:
        def ints(count: int = n, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        owners, programs = n if tables > 1 else 1, blocks(n, layout.CHUNK)
        self.results = Found(ints(), ints(dtype=torch.int8), ints(owners, torch.int16))
        self.sums, self.queue = ints(blocks(n, _KEYS)), Queue(ints(), ints(1))
        gone = ints(dtype=torch.int64), ints(owners, torch.int16)
        self.work = Inserted(ints(), ints(), *gone, ints(2 * programs), ints(programs), ints(programs))


class _Hand:
    """Memory of the hand that drops expired rows: in each request, from the next `window` buckets."""

    def __init__(self, buckets: int, ttl: int, log: int, device: torch.device) -> None:
        self.window = min(buckets, 4 * buckets // ttl + 1)  # once around in a quarter of ttl
        self.programs = blocks(self.window * layout.ENTRIES, _SWEPT)
        most = min(self.window * layout.ENTRIES, log // 2)
        sums, dropped = (torch.zeros(n, dtype=torch.int32, device=device) for n in (self.programs, 1))
        self.expired = Expired(sums, dropped, torch.zeros(most, dtype=torch.int16, device=device))
        reasons = torch.full((most,), layout.EVICTED, dtype=torch.int8, device=device)
        self.results = Found(dropped, reasons, self.expired.victims)


class DeviceIndex:
    """Slots of the ids of one table group, in device memory.

    A request is `find(distinct, use=True)`, then `insert` of all or some of the missing ids. The host reads
    no count, so a CUDA graph can capture a request. Results do not depend on timing, bit for bit.

    Args:
        tables: names.
        rows: most rows.
        eviction: which rows leave if slots or buckets are full; None: ids without a place are refused.
        protected: rows used in this many requests before the present one are not evicted either.
        device: where the index is.

    Attributes:
        rows: most rows; slots are 0..rows - 1.
        table: buckets and state; `layout` names the words of `table.state`.
        lists: free slots and the log.
        tallies: int64[tables, COUNTERS], the counters of each table.
        generation: changes when memory moves; graphs captured before are no longer valid.

    Raises:
        StoreError: the number of rows is out of range.
    """

    def __init__(
        self,
        tables: Sequence[str],
        rows: int,
        eviction: Eviction | None = None,
        *,
        protected: int = 0,
        device: torch.device | str = "cuda",
    ) -> None:
        if not 1 <= rows <= MOST_ROWS:
            raise StoreError(f"an index on a device holds 1 to {MOST_ROWS} rows, not {rows}")
        self._tables, self._many, self._device = len(tables), len(tables) > 1, torch.device(device)
        self._salts = np.array([index_salt(name) for name in tables], np.uint64)
        self._policy = layout.NONE if eviction is None else _POLICIES[eviction.policy]
        self._ttl = 0 if eviction is None else eviction.ttl or 0
        self._requests: dict[int, _Request] = {}
        self.rows, self.generation = rows, 0
        self._tile = 16 if self._many else 1
        self._columns = blocks(self._tables, self._tile) * self._tile
        self.tallies = self._memory(torch.int64, self._tables, len(layout.COUNTERS))
        self._partial = self._memory(torch.int32, _PARTS * 4 * self._columns)
        self.lists = Lists(
            self._memory(torch.int32, max(64, rows // 8) if self._ttl else 1),
            self._memory(torch.int64, 1 if eviction is None else max(64, min(LARGEST_LOG, rows // 16)), 2),
        )
        state = self._memory(torch.int64, layout.WORDS)
        state[layout.LIMIT], state[layout.PROTECTED] = rows, protected
        state[layout.LOG], state[layout.FREE_LIMIT] = len(self.lists.log), len(self.lists.free)
        state[layout.TTL] = max(self._ttl, protected)
        self._use(self._empty(rows, state))

    def _memory(self, dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self._device)

    def _empty(self, rows: int, state: Tensor) -> Buckets:
        """Return an index for `rows` rows without entries; `state` gets its shape."""
        buckets = max(2, math.ceil(rows / LARGEST_LOAD / layout.ENTRIES))
        width = min(buckets, SEGMENT)
        segments = -(-buckets // width)
        state[layout.SEGMENTS], state[layout.WIDTH] = segments, width
        words = self._memory(torch.int64, segments * width, 2 * layout.ENTRIES)
        owners = self._memory(torch.int16, len(words) if self._many else 1, layout.ENTRIES)
        return Buckets(words, words.view(torch.int32), owners, state)

    def _use(self, index: Buckets) -> None:
        """Replace the index."""
        if self._ttl:
            self._hand = _Hand(len(index.words), self._ttl, len(self.lists.log), self._device)
        self.table, self.generation = index, self.generation + 1

    def _of(self, capacity: int) -> _Request:
        """Return the memory of requests of this capacity."""
        if capacity not in self._requests:
            self._requests[capacity] = _Request(capacity, self._tables, self._device)
        return self._requests[capacity]

    def find(self, distinct: Distinct, *, use: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Return (slots int32[n], -1: no row; missing runs int32[n], ascending; their number int32[1]).

        With `use`, this begins a request that uses the rows: it counts for eviction, and `insert` follows,
        also if nothing is to be inserted. The next call uses the memory of the results again.
        """
        from satrap.store.gpu.kernels import counters

        if use:
            counters.advance[(1,)](self.table, num_warps=1)
            if self._ttl:
                self._expire()
        request = self._probe(distinct, self._policy if use else layout.FIND)
        return request.results.slots, *request.queue

    def _probe(self, distinct: Distinct, mode: int) -> _Request:
        from satrap.store.gpu.kernels import index as kernels

        request, n = self._of(distinct.capacity), distinct.capacity
        results, sums = request.results, request.sums
        fixed = {"MODE": mode, "TABLES": self._many, "BLOCK": _KEYS, "num_warps": 8}
        kernels.find[(blocks(n, _KEYS),)](distinct, self.table, results, sums, **fixed)
        listed = {"BLOCK": 4 * _KEYS, "PARTS": 4}
        kernels.list_missing[(blocks(n, 4 * _KEYS),)](distinct, results, sums, request.queue, **listed)
        return request

    def _expire(self) -> None:
        """Drop some of the rows that were not used for more than ttl requests."""
        from satrap.store.gpu.kernels import expiry

        hand, index = self._hand, self.table
        grid, out = (hand.programs,), hand.expired
        expiry.count_expired[grid](index, out, hand.window, BLOCK=_SWEPT)
        expiry.expire[grid](index, self.lists, out, hand.window, TABLES=self._many, BLOCK=_SWEPT)
        self._count(hand.results, out.victims, out.dropped)
        expiry.end_expiry[(1,)](index, out, hand.window, num_warps=1)

    def insert(self, distinct: Distinct, missing: Tensor, misses: Tensor) -> Tensor:
        """Give missing ids a slot, after `find` with `use`; return int32[n], the slots of all ids, -1: none.

        Args:
            distinct: as given to `find`.
            missing, misses: int32[n], int32[1]: from `find`, or some of these runs, ascending.

        Missing ids that have a slot afterwards are new. An id is refused if its buckets are full, no row of
        them can move, and none may be evicted; it keeps slot -1. `refused` counts them: read it before the
        rows are used.
        """
        from satrap.store.gpu.kernels import insert as kernels

        request, queue, index = self._of(distinct.capacity), Queue(missing, misses), self.table
        results, work = request.results, request.work
        grid = (blocks(distinct.capacity, layout.CHUNK),)
        fixed = {"POLICY": self._policy, "TABLES": self._many, "BLOCK": layout.CHUNK}
        kernels.insert[grid](queue, distinct, index, work, **fixed, num_warps=8)
        kernels.settle[grid](queue, index, work, self.lists, results, **fixed)
        self._count(results, distinct.tables, distinct.runs)
        kernels.end_insert[(1,)](queue, index, work, BLOCK=layout.CHUNK)
        slots: Tensor = results.slots
        return slots

    def _count(self, results: Found, tables: Tensor, count: Tensor) -> None:
        """Add what happened to ids to the counters of their tables."""
        from satrap.store.gpu.kernels import counters

        columns, tile, partial = self._columns, self._tile, self._partial
        parts = min(_PARTS, blocks(len(results.status), 8 * _COUNTED))
        fixed = {"TABLES": self._many, "TILE": tile, "BLOCK": _COUNTED}
        counters.tally[(parts, columns // tile)](results, tables, count, partial, columns, **fixed)
        counters.add_up[(columns // tile,)](partial, self.tallies, self._tables, columns, parts, TILE=tile)

    @property
    def refused(self) -> int:
        """Number of ids of the last `insert` without a place."""
        return int(self.table.state[layout.REFUSED])

    @property
    def reassigned(self) -> int:
        """Number of slots taken from their rows so far, except by `remove`."""
        return int(self.table.state[layout.LOGGED])

    def taken(self, since: int) -> Rows:
        """Return the rows that lost their slot since `reassigned` was `since`, in that order; notes are 0.

        Raises:
            StoreError: they are more than the log holds.
        """
        now, lines = self.reassigned, len(self.lists.log)
        if now - since > lines:
            raise StoreError(f"{now - since} rows lost their slot, and the log names the last {lines}")
        log = self.lists.log[torch.arange(since, now, device=self._device) % lines].cpu().numpy()
        tables, slots = (log[:, 1] >> 32).astype(np.int32), log[:, 1].astype(np.int32)
        return Rows(tables, self._ids(log[:, 0], tables), slots, np.zeros(len(log), np.uint32))

    def counters(self) -> dict[str, npt.NDArray[np.int64]]:
        """Return int64[tables] each: rows, created, evicted, refused, second_probes."""
        return dict(zip(layout.COUNTERS, self.tallies.cpu().numpy().T, strict=True))

    @property
    def slots(self) -> int:
        """Slots handed out so far, including free ones: rows are in 0..slots - 1."""
        return int(self.table.state[layout.USED])

    @property
    def bytes(self) -> int:
        """Bytes of device memory, without the memory of requests."""
        held = (self.table.words, self.table.owners, *self.lists, self.tallies, self._partial)
        return sum(tensor.nbytes for tensor in held)

    def remove(self, distinct: Distinct) -> int:
        """Drop rows, where they exist, and free their slots; return their number. None counts as evicted."""
        request, runs, state = self._probe(distinct, layout.ERASE), int(distinct.runs), self.table.state
        slots = request.results.slots[:runs]
        present = slots >= 0
        held, many, room = int(state[layout.FREE]), int(present.sum()), len(self.lists.free)
        if held + many > room:
            longer = self._memory(torch.int32, max(2 * room, held + many))
            longer[:held] = self.lists.free[:held]
            self.lists, self.generation = Lists(longer, self.lists.log), self.generation + 1
            state[layout.FREE_LIMIT] = len(longer)
        self.lists.free[held : held + many] = slots[present]
        state[layout.FREE] += many
        tables = distinct.tables[:runs] if self._many else torch.zeros_like(slots)
        self.tallies[:, 0] -= torch.bincount(tables[present].long(), minlength=self._tables)
        return many

    def clear(self) -> None:
        """Forget every row; counters other than rows continue."""
        self.table.words.zero_()
        self.tallies[:, 0] = 0
        self.table.state[layout.USED] = 0
        self.table.state[layout.FREE] = 0

    def grow(self, rows: int) -> None:
        """Allow `rows` rows; slots and notes are kept. Needs the memory of both indexes for a moment.

        Raises:
            StoreError: the number is out of range, or rows have no place in the new index; nothing changed.
            torch.OutOfMemoryError: the device lacks the memory; nothing changed.
        """
        from satrap.store.gpu.kernels import growth

        if not self.rows <= rows <= MOST_ROWS:
            raise StoreError(f"an index of {self.rows} rows grows to at most {MOST_ROWS} rows, not to {rows}")
        new = self._empty(rows, self.table.state.clone())
        segments = int(new.state[layout.SEGMENTS])
        lost = self._memory(torch.int32, segments)
        fixed = {"TABLES": self._many, "BLOCK": layout.CHUNK, "num_warps": 8}
        growth.rebuild[(segments,)](self.table, new, lost, **fixed)
        homeless = int(lost.sum())
        if homeless:
            raise StoreError(
                f"an index for {rows} rows has no place for {homeless} of the present ones",
                fix="grow to more rows",
            )
        new.state[layout.LIMIT] = rows
        self._use(new)
        self.rows = rows

    def entries(self, first: int = 0, last: int = BUCKETS - 1) -> Rows:
        """Return the rows of fixed buckets first..last, ordered by (table, bucket, id)."""
        segments, width = self.table.state[[layout.SEGMENTS, layout.WIDTH]].tolist()
        begin = first * segments // BUCKETS * width
        end = (((last + 1) * segments - 1) // BUCKETS + 1) * width
        part = self.table.words[begin:end]
        live = part[:, layout.ENTRIES :] != 0
        keys = part[:, : layout.ENTRIES][live].cpu().numpy()
        words = part[:, layout.ENTRIES :][live].cpu().numpy()
        tables = np.zeros(len(keys), np.int32)
        if self._many:
            tables = self.table.owners[begin:end][live].cpu().numpy().astype(np.int32)
        fixed = ((keys.view(np.uint64) ^ np.uint64(1 << 63)) >> np.uint64(52)).astype(np.int32)
        inside = np.flatnonzero((fixed >= first) & (fixed <= last))
        ids = self._ids(keys[inside], tables[inside])
        order = canonical_order(ids, fixed[inside])
        order = order[np.argsort(tables[inside][order], kind="stable")]
        at = inside[order]
        notes = (words[at] >> 32).astype(np.uint32)
        return Rows(tables[at], ids[order], words[at].astype(np.int32) - 1, notes)

    def least_used(self, count: int, without: Tensor) -> Rows:
        """Return at most `count` rows, the ones used longest ago, or with the fewest uses, by table.

        Args:
            count: how many.
            without: int32[n], slots of other rows; -1: none.
        """
        words = self.table.words[:, layout.ENTRIES :].reshape(-1)
        taken = torch.zeros(self.rows + 1, dtype=torch.bool, device=self._device)
        taken[without[without >= 0].long()] = True
        slots = (words & 0xFFFFFFFF) - 1
        inside = (slots >= 0) & ~taken[slots]
        # an entry's number makes the order, and so the result, the same in each run
        order = (words >> 32 & 0xFFFFFFFF) * len(words) + torch.arange(len(words), device=self._device)
        order = torch.where(inside, order, torch.iinfo(torch.int64).max)
        at = order.topk(min(count, int(inside.sum())), largest=False).indices
        tables = torch.zeros_like(at)
        if self._many:
            tables = self.table.owners.reshape(-1)[at].long()
        at = at[(tables * len(words) + at).argsort()]
        keys = self.table.words[:, : layout.ENTRIES].reshape(-1)[at].cpu().numpy()
        of = tables.sort().values.cpu().numpy().astype(np.int32)
        here = slots[at].cpu().numpy().astype(np.int32)
        return Rows(of, self._ids(keys, of), here, np.zeros(len(of), np.uint32))

    def _ids(self, keys: npt.NDArray[np.int64], tables: Inverse) -> Ids:
        """Return the ids of keys: `mix` is one-to-one."""
        half = np.uint64(32)
        x = keys.view(np.uint64) ^ np.uint64(1 << 63)
        for _ in range(2):
            x = (x ^ (x >> half)) * np.uint64(_INVERSE)
        ids: Ids = x ^ (x >> half) ^ self._salts[tables]
        return ids
