"""The exchange of one process: the store is here, one background thread serves it in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from satrap.exchange.protocol import Cut, Request, Rows, Snapshot, TableGroup
from satrap.exchange.states import State, counts_of, load_rows, restore, state_of
from satrap.exchange.traffic import Traffic
from satrap.store import Chunk, Delta, Shard, Slots
from satrap.store.shard import check_lookups

if TYPE_CHECKING:
    from satrap.checkpoint.storage import FileEntry, Storage

Done = Callable[[], None]

CHUNK_ROWS = 16384
"""Rows of a cut that are read at once."""
REMEMBERED = 256
"""Lookups whose slots are kept for their update; a batch that is never updated is forgotten in time."""


@dataclass(slots=True)
class Peeked:
    """Ids of lookups that create nothing, and how many of them had no row."""

    ids: int = 0
    unseen: int = 0


class LocalExchange:
    """Lookups and updates on a `Shard` of this process, run by one thread in the order issued.

    The store's kernels release the interpreter lock, so lookups ahead and updates behind overlap with the
    caller's own work (`hybrid`); a caller that waits for each lookup trains `sync`.

    Args:
        shard: the store; the exchange owns it from now on and closes it.
    """

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self._groups = [TableGroup(g.index, g.tables, g.dim) for g in shard.groups]
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="satrap-exchange")
        self._last_update: Future[None] | None = None
        self._traffic, self._applied = Traffic(), 0
        self._slots: dict[int, tuple[Request, Slots]] = {}  # by id(request), which lives as long as its entry
        self._peeked = {table: Peeked() for group in self._groups for table in group.tables}

    @property
    def groups(self) -> Sequence[TableGroup]:
        """The table groups of the shard."""
        return self._groups

    def lookup(self, requests: Sequence[Request], *, create: bool) -> Future[list[Rows]]:
        """See `Exchange.lookup`."""
        return self._thread.submit(self._lookup, requests, create, self._traffic.issue("lookup"))

    def _lookup(self, requests: Sequence[Request], create: bool, done: Done) -> list[Rows]:
        try:
            if create:
                check_lookups(self.shard, ((r.group, r.ids, r.splits) for r in requests))
                self._traffic.looked_up(requests, 0, (self._applied, self._applied))
                return [self._lookup_one(request) for request in requests]
            return [self._peek_one(request) for request in requests]
        finally:
            done()

    def _peek_one(self, request: Request) -> Rows:
        rows, found = self.shard.peek_group(request.group, request.ids, request.splits)
        ends = pairwise(request.splits.tolist())
        for table, (first, end) in zip(self._groups[request.group].tables, ends, strict=True):
            self._peeked[table].ids += end - first
            self._peeked[table].unseen += end - first - int(np.count_nonzero(found[first:end]))
        return rows

    def _lookup_one(self, request: Request) -> Rows:
        rows, slots = self.shard.lookup_slots(request.group, request.ids, request.splits)
        self._slots[id(request)] = request, slots
        if len(self._slots) > REMEMBERED:
            del self._slots[next(iter(self._slots))]
        return rows

    def prefetch(self, requests: Sequence[Request]) -> None:
        """See `Exchange.prefetch`."""
        for request in requests:
            self.shard.ahead.prefetch(request.group, request.ids, request.splits)

    def update(
        self, requests: Sequence[Request], gradients: Sequence[Rows], *, lr_scale: float, finite: bool = False
    ) -> None:
        """See `Exchange.update`."""
        self._raise_failed()
        done = self._traffic.issue("push", requests)
        self._last_update = self._thread.submit(
            self._update, requests, gradients, lr_scale, finite, self._last_update, done
        )

    def _update(
        self,
        requests: Sequence[Request],
        gradients: Sequence[Rows],
        lr_scale: float,
        finite: bool,
        before: Future[None] | None,
        done: Done,
    ) -> None:
        try:
            if before is not None:
                before.result()  # a refused update stops the ones behind it, so that the error is not lost
            if not finite:  # all of a step, or nothing
                self.shard.check_gradients([r.group for r in requests], gradients)
            for request, gradient in zip(requests, gradients, strict=True):
                _, slots = self._slots.pop(id(request), (request, None))
                self.shard.update_group(
                    request.group,
                    request.ids,
                    request.splits,
                    gradient,
                    lr_scale=lr_scale,
                    slots=slots,
                    checked=True,
                )
            self._traffic.applied(requests, 0, (self._applied, self._applied))
            self._applied += 1
        finally:
            done()

    def _raise_failed(self) -> None:
        if self._last_update is not None and self._last_update.done():
            self._last_update.result()

    def flush(self) -> None:
        """Wait until everything issued so far has been applied; raise what an update raised."""
        self._thread.submit(lambda: None).result()
        self._raise_failed()

    def snapshot(self) -> Snapshot:
        """See `Exchange.snapshot`.

        The rows are those of this moment; training may go on while they are read, in any thread.
        """
        self.flush()
        chunks = self.shard.snapshot()
        return Snapshot(((chunk.table, chunk) for chunk in chunks), partial(self._write, chunks))

    def _write(self, chunks: Iterator[Chunk], storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        from satrap.checkpoint.parts import write_tables

        tables = [table for group in self.shard.groups for table in group.tables]
        return write_tables(storage, folder, chunks, tables)

    def cut(self, *, delta: bool | None = None) -> Cut:
        """See `Exchange.cut`."""
        self.flush()
        changes = self.shard.changes
        if delta is None:
            taken = Delta(True, self.shard.snapshot(), {})
        else:
            taken = changes.take(full=not delta, chunk_rows=CHUNK_ROWS)

        def put_back() -> None:
            taken.chunks.close()
            if delta is not None:
                changes.put_back(taken)

        return Cut(
            counts_of(self.shard),
            partial(self._write_all, taken.chunks, state_of(self.shard)),
            None if taken.full else taken.deleted,
            put_back,
        )

    def _write_all(
        self, chunks: Iterator[Chunk], state: State, storage: Storage, folder: str
    ) -> Mapping[str, FileEntry]:
        from satrap.checkpoint.stores import write_store

        return {**self._write(chunks, storage, folder), **write_store(storage, folder, state)}

    def read(self, url: str, *, follow: bool = False, exact: bool = False) -> None:
        """See `Exchange.read`."""
        from satrap.checkpoint.chain import read_buckets

        if exact:
            self._thread.submit(restore, self.shard, url).result()
        _, alone = self._thread.submit(load_rows, self.shard, read_buckets(url)).result()
        if follow and alone:
            self.shard.changes.follow()

    def load(self, table: str, chunk: Chunk) -> None:
        """Insert or overwrite rows with their optimizer state."""
        self._thread.submit(self.shard.load, table, chunk).result()

    def clear(self) -> None:
        """Forget every row."""
        self._thread.submit(self.shard.clear).result()

    def statistics(self) -> Mapping[str, Any]:
        """See `Exchange.statistics`; besides, by table, what lookups that create nothing met, as "peeked"."""
        peeked = {table: asdict(counts) for table, counts in self._peeked.items()}
        return {**self.shard.statistics(), "exchange": self.traffic(), "peeked": peeked}

    def traffic(self) -> Mapping[str, Any]:
        """See `Exchange.traffic`; nothing is sent anywhere."""
        report = self._traffic.report()
        waiting = report["lookup_in_flight"] + report["push_in_flight"]
        return {**report, "sent": 0, "received": 0, "resent": 0, "waiting": waiting}

    def close(self) -> None:
        """Apply what was issued, then release the store."""
        self._thread.shutdown(wait=True)
        self.shard.close()
