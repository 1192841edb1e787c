"""Which rows changed and which were removed since the last call: the contents of a delta."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from satrap.errors import StoreError
from satrap.store.backend import Part, PartRows, RowEvents
from satrap.store.chunk import Chunk
from satrap.store.kernels.marks import assign, mark, marked, unmark
from satrap.store.memory import Reserved
from satrap.store.types import Bytes, Ids, Inverse, Offsets

if TYPE_CHECKING:
    from satrap.store.group import Group


@dataclass(frozen=True, slots=True)
class Taken:
    """What `Tracker.take` returned: for each part, bits by slot; ids and splits of removed rows."""

    changed: list[Bytes]
    made: list[Bytes]
    gone: list[tuple[Ids, Offsets]]


class Tracker(RowEvents):
    """Two bits per slot of each part of a backend: changed and made since the last `take`; and removed rows.

    With `uses`, a row that is looked up changes where uses decide which rows are evicted. Raises `StoreError`
    if there is no address space for the bits.
    """

    def __init__(self, parts: Sequence[Part], *, uses: bool) -> None:
        super().__init__()
        self._uses = uses
        self._changed, self._made = (
            [Reserved(part.directory.limit // 8 + 1, huge=False).array(np.uint8) for part in parts]
            for _ in range(2)
        )
        self._gone: list[tuple[Ids, Offsets]] = []

    def made(self, part: int, slots: Inverse) -> None:
        """Note that rows were created."""
        mark(self._changed[part], slots)
        mark(self._made[part], slots)

    def used(self, part: int, slots: Inverse) -> None:
        """Note that rows change: their last use changes."""
        if self._uses:
            mark(self._changed[part], slots)

    def changing(self, rows: PartRows) -> None:
        """Note that rows change."""
        mark(self._changed[rows.part], rows.slots)

    def moved(self, rows: PartRows, to: int, targets: Inverse) -> None:
        """Note the same for rows at their new place."""
        for marks in (self._changed, self._made):
            assign(marks[to], targets, marked(marks[rows.part], rows.slots))
            unmark(marks[rows.part], rows.slots)

    def gone(self, rows: PartRows) -> None:
        """Note that rows were removed."""
        old = rows.where(~marked(self._made[rows.part], rows.slots))
        if len(old.ids):  # a consumer that has the rows of the last `take` never saw the others
            self._gone.append((old.ids, old.splits))

    def take(self, parts: Sequence[Part]) -> Taken:
        """Return what was noted about the used slots of these parts; start afresh."""
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
        """Note again the result of an earlier `take`."""
        for mine, bits in zip(self._changed + self._made, taken.changed + taken.made, strict=True):
            mine[: len(bits)] |= bits
        self._gone += taken.gone


@dataclass(frozen=True, slots=True)
class Delta:
    """What a store has become since the previous `Changes.take`: delete `deleted`, then load `chunks`.

    Attributes:
        full: True: `chunks` hold all rows, and nothing earlier is needed.
        chunks: the new and changed rows, each table by (bucket, id), as they were when this was taken; can be
            read once, while the store goes on.
        deleted: by table, uint64[n] ascending: ids that had a row at the previous `take` and have none now.
    """

    full: bool
    chunks: Generator[Chunk, None, None]
    deleted: Mapping[str, Ids]
    taken: tuple[tuple[Tracker, Taken], ...] = field(default=(), repr=False)


class Changes:
    """Knows which rows of a store changed and which were removed. Off until first used.

    A store has two, for two readers: `Shard.changes` for snapshots to resume from, `Shard.weight_changes`
    for readers of weights only.

    ```python
    base = shard.changes.take()            # the first is full: all rows
    ...                                    # train
    delta = shard.changes.take()           # rows changed since, and the ids of rows evicted since
    ```

    After loading a chain of deltas into a new store, call `follow`: the store holds exactly their rows. A row
    counts as changed when it was created, updated or loaded. With `uses`, a lookup also changes a row where
    rows are evicted, since its last use helps decide which row is evicted next. Besides the budget it takes
    2 bits per row, 12 bytes per removed row, 2 bits per row of a tier, and, while a delta is read, copies of
    changed rows that change again. A lookup or update takes about 2 nanoseconds more per row. `take` itself
    stops the store while it copies these bits.
    """

    def __init__(self, groups: Sequence[Group], lock: threading.Condition, *, uses: bool) -> None:
        self._groups, self._lock, self._uses = groups, lock, uses
        self._trackers: list[Tracker] = []

    @property
    def following(self) -> bool:
        """Whether the next `take` can be a delta: changes are noted since the last `take` or `follow`."""
        pairs = zip(self._groups, self._trackers, strict=False)
        observed = [tracker in group.backend.observers for group, tracker in pairs]
        return len(observed) == len(self._groups) and all(observed)

    def follow(self) -> None:
        """Note changes from now on, starting with none.

        Raises:
            StoreError: there is no address space for the marks; nothing has changed.
        """
        with self._lock:
            trackers = [Tracker(group.backend.parts, uses=self._uses) for group in self._groups]
            self.stop()
            self._trackers = trackers
            for group, tracker in zip(self._groups, trackers, strict=True):
                group.backend.observers.add(tracker)

    def stop(self) -> None:
        """Stop noting changes; the next `take` is full."""
        with self._lock:
            for group, tracker in zip(self._groups, self._trackers, strict=False):
                group.backend.observers.discard(tracker)
            self._trackers = []

    def take(self, *, full: bool = False, chunk_rows: int = 65536) -> Delta:
        """Return what changed since the last `take`, and start afresh: one consistent cut of all tables.

        It is full the first time, after `Shard.clear`, and on request.

        Args:
            full: return all rows, whatever changed.
            chunk_rows: most rows per chunk.

        Raises:
            StoreError: chunk_rows < 1. While reading `chunks`: the store was cleared or closed.
        """
        if chunk_rows < 1:
            raise StoreError(f"chunk_rows must be >= 1, got {chunk_rows}")
        with self._lock:
            full = full or not self.following
            taken: list[tuple[Tracker, Taken]] = []
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
                self.stop()  # what was taken is nowhere now: the next one is full
                raise
        chunks = (chunk for cut in cuts for chunk in cut.every_chunk(chunk_rows, self._lock))
        return Delta(full, chunks, deleted, tuple(taken))

    def put_back(self, delta: Delta) -> None:
        """Include `delta` in the next `take`, because it could not be saved.

        With a tier the next one is full: rows may have moved since, so their marks name other rows.
        """
        with self._lock:
            if delta.full or any(len(group.backend.parts) > 1 for group in self._groups):
                self.stop()
                return
            for tracker, taken in delta.taken:
                tracker.put_back(taken)

    def _deleted(self, taken: Sequence[Taken]) -> dict[str, Ids]:
        found: dict[str, Ids] = {}
        for group, one in zip(self._groups, taken, strict=True):
            for t, name in enumerate(group.tables):
                parts = [ids[splits[t] : splits[t + 1]] for ids, splits in one.gone]
                ids = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
                found[name] = ids[~group.has(t, ids)]
        return found
