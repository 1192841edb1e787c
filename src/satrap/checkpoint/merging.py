"""Merges the rows of a full snapshot and of the deltas after it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt

from satrap.errors import CheckpointError
from satrap.store import RowChunk, bucket_of

Ids = npt.NDArray[np.uint64]


@dataclass(slots=True)
class _RowCursor:
    """Rows of one snapshot that are not merged yet, in order of (bucket, id)."""

    chunk: RowChunk
    buckets: npt.NDArray[np.int32]

    def upto(self, bucket: int, id_: np.uint64) -> int:
        """Return the number of rows at or before (bucket, id)."""
        first = int(np.searchsorted(self.buckets, bucket, "left"))
        end = int(np.searchsorted(self.buckets, bucket, "right"))
        return first + int(np.searchsorted(self.chunk.ids[first:end], id_, "right"))

    def pick(self, rows: npt.NDArray[np.bool_] | slice) -> Self:
        """Return some of the rows."""
        return type(self)(self.chunk.pick(rows), self.buckets[rows])


class _Source:
    """Reads the rows of one snapshot chunk by chunk; `rows` holds the rows not yet merged."""

    def __init__(self, chunks: Iterator[RowChunk]) -> None:
        self._chunks = chunks
        self._last: tuple[int, int] | None = None
        self.rows: _RowCursor | None = None
        self.refill()

    def refill(self) -> None:
        """Read chunks until `rows` holds some; set it to None at the end."""
        while self.rows is None or not len(self.rows.buckets):
            chunk = next(self._chunks, None)
            if chunk is None:
                self.rows = None
                return
            if len(chunk.ids):
                self.rows = _RowCursor(chunk, bucket_of(chunk.table, chunk.ids))
                self._check(self.rows)

    def _check(self, rows: _RowCursor) -> None:
        ids, buckets = rows.chunk.ids, rows.buckets
        rising = (buckets[1:] > buckets[:-1]) | ((buckets[1:] == buckets[:-1]) & (ids[1:] > ids[:-1]))
        first, last = (int(buckets[0]), int(ids[0])), (int(buckets[-1]), int(ids[-1]))
        if not rising.all() or (self._last is not None and first <= self._last):
            raise CheckpointError(
                "rows of the checkpoint are not in order of bucket and id",
                where=f"table {rows.chunk.table!r}",
                why="deltas can only be merged with rows in order",
                fix="use an older snapshot: satrap checkpoint repair",
            )
        self._last = last

    def take(self, bucket: int, id_: np.uint64) -> _RowCursor | None:
        """Remove and return the rows up to (bucket, id), None if there are none."""
        if self.rows is None:
            return None
        count = self.rows.upto(bucket, id_)
        taken, self.rows = self.rows.pick(slice(count)), self.rows.pick(slice(count, None))
        self.refill()
        return taken if count else None


def merge(sources: Sequence[Iterator[RowChunk]], deleted: Sequence[Ids]) -> Iterator[RowChunk]:
    """Yield the newest version of each row of one table, in order of (bucket, id).

    The sources are the chunks of the full snapshot, then of each delta, each in this order; otherwise raises
    CheckpointError. `deleted` has the ids that each source deletes, ascending. Memory holds one chunk of each
    source and the deleted ids.
    """
    open_ = [_Source(chunks) for chunks in sources]
    while any(source.rows for source in open_):
        ends = [(int(s.rows.buckets[-1]), s.rows.chunk.ids[-1]) for s in open_ if s.rows is not None]
        bucket, id_ = min(ends)
        taken = [(age, part) for age, s in enumerate(open_) if (part := s.take(bucket, id_)) is not None]
        chunk = _newest(taken, deleted)
        if len(chunk.ids):
            yield chunk


def _newest(parts: Sequence[tuple[int, _RowCursor]], deleted: Sequence[Ids]) -> RowChunk:
    """Return the newest row of each id, in order, without rows that a later source deletes."""
    alive: list[tuple[int, _RowCursor]] = []
    for age, rows in parts:
        gone = np.zeros(len(rows.buckets), np.bool_)
        for later in deleted[age + 1 :]:
            gone |= _within(rows.chunk.ids, later)
        alive.append((age, rows.pick(~gone) if gone.any() else rows))
    if len(alive) == 1:
        return alive[0][1].chunk
    chunks = [rows.chunk for _, rows in alive]
    ages = np.concatenate([np.full(len(rows.buckets), -age) for age, rows in alive])
    ids = np.concatenate([chunk.ids for chunk in chunks])
    order = np.lexsort((ages, ids, np.concatenate([rows.buckets for _, rows in alive])))
    order = order[np.append(True, ids[order][1:] != ids[order][:-1])[: len(order)]]
    weights = np.concatenate([chunk.weights for chunk in chunks])
    state = np.concatenate([chunk.state for chunk in chunks])
    return RowChunk(chunks[0].table, ids, weights, state).pick(order)


def _within(ids: Ids, others: Ids) -> npt.NDArray[np.bool_]:
    """Return whether each id is in `others`, which must ascend."""
    if not len(others):
        return np.zeros(len(ids), np.bool_)
    at = np.minimum(np.searchsorted(others, ids), len(others) - 1)
    within: npt.NDArray[np.bool_] = others[at] == ids
    return within
