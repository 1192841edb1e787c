"""Which rows changed and which went since the last time someone asked: what a delta holds."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.store import hashes
from satrap.store.chunk import Chunk
from satrap.store.kernels.marks import assign, mark, marked
from satrap.store.memory import Reserved
from satrap.store.types import Ids, Inverse

if TYPE_CHECKING:
    from satrap.store.group import Group

Bits = npt.NDArray[np.uint8]
Gone = list[tuple[Ids, Inverse]]
"""(ids, tables) of rows that went."""


class Tracker:
    """Two bits per slot of one group: changed, and made, since the last `take`; and the ids that went.

    Args:
        slots: most slots the group can have.
        cold: most slots its tier can have; None: it has no tier.
    """

    def __init__(self, slots: int, cold: int | None = None) -> None:
        self._changed, self._made = (Reserved(slots // 8 + 1, huge=False).array(np.uint8) for _ in range(2))
        self._gone: Gone = []
        self._cold = None if cold is None else Tracker(cold)

    @property
    def cold(self) -> Tracker:
        """The same of the slots of the tier."""
        assert self._cold is not None
        return self._cold

    def move(self, slots: Inverse, to: Tracker, targets: Inverse) -> None:
        """Note that rows of these slots lie in slots of another tracker from now on."""
        assign(to._changed, targets, marked(self._changed, slots))
        assign(to._made, targets, marked(self._made, slots))
        assign(self._changed, slots, np.zeros(len(slots), np.bool_))
        assign(self._made, slots, np.zeros(len(slots), np.bool_))

    def change(self, slots: Inverse) -> None:
        """Note that rows change; -1 is nothing."""
        mark(self._changed, slots)

    def make(self, slots: Inverse) -> None:
        """Note that rows are new."""
        mark(self._changed, slots)
        mark(self._made, slots)

    def lose(self, ids: Ids, tables: Inverse, slots: Inverse) -> None:
        """Note that rows of (id, table) have lost their slot."""
        old = ~marked(self._made, slots)  # whoever keeps the rows of the last `take` never saw the others
        if old.any():
            self._gone.append((ids[old], tables[old]))

    def take(self, slots: int, cold: int = 0) -> Taken:
        """Return what was noted about the first `slots` slots, and `cold` of the tier; start anew."""
        used = slots // 8 + 1
        moved = None if self._cold is None else self._cold.take(cold)
        taken = Taken(self._changed[:used].copy(), self._made[:used].copy(), self._gone, moved)
        self._changed[:used] = 0
        self._made[:used] = 0
        self._gone = []
        return taken

    def put_back(self, taken: Taken) -> None:
        """Note again what an earlier `take` returned."""
        self._changed[: len(taken.changed)] |= taken.changed
        self._made[: len(taken.made)] |= taken.made
        self._gone += taken.gone


@dataclass(frozen=True, slots=True)
class Taken:
    """What `Tracker.take` returned: bits by slot, who went, and the same of the tier."""

    changed: Bits
    made: Bits
    gone: Gone
    cold: Taken | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """What a store has become since the `Changes.take` before: delete `deleted`, then load `chunks`.

    Attributes:
        full: True: `chunks` are all rows, and nothing earlier is needed.
        chunks: the rows that are new or changed, each table by (bucket, id), as they were when this was
            taken; to be read once, while the store goes on.
        deleted: by table, uint64[n] ascending: ids that had a row then and have none now.
    """

    full: bool
    chunks: Generator[Chunk, None, None]
    deleted: Mapping[str, Ids]
    taken: tuple[tuple[Tracker, Taken], ...] = field(default=(), repr=False)


class Changes:
    """Knows which rows of a store changed and which went: `Shard.changes`. Off until first asked.

    ```python
    base = shard.changes.take()            # the first is full: all rows
    ...                                    # train
    delta = shard.changes.take()           # rows changed since, and the ids of rows evicted since
    ```

    After a chain of them was loaded into a new store, `follow` says that it has just that. A row counts as
    changed when it was made, updated or loaded; where rows are evicted, also when it was looked up, since
    its last use is part of what decides who goes next. Besides the budget it takes 2 bits per row, 12 bytes
    per row that went, 2 bits per row of a tier, and while a delta is read the changed rows that change again;
    a lookup or update takes
    about 2 nanoseconds more per row. `take` itself stops the store for a copy of these bits.
    """

    def __init__(self, groups: Sequence[Group], lock: threading.Condition) -> None:
        self._groups, self._lock = groups, lock

    @property
    def following(self) -> bool:
        """Whether the next `take` can be a delta: changes have been noted since the last, or `follow`."""
        return all(group.tracker is not None for group in self._groups)

    def follow(self) -> None:
        """Note changes from now on, without any so far.

        Raises:
            StoreError: there is no address space for the marks; nothing has changed.
        """
        with self._lock:
            colds = [None if group.cold is None else group.cold.directory.limit for group in self._groups]
            trackers = [Tracker(g.directory.limit, cold) for g, cold in zip(self._groups, colds, strict=True)]
            for group, tracker in zip(self._groups, trackers, strict=True):
                group.tracker = tracker

    def stop(self) -> None:
        """Note nothing more; the next `take` is full."""
        with self._lock:
            for group in self._groups:
                group.tracker = None

    def take(self, *, full: bool = False, chunk_rows: int = 65536) -> Delta:
        """Return what changed since the last `take`, and begin anew: one consistent cut of all tables.

        It is full the first time, after `Shard.clear`, and when asked for.

        Args:
            full: all rows, whatever changed.
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
            marks: list[tuple[Bits | None, Bits | None]] = [(None, None)] * len(self._groups)
            try:
                if full:
                    self.follow()
                else:
                    taken = [(g.tracker, g.tracker.take(*_slots(g))) for g in self._groups if g.tracker]
                    deleted = self._deleted([t for _, t in taken])
                    marks = [_unchanged(t) for _, t in taken]
                pairs = zip(self._groups, marks, strict=True)
                cuts = [g.cut(list(range(len(g.tables))), *bits) for g, bits in pairs]
            except BaseException:
                self.stop()  # what was taken is nowhere now: the next one is full
                raise
        everywhere = np.ones(hashes.BUCKETS, np.bool_)
        chunks = (
            chunk
            for cut, g in zip(cuts, self._groups, strict=True)
            for t in range(len(g.tables))
            for chunk in cut.chunks(t, everywhere, chunk_rows, self._lock)
        )
        return Delta(full, chunks, deleted, tuple(taken))

    def put_back(self, delta: Delta) -> None:
        """Let the next `take` hold what `delta` does, too: it could not be kept.

        With a tier the next one is full: rows may have moved since, so that their marks name others.
        """
        with self._lock:
            if delta.full or any(group.cold is not None for group in self._groups):
                self.stop()
                return
            for tracker, taken in delta.taken:
                tracker.put_back(taken)

    def _deleted(self, taken: Sequence[Taken]) -> dict[str, Ids]:
        found: dict[str, Ids] = {}
        for group, one in zip(self._groups, taken, strict=True):
            for t, name in enumerate(group.tables):
                parts = [ids[tables == t] for ids, tables in one.gone]
                ids = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]))
                found[name] = ids[~group.has(t, ids)]
        return found


def _unchanged(taken: Taken) -> tuple[Bits, Bits | None]:
    """Return the rows to leave out, in memory and in the tier."""
    return ~taken.changed, None if taken.cold is None else ~taken.cold.changed


def _slots(group: Group) -> tuple[int, int]:
    """Return the slots handed out so far in memory and in the tier."""
    return group.directory.slots, 0 if group.cold is None else group.cold.directory.slots
