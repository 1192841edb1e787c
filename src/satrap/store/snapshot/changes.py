"""Tracks the rows that changed or were removed since the last call: the contents of a delta."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from satrap.errors import StoreError
from satrap.store.arrays import Bytes, Ids, Inverse, Offsets
from satrap.store.backend import MemoryPart, PartRows, RowEvents
from satrap.store.kernels.marks import assign, mark, marked, unmark
from satrap.store.memory.reserve import Reserved
from satrap.store.row_chunk import RowChunk

if TYPE_CHECKING:
    from satrap.store.group import GroupStore


@dataclass(frozen=True, slots=True)
class Taken:
    """The result of `ChangeTracker.take`: for each part, bits by slot; ids and splits of removed rows."""

    changed: list[Bytes]
    made: list[Bytes]
    gone: list[tuple[Ids, Offsets]]


class ChangeTracker(RowEvents):
    """Records changed, created and removed rows since the last `take`: two bits per slot of each part.

    With `uses`, a lookup also counts as a change where uses decide on eviction. Raises `StoreError` if the
    bits do not fit in the address space.
    """

    def __init__(self, parts: Sequence[MemoryPart], *, uses: bool) -> None:
        super().__init__()
        self._uses = uses
        self._changed, self._made = (
            [Reserved(part.directory.limit // 8 + 1, huge=False).array(np.uint8) for part in parts]
            for _ in range(2)
        )
        self._gone: list[tuple[Ids, Offsets]] = []

    def made(self, part: int, slots: Inverse) -> None:
        """Record that rows were created."""
        mark(self._changed[part], slots)
        mark(self._made[part], slots)

    def used(self, part: int, slots: Inverse) -> None:
        """Record that rows change, since their last use changes."""
        if self._uses:
            mark(self._changed[part], slots)

    def changing(self, rows: PartRows) -> None:
        """Record that rows change."""
        mark(self._changed[rows.part], rows.slots)

    def moved(self, rows: PartRows, to: int, targets: Inverse) -> None:
        """Move the marks of rows to their new slots."""
        for marks in (self._changed, self._made):
            assign(marks[to], targets, marked(marks[rows.part], rows.slots))
            unmark(marks[rows.part], rows.slots)

    def gone(self, rows: PartRows) -> None:
        """Record that rows were removed."""
        old = rows.where(~marked(self._made[rows.part], rows.slots))
        if len(old.ids):  # rows created since the last `take` are not in any delta
            self._gone.append((old.ids, old.splits))

    def take(self, parts: Sequence[MemoryPart]) -> Taken:
        """Return the marks of the used slots of these parts, and reset them."""
        used = [part.directory.slots // 8 + 1 for part in parts]
        changed, made = (
            [bits[:n].copy() for bits, n in zip(marks, used, strict=True)]
            for marks in (self._changed, self._made)
        )
        for bits, n in zip(self._changed + self._made, used + used, strict=True):
            bits[:n] = 0
        taken, self._gone = Taken(changed, made, self._gone), []
        return taken

    def put_back(self, taken: Taken) -> None:
        """Record the result of an earlier `take` again."""
        for mine, bits in zip(self._changed + self._made, taken.changed + taken.made, strict=True):
            mine[: len(bits)] |= bits
        self._gone += taken.gone


@dataclass(frozen=True, slots=True)
class Delta:
    """The changes of a store since the previous `Changes.take`: delete `deleted`, then load `chunks`.

    Attributes:
        full: True: `chunks` hold all rows, and no earlier delta is needed.
        chunks: the new and changed rows, each table by (bucket, id), as of `take`; can be read once, while
            the store continues to change.
        deleted: by table, uint64[n] ascending: ids that had a row at the previous `take` and have none now.
    """

    full: bool
    chunks: Generator[RowChunk, None, None]
    deleted: Mapping[str, Ids]
    taken: tuple[tuple[ChangeTracker, Taken], ...] = field(default=(), repr=False)


class Changes:
    """Tracks which rows of a store changed and which were removed. Off until first used.

    A store has two instances for two readers: `Shard.changes` for snapshots to resume from, and
    `Shard.weight_changes` for readers of weights only.

    ```python
    base = shard.changes.take()            # the first is full: all rows
    ...                                    # train
    delta = shard.changes.take()           # rows changed since, and the ids of rows evicted since
    ```

    After loading a chain of deltas into a new store, call `follow`: the store holds exactly their rows. A row
    counts as changed if it was created, updated or loaded. With `uses`, a lookup also counts as a change if
    rows are evicted, since a row's last use affects which row is evicted next. In addition to the budget,
    tracking takes 2 bits per row, 12 bytes per removed row, 2 bits per row of a tier and, while a delta is
    read, copies of changed rows that change again. A lookup or update takes about 2 ns more per row. `take`
    blocks the store while it copies the bits.
    """

    def __init__(self, groups: Sequence[GroupStore], lock: threading.Condition, *, uses: bool) -> None:
        self._groups, self._lock, self._uses = groups, lock, uses
        self._trackers: list[ChangeTracker] = []

    @property
    def following(self) -> bool:
        """Whether the next `take` can be a delta: changes are tracked since the last `take` or `follow`."""
        pairs = zip(self._groups, self._trackers, strict=False)
        observed = [tracker in group.backend.observers for group, tracker in pairs]
        return len(observed) == len(self._groups) and all(observed)

    def follow(self) -> None:
        """Track changes from now on, starting with none.

        Raises:
            StoreError: the marks do not fit in the address space; nothing has changed.
        """
        with self._lock:
            trackers = [ChangeTracker(group.backend.parts, uses=self._uses) for group in self._groups]
            self.stop()
            self._trackers = trackers
            for group, tracker in zip(self._groups, trackers, strict=True):
                group.backend.observers.add(tracker)

    def stop(self) -> None:
        """Stop tracking changes; the next `take` is full."""
        with self._lock:
            for group, tracker in zip(self._groups, self._trackers, strict=False):
                group.backend.observers.discard(tracker)
            self._trackers = []

    def take(self, *, full: bool = False, chunk_rows: int = 65536) -> Delta:
        """Return the changes since the last `take`, and reset: one consistent cut of all tables.

        The delta is full the first time, after `Shard.clear`, and on request.

        Args:
            full: return all rows, changed or not.
            chunk_rows: most rows per chunk.

        Raises:
            StoreError: chunk_rows < 1. While reading `chunks`: the store was cleared or closed.
        """
        if chunk_rows < 1:
            raise StoreError(f"chunk_rows must be >= 1, got {chunk_rows}")
        with self._lock:
            full = full or not self.following
            taken: list[tuple[ChangeTracker, Taken]] = []
            deleted: dict[str, Ids] = {}
            unchanged: list[list[Bytes] | None] = [None] * len(self._groups)
            try:
                if full:
                    self.follow()
                else:
                    pairs = zip(self._groups, self._trackers, strict=True)
                    taken = [(tracker, tracker.take(g.backend.parts)) for g, tracker in pairs]
                    deleted = self._deleted([t for _, t in taken])
                    unchanged = [[~bits for bits in t.changed] for _, t in taken]
                cuts = [
                    g.cut(list(range(len(g.tables))), bits)
                    for g, bits in zip(self._groups, unchanged, strict=True)
                ]
            except BaseException:
                self.stop()  # the marks that were taken are lost, so the next delta is full
                raise
        chunks = (chunk for cut in cuts for chunk in cut.every_chunk(chunk_rows, self._lock))
        return Delta(full, chunks, deleted, tuple(taken))

    def put_back(self, delta: Delta) -> None:
        """Include `delta` in the next `take`, because it could not be saved.

        With a tier the next delta is full: rows may have moved since, so their marks name other rows.
        """
        with self._lock:
            if delta.full or any(len(group.backend.parts) > 1 for group in self._groups):
                self.stop()
                return
            for tracker, taken in delta.taken:
                tracker.put_back(taken)

    def _deleted(self, taken: Sequence[Taken]) -> dict[str, Ids]:
        deleted: dict[str, Ids] = {}
        for group, marks in zip(self._groups, taken, strict=True):
            for t, name in enumerate(group.tables):
                parts = [ids[splits[t] : splits[t + 1]] for ids, splits in marks.gone]
                ids = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
                deleted[name] = ids[~group.has(t, ids)]
        return deleted
