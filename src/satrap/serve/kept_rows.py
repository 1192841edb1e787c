"""The rows of a shard at its newest version and at some before it: it answers for the one asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from satrap.errors import StoreError
from satrap.exchange.lookup import Array, Request
from satrap.serve.overlay import Overlay
from satrap.store import Chunk, Shard
from satrap.store.statistics import Statistics
from satrap.store.types import Found, Ids

HOLD_SECONDS = 10.0
"""A version is kept for a server that has asked for nothing for so long."""
MOST_KEPT = 32
"""Most earlier versions that are kept because servers hold them: each makes answers for the oldest slower."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model.

    Args:
        step: of the training run.
        id: `Manifest.id` of the checkpoint. Two versions of one step, of a resumed run, differ in it.
        published: when it was cut, in seconds since 1970.
    """

    step: int
    id: str
    published: float


class KeptRows:
    """The rows of one store at its newest version, and what lies over them for earlier ones.

    A later version begins as an overlay, which `fold` writes to the store, some rows at a time; what these
    rows were before is kept in another overlay, of the version before. One thread at a time may use it.

    Args:
        store: with the rows of `version`; it is owned from now on.
        version: the first one.

    Attributes:
        store: of the arguments.
        versions: that can be read, the newest last.
    """

    def __init__(self, store: Shard, version: Version) -> None:
        self.store, self.versions = store, [version]
        self._before: list[Overlay] = []  # of each version but the newest: its rows that the next changes
        self._newest: Overlay | None = None  # what the newest version changes, and is not yet in the store

    def peek(self, version: Version, requests: Sequence[Request]) -> list[tuple[Array, Found]]:
        """Return (rows float32[ids, dim], found bool[ids]) of each request, of one of `versions`."""
        found = [self.store.peek_group(r.group, r.ids, r.splits, warm=True) for r in requests]
        rows = [block for block, _ in found]
        at = self.versions.index(version)
        if at < len(self._before):
            for overlay in reversed(self._before[at:]):
                overlay.cover(requests, rows)
        elif self._newest is not None:
            self._newest.cover(requests, rows)
        return found

    @property
    def folding(self) -> bool:
        """Whether rows of the newest version are still to be written."""
        return self._newest is not None

    def begin(self, version: Version, changed: Overlay) -> None:
        """Have one more version, of which these rows differ from the newest; all rows of that are written."""
        assert self._newest is None
        self._before.append(Overlay(self.store))
        self.versions.append(version)
        self._newest = changed

    def fold(self) -> bool:
        """Write some rows of the newest version; return whether there are more."""
        if self._newest is not None and not self._newest.fold(self._note):
            self._newest.close()
            self._newest = None
        return self.folding

    def _note(self, table: str, ids: Ids) -> None:
        """Keep the rows of ids uint64[n] for the version before the newest; they are about to change."""
        rows, _ = self.store.peek(table, ids)
        self._before[-1].load(Chunk(table, ids, rows, np.empty((len(ids), 0), np.float32)))

    def drop_oldest(self) -> None:
        """Forget the oldest version, which is not the newest."""
        self._before.pop(0).close()
        del self.versions[0]

    @property
    def kept_bytes(self) -> int:
        """Memory of earlier versions."""
        return sum(overlay.bytes for overlay in self._before)

    def close(self) -> None:
        """Free the rows."""
        for overlay in self._before:
            overlay.close()
        if self._newest is not None:
            self._newest.close()
        self.store.close()


class RowVersions:
    """The versions that a shard answers for; any thread may call its methods.

    `keep` versions before the newest stay, and older ones as long as a server holds them. Where a version
    was loaded as a whole, those before it are in a store of their own until no server holds one.

    Args:
        rows: with the first version.
        keep: versions before the newest, at least 1: a server goes on once all shards have the next one.
        most_bytes: memory of earlier versions beyond which `has_room` lets no more begin while they are held.
        clock: returns seconds.
    """

    def __init__(
        self, rows: KeptRows, *, keep: int, most_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores, self._keep, self._most_bytes = [rows], max(1, keep), most_bytes
        self._clock, self._lock = clock, threading.Lock()
        self._held: dict[int, tuple[str, float]] = {}  # by client: id of the version, and when it was said
        self._since = 0.0  # when the newest store came

    @property
    def versions(self) -> list[Version]:
        """Those that there are, ascending by store, then by step."""
        with self._lock:
            return [version for rows in self._stores for version in rows.versions]

    @property
    def newest(self) -> Version:
        """The one that later ones follow."""
        return self._stores[-1].versions[-1]

    @property
    def store(self) -> Shard:
        """The store of the newest version."""
        return self._stores[-1].store

    def peek(self, id: str, requests: Sequence[Request]) -> list[tuple[Array, Found]]:
        """Return what `KeptRows.peek` does, of the version with this id.

        Raises:
            StoreError: there is no such version.
        """
        with self._lock:
            for rows in self._stores:
                for version in rows.versions:
                    if version.id == id:
                        return rows.peek(version, requests)
        steps = ", ".join(str(version.step) for version in self.versions)
        raise StoreError("the version that was asked for is gone", why=f"there are those of steps {steps}")

    def hold(self, client: int, id: str) -> None:
        """Keep a version while a client says so, at least once in `HOLD_SECONDS`; "" holds none."""
        with self._lock:
            self._held[client] = id, self._clock()

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Keep nothing for clients that are gone."""
        with self._lock:
            self._held = {client: held for client, held in self._held.items() if not gone(client)}

    def has_room(self) -> bool:
        """Forget what may go; return whether one more version may begin after the newest."""
        with self._lock:
            held, rows = self._held_ids(), self._stores[-1]
            while (earlier := len(rows.versions) - 1) and rows.versions[0].id not in held:
                if earlier < self._keep and rows.kept_bytes <= self._most_bytes:
                    break
                rows.drop_oldest()
            few = earlier < MOST_KEPT and rows.kept_bytes <= self._most_bytes
            return not rows.folding and (earlier < self._keep or few)

    def _held_ids(self) -> set[str]:
        since = self._clock() - HOLD_SECONDS
        return {id for id, said in self._held.values() if said >= since}

    def begin(self, version: Version, changed: Overlay) -> None:
        """Have one more version after the newest, see `KeptRows.begin`."""
        with self._lock:
            self._stores[-1].begin(version, changed)

    def fold(self) -> bool:
        """Write some rows of the newest version; return whether there are more."""
        with self._lock:
            return self._stores[-1].fold()

    def add(self, rows: KeptRows) -> None:
        """Have a version that was loaded as a whole."""
        with self._lock:
            self._stores.append(rows)
            self._since = self._clock()

    def tidy(self) -> None:
        """Close the stores before the newest of which no server holds a version, once servers know that."""
        with self._lock:
            if self._clock() - self._since < HOLD_SECONDS:
                return
            held = self._held_ids()
            while len(self._stores) > 1 and held.isdisjoint(v.id for v in self._stores[0].versions):
                self._stores.pop(0).close()

    def statistics(self) -> Statistics:
        """Return the counters of the store of the newest version."""
        with self._lock:
            return self.store.statistics()

    def rows_by_table(self) -> Mapping[str, int]:
        """Return how many rows the newest version has, by table."""
        return {name: table.rows for name, table in self.statistics().tables.items()}

    def close(self) -> None:
        """Free all rows."""
        with self._lock:
            for rows in self._stores:
                rows.close()
