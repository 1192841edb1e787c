"""Sources of rows: a store in this process, and several sources together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import chain
from typing import TYPE_CHECKING, Any

from satrap.exchange.protocol import RowSource, SnapshotCut
from satrap.exchange.states import (
    CHUNK_ROWS,
    counts_of,
    held_by,
    load_rows,
    restore,
    state_of,
)
from satrap.store import BUCKETS, Delta, RowChunk, Shard

if TYPE_CHECKING:
    from satrap.checkpoint.files.storage import FileEntry, Storage
    from satrap.exchange.collective.placement import Holders


class StoreRows(RowSource):
    """The rows of a store in this process: all rows of an exchange, or the rows of one rank.

    Training may continue while a cut is written or read, also a `still` one.

    Args:
        shard: the store.
        run: runs a function in the thread that orders all changes of rows, and returns its result.
        flush: of the exchange.
        holders: the placement of rows on ranks; None: all rows are here.

    Attributes:
        writer: the word for a rank in file names. It separates these files from shard servers' files in the
            same snapshot.
    """

    writer = "shard"

    def __init__(
        self,
        shard: Shard,
        run: Callable[[Callable[[], Any]], Any],
        flush: Callable[[], None],
        holders: Holders | None = None,
    ) -> None:
        self._shard, self._run, self._flush, self._holders = shard, run, flush, holders

    def cut(self, *, delta: bool | None = None, feed: str | None = None, still: bool = False) -> SnapshotCut:
        """See `RowSource.cut`."""
        from satrap.checkpoint.store_part import StorePart

        self._flush()
        changes = self._shard.weight_changes if feed else self._shard.changes
        if delta is None:
            taken = Delta(True, self._shard.snapshot(), {})
        else:
            taken = changes.take(full=not delta, chunk_rows=CHUNK_ROWS)

        def put_back() -> None:
            taken.chunks.close()
            if delta is not None:
                changes.put_back(taken)

        saved, deleted = self._saved(taken.chunks), None if taken.full else taken.deleted
        state = {} if still or feed else state_of(self._shard)
        tables, holders = [table for group in self._shard.groups for table in group.tables], self._holders
        part = StorePart(saved, tables, state, weights=feed)
        if holders is not None:
            name = f".{self.writer}-{holders.rank:04d}"
            part = StorePart(saved, tables, state, deleted, name, holders.buckets, holders.whole, feed)
        # A rank writes the ids that lost their rows; a single store leaves that to the caller.
        deleted = {} if deleted is not None and self._holders else deleted
        chunks = ((chunk.table, chunk) for chunk in saved)
        return SnapshotCut(counts_of(self._shard), part.write, deleted, put_back, chunks)

    def _saved(self, chunks: Iterator[RowChunk]) -> Iterator[RowChunk]:
        """Yield the rows that this process saves: without replicated rows that other ranks save."""
        if self._holders is None:
            yield from chunks
            return
        from satrap.checkpoint.parts import within

        for chunk in chunks:
            buckets = self._holders.saved(chunk.table)
            rows = chunk if buckets == self._holders.held(chunk.table) else within(chunk, buckets)
            if len(rows.ids):
                yield rows

    def read(self, url: str, *, follow: bool = False, feed: bool = False, exact: bool = False) -> None:
        """See `RowSource.read`."""
        from satrap.checkpoint.chain import read_buckets

        holders = self._holders
        if exact:
            buckets = range(BUCKETS) if holders is None else holders.buckets
            self._run(lambda: restore(self._shard, url, buckets))
        held = range(BUCKETS) if holders is None else held_by(self._shard, holders.held)
        _, alone = self._run(lambda: load_rows(self._shard, read_buckets(url, held)))
        if follow and alone:
            self._shard.changes.follow()
        if feed and alone:
            self._shard.weight_changes.follow()

    def load(self, table: str, chunk: RowChunk) -> None:
        """See `RowSource.load`."""
        if self._holders is not None:
            from satrap.checkpoint.parts import within

            chunk = within(chunk, self._holders.held(table))
        self._run(lambda: self._shard.load(table, chunk))

    def clear(self) -> None:
        """See `RowSource.clear`."""
        self._run(self._shard.clear)


class CombinedRows(RowSource):
    """The rows of several sources, which have different tables; without sources, no rows.

    Args:
        sources: the sources.
        tables: tables with another source than the first one.
        ignored: `load` ignores rows of all other tables: another process holds them.
    """

    def __init__(
        self, *sources: RowSource, tables: Mapping[str, RowSource] = {}, ignored: bool = False
    ) -> None:
        self._sources, self._by_table = sources, tables
        self._others = None if ignored else sources[0]

    def cut(self, *, delta: bool | None = None, feed: str | None = None, still: bool = False) -> SnapshotCut:
        """See `RowSource.cut`. If one source can only give all rows, so do the others."""
        cuts = [source.cut(delta=delta, feed=feed, still=still) for source in self._sources]
        full = any(cut.deleted is None for cut in cuts)
        for n, cut in enumerate(cuts):
            if full and cut.deleted is not None:
                cuts[n] = self._sources[n].cut(delta=False, feed=feed)

        def write(storage: Storage, folder: str) -> dict[str, FileEntry]:
            return {name: entry for cut in cuts for name, entry in cut.write(storage, folder).items()}

        def put_back() -> None:
            with ExitStack() as stack:  # all of them, even after an error
                for cut in reversed(cuts):
                    stack.callback(cut.put_back)

        counts = {table: values for cut in cuts for table, values in cut.counts.items()}
        deleted = {table: ids for cut in cuts for table, ids in (cut.deleted or {}).items()}
        return SnapshotCut(counts, write, None if full else deleted, put_back, chain.from_iterable(cuts))

    def read(self, url: str, *, follow: bool = False, feed: bool = False, exact: bool = False) -> None:
        """See `RowSource.read`."""
        for source in self._sources:
            source.read(url, follow=follow, feed=feed, exact=exact)

    def load(self, table: str, chunk: RowChunk) -> None:
        """See `RowSource.load`."""
        if (source := self._by_table.get(table, self._others)) is not None:
            source.load(table, chunk)

    def clear(self) -> None:
        """See `RowSource.clear`."""
        for source in self._sources:
            source.clear()
