"""Saves and restores the rows of all ranks: each rank its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from satrap.errors import CheckpointError, SatrapError
from satrap.exchange.collective.messages import Channel, Operation
from satrap.exchange.collective.placement import Holders
from satrap.exchange.protocol import Snapshot, SnapshotCut
from satrap.exchange.states import CHUNK_ROWS, counts_of, held_by, largest, load_rows, restore, state_of
from satrap.store import Delta, RowChunk, Shard

if TYPE_CHECKING:
    from satrap.checkpoint.files.storage import FileEntry, Storage
    from satrap.checkpoint.store_part import StorePart


@dataclass(slots=True)
class _Writing:
    """A stream of snapshots or feeds, and the channel of the threads that write it."""

    channel: Channel
    take: Callable[[], StorePart]


class CollectiveDurability:
    """Every method is a collective call. All ranks write their rows at the same time, directed by rank 0.

    After `snapshot` or `cut`, rank 0 writes and then calls `release`; the other ranks call `assist`.

    Args:
        shard: the rows of this rank.
        holders: the placement of rows on ranks.
        run: runs a function in the thread of the exchange.
        channel: channel of that thread.
        aside: channel of the threads that write snapshots. Threads that write a feed get another one.
        flush: of the exchange.

    Attributes:
        writer: the word for a rank in file names. It separates these files from shard servers' files in the
            same snapshot.
    """

    writer = "shard"

    def __init__(
        self,
        shard: Shard,
        holders: Holders,
        run: Callable[[Callable[[], Any]], Any],
        channel: Channel,
        aside: Channel,
        flush: Callable[[], None],
    ) -> None:
        self._shard, self._holders, self._run, self._flush = shard, holders, run, flush
        self._channel, self._rank = channel, channel.ranks.rank
        self._snapshots = _Writing(aside, self._everything)
        self._feed: _Writing | None = None

    def _writing(self, feed: bool) -> _Writing:
        """Return the stream for snapshots or a feed; the first call for a feed is a collective."""
        if not feed:
            return self._snapshots
        if self._feed is None:
            self._feed = _Writing(Channel(self._snapshots.channel.ranks.another()), self._everything)
        return self._feed

    def _part(self, cut: Delta, state: Mapping[str, Any], feed: str | None = None) -> StorePart:
        from satrap.checkpoint.store_part import StorePart

        return StorePart(
            self._saved(cut.chunks),
            [table for group in self._shard.groups for table in group.tables],
            state,
            None if cut.full else cut.deleted,
            suffix=f".{self.writer}-{self._rank:04d}",
            buckets=self._holders.buckets,
            whole=self._holders.whole,
            weights=feed,
        )

    def _saved(self, chunks: Iterator[RowChunk]) -> Iterator[RowChunk]:
        """Yield the rows that this rank saves: without replicated rows that other ranks save."""
        from satrap.checkpoint.parts import within

        for chunk in chunks:
            buckets = self._holders.saved(chunk.table)
            rows = chunk if buckets == self._holders.held(chunk.table) else within(chunk, buckets)
            if len(rows.ids):
                yield rows

    def _everything(self) -> StorePart:
        return self._part(Delta(True, self._shard.snapshot(), {}), {})

    def snapshot(self) -> Snapshot:
        """See `Durability.snapshot`; the iterator yields the rows that this rank saves."""
        self._flush()
        self._snapshots.take = self._everything
        rows = ((chunk.table, chunk) for chunk in self._saved(self._shard.snapshot()))
        return Snapshot(rows, partial(self._write, self._snapshots))

    def cut(self, *, delta: bool | None = None, feed: str | None = None) -> SnapshotCut:
        """See `Durability.cut`; rank 0 decides whether it is a delta."""
        writing = self._writing(feed is not None)
        self._flush()
        changes = self._shard.weight_changes if feed else self._shard.changes
        [wish, *_] = self._run(lambda: self._channel.tell(Operation.CUT, {"delta": delta}))
        delta = wish["delta"]

        def take(full: bool) -> Delta:
            if delta is None:
                return Delta(True, self._shard.snapshot(), {})
            return changes.take(full=full, chunk_rows=CHUNK_ROWS)

        # A delta is only valid if every rank has one: if any rank has to write everything, all do.
        taken = take(not delta)
        replies = self._run(
            lambda: self._channel.tell(Operation.CUT, {"full": taken.full, "counts": counts_of(self._shard)})
        )
        if not taken.full and any(reply["full"] for reply in replies):
            taken.chunks.close()
            taken = take(True)
        part = self._part(taken, {} if feed else state_of(self._shard), feed)
        writing.take = lambda: part

        def put_back() -> None:
            taken.chunks.close()
            if delta is not None:
                changes.put_back(taken)

        counts = largest(reply["counts"] for reply in replies)
        return SnapshotCut(counts, partial(self._write, writing), None if taken.full else {}, put_back)

    def _write(self, writing: _Writing, storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        """On rank 0: let all ranks write their rows, and return the files."""
        from satrap.checkpoint.files.storage import FileEntry

        writing.channel.tell(Operation.WRITE, {"url": storage.absolute, "folder": folder})
        files = self._written(writing, lambda: storage, folder)
        return {name: FileEntry(**entry) for name, entry in files.items()}

    def _written(self, writing: _Writing, storage: Callable[[], Storage], folder: str) -> dict[str, Any]:
        """Write the rows of this rank; return the files of all ranks, or raise the error of any rank."""

        def work() -> dict[str, Any]:
            try:
                entries = writing.take().write(storage(), folder)
                return {name: asdict(entry) for name, entry in entries.items()}
            except SatrapError:
                raise
            except Exception as error:  # any error: the other ranks wait for the result
                what = f"the rows cannot be written: {type(error).__name__}: {error}"
                raise CheckpointError(what, where=folder) from error

        by_rank = writing.channel.ask(Operation.WRITTEN, work)
        return dict(itertools.chain.from_iterable(files.items() for files in by_rank))

    def assist(self, *, feed: bool = False) -> bool:
        """On ranks other than 0: write rows whenever rank 0 does; return whether rank 0 kept them."""
        from satrap.checkpoint.files.storage import Storage

        writing = self._writing(feed)
        while True:
            order = writing.channel.tell(Operation.WRITE, {})[0]
            if "kept" in order:
                return bool(order["kept"])
            with suppress(SatrapError):  # rank 0 receives the error and decides; a lost rank stays lost
                self._written(writing, partial(Storage, order["url"]), order["folder"])

    def release(self, *, kept: bool, feed: bool = False) -> None:
        """On rank 0: release the other ranks; `kept`: their files are part of a checkpoint."""
        self._writing(feed).channel.tell(Operation.WRITE, {"kept": kept})

    def read(self, url: str, *, follow: bool = False, feed: bool = False, exact: bool = False) -> None:
        """See `Durability.read`."""
        from satrap.checkpoint.chain import read_buckets

        if exact:
            self._run(lambda: restore(self._shard, url, self._holders.buckets))
        held = held_by(self._shard, self._holders.held)
        _, alone = self._run(lambda: load_rows(self._shard, read_buckets(url, held)))
        if follow and alone:
            self._shard.changes.follow()
        if feed and alone:
            self._shard.weight_changes.follow()

    def load(self, table: str, chunk: RowChunk) -> None:
        """Insert or overwrite the rows of a chunk that this rank holds, with their optimizer state."""
        from satrap.checkpoint.parts import within

        self._run(lambda: self._shard.load(table, within(chunk, self._holders.held(table))))

    def clear(self) -> None:
        """Delete every row."""
        self._run(self._shard.clear)

    def close(self) -> None:
        """Disconnect from the other ranks."""
        for writing in filter(None, (self._snapshots, self._feed)):
            writing.channel.ranks.close()
