"""The rows of a shard at its newest version and at several earlier ones; each lookup names its version."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from satrap.errors import StoreError
from satrap.exchange.lookup import Array, LookupRequest
from satrap.serve.versions.overlay import Overlay
from satrap.store import RowChunk, Shard
from satrap.store.arrays import Found, Ids
from satrap.store.statistics import Statistics

HOLD_SECONDS = 10.0
"""How long a version is kept for a server that has stopped sending requests."""
MOST_KEPT = 32
"""Maximum of earlier versions kept because servers hold them; each one slows down lookups in the oldest."""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a model.

    Args:
        step: of the training run.
        id: `Manifest.id` of the checkpoint. A resumed run can publish a step twice, with different ids.
        published: time of the cut, in seconds since 1970.
    """

    step: int
    id: str
    published: float


class KeptRows:
    """The rows of one store at its newest version, with overlays for earlier versions.

    A later version begins as an overlay, which `fold` writes to the store, some rows at a time. The old
    values of these rows are kept in an overlay of the previous version. Only one thread at a time may use it.

    Args:
        store: has the rows of `version`; this object takes ownership.
        version: the first version.

    Attributes:
        store: see the argument.
        versions: the readable versions, newest last.
    """

    def __init__(self, store: Shard, version: Version) -> None:
        self.store, self.versions = store, [version]
        self._before: list[Overlay] = []  # per version except the newest: its rows that the next one changes
        self._newest: Overlay | None = None  # changes of the newest version that are not yet in the store

    def peek(self, version: Version, requests: Sequence[LookupRequest]) -> list[tuple[Array, Found]]:
        """Return (rows float32[ids, dim], found bool[ids]) of each request in one of `versions`."""
        answers = [self.store.peek_group(r.group, r.ids, r.splits, warm=True) for r in requests]
        rows = [block for block, _ in answers]
        at = self.versions.index(version)
        if at < len(self._before):
            for overlay in reversed(self._before[at:]):
                overlay.cover(requests, rows)
        elif self._newest is not None:
            self._newest.cover(requests, rows)
        return answers

    @property
    def folding(self) -> bool:
        """Whether some rows of the newest version have not been written yet."""
        return self._newest is not None

    def begin(self, version: Version, changed: Overlay) -> None:
        """Begin the next version, with its changed rows; all rows of the newest one must be written."""
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
        """Save the rows of ids uint64[n], which are about to change, for the version before the newest."""
        rows, _ = self.store.peek(table, ids)
        self._before[-1].load(RowChunk(table, ids, rows, np.empty((len(ids), 0), np.float32)))

    def drop_oldest(self) -> None:
        """Drop the oldest version; there must be a newer one."""
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
    """The versions that a shard serves; any thread may call its methods.

    The shard keeps `keep` versions before the newest, and older ones while a server holds them. A version
    that is loaded as a whole gets a new store; the versions before it stay in their store until no server
    holds any of them.

    Args:
        rows: rows with the first version.
        keep: versions kept before the newest, at least 1: a server changes to the next version only once all
            shards have it.
        most_bytes: memory limit of earlier versions. Above it, `has_room` delays the next version while
            servers hold the earlier ones.
        clock: returns seconds.
    """

    def __init__(
        self, rows: KeptRows, *, keep: int, most_bytes: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stores, self._keep, self._most_bytes = [rows], max(1, keep), most_bytes
        self._clock, self._lock = clock, threading.Lock()
        self._held: dict[
            int, tuple[str, float]
        ] = {}  # client -> (id of the version, time of its last request)
        self._since = 0.0  # when the newest store was added

    @property
    def versions(self) -> list[Version]:
        """All versions, ascending by store, then by step."""
        with self._lock:
            return [version for rows in self._stores for version in rows.versions]

    @property
    def newest(self) -> Version:
        """The newest version."""
        return self._stores[-1].versions[-1]

    @property
    def store(self) -> Shard:
        """The store of the newest version."""
        return self._stores[-1].store

    def peek(self, id: str, requests: Sequence[LookupRequest]) -> list[tuple[Array, Found]]:
        """Return the result of `KeptRows.peek` for the version with this id.

        Raises:
            StoreError: the version is gone.
        """
        with self._lock:
            for rows in self._stores:
                for version in rows.versions:
                    if version.id == id:
                        return rows.peek(version, requests)
        steps = ", ".join(str(version.step) for version in self.versions)
        raise StoreError("the requested version is gone", why=f"the shard has the versions of steps {steps}")

    def hold(self, client: int, id: str) -> None:
        """Keep a version for a client, which must repeat the call within `HOLD_SECONDS`; "" holds none."""
        with self._lock:
            self._held[client] = id, self._clock()

    def forget(self, gone: Callable[[int], bool]) -> None:
        """Release the versions held by clients that are gone."""
        with self._lock:
            self._held = {client: held for client, held in self._held.items() if not gone(client)}

    def has_room(self) -> bool:
        """Drop versions that are not needed; return whether the next version may begin."""
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
        return {id for id, time_held in self._held.values() if time_held >= since}

    def begin(self, version: Version, changed: Overlay) -> None:
        """Begin the next version, see `KeptRows.begin`."""
        with self._lock:
            self._stores[-1].begin(version, changed)

    def fold(self) -> bool:
        """Write some rows of the newest version; return whether there are more."""
        with self._lock:
            return self._stores[-1].fold()

    def add(self, rows: KeptRows) -> None:
        """Add a version that was loaded as a whole."""
        with self._lock:
            self._stores.append(rows)
            self._since = self._clock()

    def tidy(self) -> None:
        """Close old stores whose versions no server holds, `HOLD_SECONDS` after the last `add`."""
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
        """Return the number of rows of the newest version, by table."""
        return {name: table.rows for name, table in self.statistics().tables.items()}

    def close(self) -> None:
        """Free all rows."""
        with self._lock:
            for rows in self._stores:
                rows.close()
