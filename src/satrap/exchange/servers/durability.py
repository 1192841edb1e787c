"""Saves and restores rows that shard servers hold: each shard reads and writes its own."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from satrap.exchange.protocol import Cut, Durability, Snapshot, TableGroup
from satrap.exchange.servers.chunks import pack_chunk, unpack_chunk
from satrap.exchange.servers.shards import JOB_SECONDS, Shards
from satrap.exchange.split import Splitter
from satrap.exchange.states import largest
from satrap.rpc.client.call import told
from satrap.rpc.wire.frames import Buffer, Kind
from satrap.rpc.wire.text import pack_text
from satrap.store import Chunk

if TYPE_CHECKING:
    from satrap.checkpoint.storage import FileEntry, Storage

LOAD_BYTES = 32 << 20
"""Rows of a chunk are sent to the shards in pieces of about this size."""


class ServersDurability(Durability):
    """Saves and restores the rows of shards.

    Args:
        shards: the shards.
        groups: their table groups.
        splitter: which shard has which rows.
    """

    def __init__(self, shards: Shards, groups: Sequence[TableGroup], splitter: Splitter) -> None:
        self._shards, self._splitter = shards, splitter
        self._tables = [table for group in groups for table in group.tables]
        self._since: int | None = None

    def snapshot(self) -> Snapshot:
        """See `Durability.snapshot`; rows of a table come in order of (bucket, id), as from one store."""
        return Snapshot(self._chunks(), self._write)

    def _chunks(self) -> Iterator[tuple[str, Chunk]]:
        self._shards.flush()
        for table in self._tables:
            for shard in range(len(self._shards.peers)):
                for chunk in self._export(shard, table):
                    yield table, chunk

    def _export(self, shard: int, table: str) -> Iterator[Chunk]:
        coming = self._shards.ask(shard, Kind.EXPORT, [pack_text({"table": table})])
        while len(parts := coming.result()) > 1:
            coming = self._shards.ask(shard, Kind.EXPORT, [pack_text({})])
            yield unpack_chunk(parts)

    def cut(self, *, delta: bool | None = None) -> Cut:
        """See `Durability.cut`. Each shard writes its own rows, all at the same time.

        A shard knows changes only since this client's previous cut. If one shard was restarted, it gives all
        its rows, and then all shards do.
        """
        from satrap.checkpoint.storage import FileEntry

        self._shards.flush()
        number, answers = self._cut_all(delta)
        if len({text["full"] for text in answers}) > 1:
            number, answers = self._cut_all(False)
        full = all(text["full"] for text in answers)
        before = self._since
        if delta is not None:
            self._since = number

        def put_back() -> None:
            self._since = None  # until all shards have done it
            self._shards.tell_all(Kind.PUT_BACK, {"number": number})
            self._since = None if full else before

        def write(storage: Storage, folder: str) -> dict[str, FileEntry]:
            place = {"number": number, "url": storage.absolute, "folder": folder}
            results = self._shards.run_jobs(Kind.WRITE, place)
            return {name: FileEntry(**entry) for r in results for name, entry in r["files"].items()}

        return Cut(largest(text["counts"] for text in answers), write, None if full else {}, put_back)

    def _cut_all(self, delta: bool | None) -> tuple[int, list[dict[str, Any]]]:
        """Return (number of a cut, what each shard said to it)."""
        number = secrets.randbits(48)
        answers = self._shards.tell_all(Kind.CUT, {"number": number, "delta": delta, "since": self._since})
        return number, [told(parts) for parts in answers]

    def _write(self, storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        """Have each shard write its own rows, all at the same time; return the files.

        Shards that do not see the folder, being on other machines, send all rows here. One that comes back
        from its journal meanwhile is asked once more.
        """
        from satrap.checkpoint.storage import FileEntry
        from satrap.checkpoint.store_part import StorePart

        self._shards.flush()
        shown = next(iter(storage.names(folder)), "")
        asked = {"url": storage.absolute, "folder": folder, "shown": shown}
        self._shards.tell_all(Kind.SAVE, asked)
        results = [self._saved(shard, asked) for shard in range(len(self._shards.peers))]
        self._shards.check_jobs(results)
        files = {name: entry for r in results for name, entry in (r["files"] or {}).items()}
        if all(r["files"] is not None for r in results):
            return {name: FileEntry(**entry) for name, entry in files.items()}
        for name in files:
            storage.remove(f"{folder}/{name}")
        return StorePart((chunk for _, chunk in self._chunks()), self._tables).write(storage, folder)

    def _saved(self, shard: int, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Wait until a shard has written its rows, or tells why not."""
        while not (result := self._shards.job(shard, {"save": True}))["done"]:
            if result.get("lost"):
                self._shards.ask(shard, Kind.SAVE, [pack_text(asked)]).result()
            time.sleep(JOB_SECONDS)
        return result

    def read(self, url: str, *, follow: bool = False, exact: bool = False) -> None:
        """See `Durability.read`. Each shard reads the rows of its own buckets, whoever wrote them."""
        from satrap.checkpoint.storage import Storage

        number = secrets.randbits(48) if follow else None
        self._shards.run_jobs(Kind.READ, {"url": Storage(url).absolute, "number": number, "exact": exact})
        self._since = number

    def load(self, table: str, chunk: Chunk) -> None:
        """See `Durability.load`."""
        owners = self._splitter.shards_of(table, chunk.ids)
        size = chunk.weights.nbytes + chunk.state.nbytes + chunk.ids.nbytes
        pieces = max(1, -(-size // LOAD_BYTES))
        waiting: list[Future[Sequence[Buffer]]] = []
        for shard in range(len(self._shards.peers)):
            for rows in np.array_split(np.flatnonzero(owners == shard), pieces):
                if len(rows):
                    part = pack_chunk(_take(table, chunk, rows))
                    waiting.append(self._shards.ask(shard, Kind.LOAD, part))
        for future in waiting:
            future.result()

    def clear(self) -> None:
        """See `Durability.clear`."""
        self._shards.ask_all(Kind.CLEAR)


def _take(table: str, chunk: Chunk, rows: np.ndarray[Any, Any]) -> Chunk:
    columns = {f.name: getattr(chunk, f.name) for f in dataclasses.fields(chunk) if f.name != "table"}
    return Chunk(table=table, **{name: column[rows] for name, column in columns.items()})
