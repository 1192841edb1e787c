"""The rows on shard servers: each shard reads and writes its own."""

from __future__ import annotations

import itertools
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from satrap.errors import StoreError
from satrap.exchange.protocol import RowSource, SnapshotCut, TableGroup
from satrap.exchange.servers.shard.row_requests import EXPORT_ROWS
from satrap.exchange.servers.shard.snapshots import error_of, unpack_result
from satrap.exchange.shard_map import Owners
from satrap.exchange.split import Splitter
from satrap.exchange.states import largest
from satrap.exchange.wire.rows import pack_chunk, unpack_chunk
from satrap.rpc.client.call import told
from satrap.rpc.client.client import Client
from satrap.rpc.wire.frames import Buffer, MessageKind
from satrap.rpc.wire.text import pack_text
from satrap.store import RowChunk
from satrap.store.buckets import runs_of

if TYPE_CHECKING:
    from satrap.checkpoint.files.storage import FileEntry, Storage

LOAD_BYTES = 32 << 20
"""Rows of a chunk are sent to the shards in pieces of about this size."""
JOB_SECONDS = 0.02
"""Seconds between two polls of a shard's background job."""
AHEAD = 1
"""Chunks of an export that are requested while one is used."""


class ServerRows(RowSource):
    """The rows of shards.

    Args:
        shards: the shards.
        groups: their table groups.
        splitter: returns the present assignment of rows to shards.

    Attributes:
        flush: called before a cut or `clear`; default: flushes the shards.
    """

    def __init__(
        self, shards: Client, groups: Sequence[TableGroup], splitter: Callable[[], Splitter]
    ) -> None:
        self._shards, self._splitter = shards, splitter
        self._tables = [table for group in groups for table in group.tables]
        self._since: dict[bool, int | None] = {False: None, True: None}  # of snapshots, and of a feed
        self.flush: Callable[[], object] = shards.flush

    def _chunks(self) -> Iterator[tuple[str, RowChunk]]:
        """Yield the present rows; rows of a table come in order of (bucket, id), as from one store."""
        from satrap.checkpoint.merging import merge

        map = self._splitter().map
        for table in self._tables:
            sources = [self.export(shard, table, runs_of(map.buckets(shard))) for shard in map.members]
            deleted = [np.empty(0, np.uint64)] * len(sources)
            # In an even split, the shards have neighbouring ranges of buckets, in order.
            chunks = merge(sources, deleted) if map.runs else itertools.chain.from_iterable(sources)
            yield from ((table, chunk) for chunk in chunks)

    def export(
        self, shard: int, table: str | None, buckets: Sequence[range], *, rows: int = EXPORT_ROWS
    ) -> Iterator[RowChunk]:
        """Yield the rows of a table (None: of all tables) that a shard has in some runs of buckets.

        `rows`: most rows of a chunk; some chunks are requested ahead.
        """
        request = {"table": table, "buckets": [[run.start, run.stop] for run in buckets], "rows": rows}
        coming = deque([self._shards.ask(shard, MessageKind.EXPORT, [pack_text(request)])])
        while coming:
            while len(coming) <= AHEAD:
                coming.append(self._shards.ask(shard, MessageKind.EXPORT, [pack_text({})]))
            parts = self._shards.wait(coming.popleft())
            if len(parts) == 1:
                break
            yield unpack_chunk(parts)
        for answer in coming:
            self._shards.wait(answer)

    def cut(self, *, delta: bool | None = None, feed: str | None = None, still: bool = False) -> SnapshotCut:
        """See `RowSource.cut`. Each shard writes its own rows, all at the same time.

        A shard knows changes only since this client's previous cut. If one shard was restarted, it gives all
        its rows, and then all shards do.
        """
        from satrap.checkpoint.files.storage import FileEntry

        self.flush()
        if still:
            return SnapshotCut({}, self._write, chunks=self._chunks())
        number, answers = self._cut_all(delta, feed)
        if len({text["full"] for text in answers}) > 1:
            number, answers = self._cut_all(False, feed)
        full = all(text["full"] for text in answers)
        feeds = feed is not None
        before = self._since[feeds]
        if delta is not None:
            self._since[feeds] = number

        def put_back() -> None:
            self._since[feeds] = None  # no delta until all shards have put back
            self._shards.ask_all(MessageKind.PUT_BACK, [pack_text({"number": number, "feed": feed})])
            self._since[feeds] = None if full else before

        def write(storage: Storage, folder: str) -> dict[str, FileEntry]:
            place = {"number": number, "url": storage.absolute, "folder": folder, "feed": feed}
            results = self._run(MessageKind.WRITE, place, {"feed": feed})
            return {name: FileEntry(**entry) for r in results for name, entry in r["files"].items()}

        return SnapshotCut(largest(text["counts"] for text in answers), write, None if full else {}, put_back)

    def _cut_all(self, delta: bool | None, feed: str | None) -> tuple[int, list[dict[str, Any]]]:
        """Return (number of a cut, the reply of each shard)."""
        number = secrets.randbits(48)
        since = self._since[feed is not None]
        request = {"number": number, "delta": delta, "since": since, "feed": feed}
        answers = self._shards.ask_all(MessageKind.CUT, [pack_text(request)])
        return number, [told(parts) for parts in answers]

    def _write(self, storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        """Let each shard write its own rows, all at the same time; return the files.

        Shards that cannot see the folder, on other machines, send all rows here. A shard that restarts from
        its journal in between gets the request once more.
        """
        from satrap.checkpoint.files.storage import FileEntry
        from satrap.checkpoint.store_part import StorePart

        shown = next(iter(storage.names(folder)), "")
        request = {"url": storage.absolute, "folder": folder, "shown": shown}
        self._shards.ask_all(MessageKind.SAVE, [pack_text(request)])
        results = [self._saved(shard, request) for shard in self._shards.peers]
        self._check(results)
        files = {name: entry for r in results for name, entry in (r["files"] or {}).items()}
        if all(r["files"] is not None for r in results):
            return {name: FileEntry(**entry) for name, entry in files.items()}
        for name in files:
            storage.remove(f"{folder}/{name}")
        return StorePart((chunk for _, chunk in self._chunks()), self._tables).write(storage, folder)

    def _saved(self, shard: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until a shard has written its rows, or reports an error."""
        while (result := self._result(shard, {"save": True})).get("lost"):
            self._shards.ask(shard, MessageKind.SAVE, [pack_text(asked)]).result()
        return result

    def _run(
        self, kind: MessageKind, text: Mapping[str, Any], name: Mapping[str, Any] = {}
    ) -> list[dict[str, Any]]:
        """Run a job on all shards, next to their requests; wait for all, then raise the first error.

        `name`: identifies the job for `_result`.
        """
        self._shards.ask_all(kind, [pack_text(text)])
        return self._check([self._result(shard, name) for shard in self._shards.peers])

    def _result(self, shard: int, name: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until a shard's job is "done", or "lost" with a process, and return the shard's report."""
        while True:
            answer = self._shards.ask(shard, MessageKind.JOB, [pack_text(name)]).result()
            result = unpack_result(answer)
            if result["done"] or result.get("lost"):
                return result
            time.sleep(JOB_SECONDS)

    def _check(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the results of all shards' jobs, or raise the first error."""
        for result, peer in zip(results, self._shards.peers.values(), strict=True):
            if result.get("lost"):
                raise StoreError(
                    "the shard is neither writing nor reading a snapshot",
                    where=peer.name,
                    why="the shard was restarted in between",
                )
            if "error" in result:
                raise error_of(result["error"], peer.name)
        return results

    def read(self, url: str, *, follow: bool = False, feed: bool = False, exact: bool = False) -> None:
        """See `RowSource.read`. Each shard reads its own buckets from the files of all shards."""
        from satrap.checkpoint.files.storage import Storage

        numbers = [secrets.randbits(48) if enabled else None for enabled in (follow, feed)]
        request = {"url": Storage(url).absolute, "exact": exact}
        self._run(MessageKind.READ, request | dict(zip(("number", "feed_number"), numbers, strict=True)))
        self._since = dict(zip((False, True), numbers, strict=True))

    def load(self, table: str, chunk: RowChunk) -> None:
        """See `RowSource.load`."""
        for future in self.send(table, chunk, self._splitter().shards_of(table, chunk.ids)):
            self._shards.wait(future)

    def send(self, table: str, chunk: RowChunk, owners: Owners) -> list[Future[Sequence[Buffer]]]:
        """Send rows to shards to load, each shard its own rows; return futures of the responses.

        Args:
            table: table of the rows.
            chunk: the rows.
            owners: shard of each row, uint16[n].
        """
        size = chunk.weights.nbytes + chunk.state.nbytes + chunk.ids.nbytes
        pieces = max(1, -(-size // LOAD_BYTES))
        waiting: list[Future[Sequence[Buffer]]] = []
        for shard in np.unique(owners).tolist():
            for rows in np.array_split(np.flatnonzero(owners == shard), pieces):
                if len(rows):
                    part = pack_chunk(replace(chunk.pick(rows), table=table))
                    waiting.append(self._shards.ask(shard, MessageKind.LOAD, part))
        return waiting

    def clear(self) -> None:
        """See `RowSource.clear`."""
        self.flush()
        self._shards.ask_all(MessageKind.CLEAR)
