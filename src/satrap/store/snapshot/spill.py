"""Sorts exported rows in a temporary file, by table and range of fixed buckets."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from satrap.errors import StoreError
from satrap.store import hashes
from satrap.store.arrays import Bytes, Floats, Found, Ids, Inverse, Offsets
from satrap.store.memory.slab import Slab
from satrap.store.memory.thread_pool import ThreadPool
from satrap.store.row_chunk import RowChunk
from satrap.store.row_spec import RowSpec

PIECE = 32 << 20
"""Bytes per write and read of the file: few enough to sort in memory."""


class _SpilledRows(NamedTuple):
    """Rows of one table: ids uint64[n], fixed buckets int32[n], records uint8[n, record]."""

    ids: Ids
    buckets: Inverse
    records: Bytes

    def part(self, which: slice) -> _SpilledRows:
        return _SpilledRows(self.ids[which], self.buckets[which], self.records[which])

    def take(self, order: Offsets) -> _SpilledRows:
        # `take` is faster than an index for records of several bytes
        return _SpilledRows(self.ids[order], self.buckets[order], self.records.take(order, axis=0))


def _joined(rows: list[_SpilledRows]) -> _SpilledRows:
    return _SpilledRows(*(np.concatenate(column) for column in zip(*rows, strict=True)))


class Spill:
    """Sorts rows that arrive in any order, in an unnamed file instead of memory.

    Rows are written in pieces, each sorted by table and range of buckets. A range has about as many rows as a
    piece, so it can be read and sorted in memory. The file takes a record and 8 bytes per row. It is written
    and read sequentially, at the disk's full speed.

    Args:
        folder: folder of the file.
        kind: kind of the rows.
        rows: approximate number of rows of the largest table.
        wanted: bool[4096]; rows of other fixed buckets are left out.

    Raises:
        StoreError: the file cannot be created, written or read.
    """

    def __init__(self, folder: str, kind: RowSpec, rows: int, wanted: Found) -> None:
        self._folder, self._kind, self._wanted, self._workers = folder, kind, wanted, ThreadPool(1)
        self._most = max(1, PIECE // (kind.plan.row_bytes + 8))
        self._width = max(1, min(hashes.BUCKETS, hashes.BUCKETS * self._most // max(1, rows)))
        self._starts = np.arange(0, hashes.BUCKETS + self._width, self._width)
        self._waiting: list[list[_SpilledRows]] = [[] for _ in kind.tables]
        self._pieces: list[list[tuple[int, Offsets]]] = [[] for _ in kind.tables]
        self._count = self._end = 0
        try:
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise self._failed(error) from error

    def __enter__(self) -> Spill:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def put(self, tables: Inverse, ids: Ids, weights: Floats, state: Floats) -> None:
        """Add rows: tables int32[n] by position, ids uint64[n], weights and state float32[n, ...]."""
        slab = Slab(self._kind, len(ids), self._workers)
        slab.write(ids, slab.slots, np.ascontiguousarray(weights), state)
        records = slab.records(slab.slots)
        for t in np.unique(tables).tolist():
            at = np.flatnonzero(tables == t)
            buckets = hashes.bucket_of(self._kind.tables[t], ids[at])
            included = self._wanted[buckets]
            if included.any():
                at = at[included]
                self._waiting[t].append(_SpilledRows(ids[at], buckets[included], records[at]))
                self._count += len(at)
        if self._count >= self._most:
            self._write()

    def _write(self) -> None:
        """Write the waiting rows as one piece per table."""
        for t, waiting in enumerate(self._waiting):
            if waiting:
                rows = _joined(waiting)
                rows = rows.take(np.argsort(rows.buckets.astype(np.uint16), kind="stable"))
                self._pieces[t].append((self._end, np.searchsorted(rows.buckets, self._starts)))
                self._append(rows.ids.data)
                self._append(rows.records.data)
                self._waiting[t] = []
        self._count = 0

    def _append(self, data: memoryview) -> None:
        data = data.cast("B")
        try:
            while data:
                written = os.pwrite(self._file.fileno(), data, self._end)
                data, self._end = data[written:], self._end + written
        except OSError as error:
            raise self._failed(error) from error

    def chunks(self, t: int, chunk_rows: int) -> Iterator[RowChunk]:
        """Yield the rows of table t by bucket, then id; each chunk except the last has `chunk_rows` rows."""
        self._write()
        rest = self._range(t, 0)
        for i in range(1, len(self._starts)):
            more = self._range(t, i) if i < len(self._starts) - 1 else None
            ready = len(rest.ids) if more is None else len(rest.ids) // chunk_rows * chunk_rows
            for first in range(0, ready, chunk_rows):
                part = rest.part(slice(first, min(first + chunk_rows, ready)))
                slab = Slab(self._kind, len(part.ids), self._workers)
                slab.put(slab.slots, part.records)
                yield RowChunk(self._kind.tables[t], part.ids, *slab.read(slab.slots))
            if more is not None:
                rest = _joined([rest.part(slice(ready, None)), more])

    def _range(self, t: int, i: int) -> _SpilledRows:
        """Return the rows of table t in range i of the buckets, by bucket, then id."""
        record = self._kind.plan.row_bytes
        ids, records = [np.empty(0, np.uint64)], [np.empty(0, np.uint8)]
        for start, splits in self._pieces[t]:
            first, n, every = int(splits[i]), int(splits[i + 1] - splits[i]), int(splits[-1])
            ids.append(self._read(start + 8 * first, 8 * n).view(np.uint64))
            records.append(self._read(start + 8 * every + record * first, record * n))
        all_ids = np.concatenate(ids)
        buckets = hashes.bucket_of(self._kind.tables[t], all_ids)
        rows = _SpilledRows(all_ids, buckets, np.concatenate(records).reshape(-1, record))
        return rows.take(hashes.canonical_order(all_ids, buckets))

    def _read(self, start: int, size: int) -> Bytes:
        try:
            data = os.pread(self._file.fileno(), size, start)
        except OSError as error:
            raise self._failed(error) from error
        if len(data) < size:
            raise self._failed("the file is shorter than expected")
        return np.frombuffer(data, np.uint8)

    def _failed(self, reason: object) -> StoreError:
        return StoreError(
            f"rows cannot be sorted for a snapshot in a temporary file: {reason}",
            where=self._folder,
            why="a snapshot needs rows ordered by id, and a tier stores rows in any order; no row is lost",
            fix=f"free disk space in this folder: {self._kind.plan.row_bytes + 8} bytes per row of the store",
        )
