"""The row files of a checkpoint. No PyTorch here, so that shard servers start fast."""

import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import numpy as np
import pyarrow as pa

from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.rows import read_rows, write_rows
from satrap.checkpoint.storage import FileEntry, Storage, damaged
from satrap.store import BUCKETS, Chunk, bucket_of
from satrap.store.buckets import mask_of, runs_of

T = TypeVar("T")

Buckets = Sequence[int] | Callable[[str], Sequence[int]]
"""Fixed buckets, ascending: of all tables, or of each by its name."""


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items and make the next one meanwhile; the consumer gets errors, and ends the thread."""
    source, end = iter(items), object()
    with ThreadPoolExecutor(1, "satrap-ahead") as pool:
        coming = pool.submit(next, source, end)
        while (item := coming.result()) is not end:
            coming = pool.submit(next, source, end)
            yield item  # type: ignore[misc]


def write_file(storage: Storage, name: str, data: Iterable[bytes | memoryview]) -> FileEntry:
    """Write a whole file, piece by piece; return its entry."""
    with storage.writer(name) as writer:
        for piece in data:
            writer.write(piece)
    return writer.entry


def write_table(storage: Storage, name: str, table: str, chunks: Iterator[Chunk]) -> FileEntry:
    """Write the rows of a table, at least one chunk; return the file's entry.

    A thread makes the next chunk while this one is checksummed and written, so memory holds two chunks and a
    few pieces of the file.
    """
    with closing(ahead(chunks)) as made, storage.writer(name) as writer:
        rows = write_rows(writer, next(made), made)
    writer.entry.table, writer.entry.rows = table, rows
    return writer.entry


def write_tables(
    storage: Storage,
    folder: str,
    chunks: Iterable[Chunk],
    tables: Sequence[str] | None = None,
    *,
    suffix: str = "",
    buckets: Sequence[int] = range(BUCKETS),
    whole: Collection[str] = (),
) -> dict[str, FileEntry]:
    """Write the rows of several tables, one file each; return name -> entry. One without rows gets no file.

    A table has a file for each run of neighbouring buckets, so that files can be read in order of buckets.

    The chunks come table after table, in canonical order. The position of a table in `tables`, else among
    the tables with rows, is the number of its file. The suffix of names tells several writers apart. The
    rows are of some fixed buckets, but all there are of the tables that are `whole`.
    """
    files: dict[str, FileEntry] = {}
    runs = runs_of(buckets)
    for found, (table, parts) in enumerate(itertools.groupby(chunks, key=lambda chunk: chunk.table)):
        number = found if tables is None else tables.index(table)
        own = [range(BUCKETS)] if table in whole else runs
        for run, pieces in itertools.groupby(_by_run(parts, own), key=lambda piece: piece[0]):
            more = f"-{run:04d}" if run else ""
            name = f"table-{number:03d}{suffix}{more}.arrow"
            entry = write_table(storage, f"{folder}/{name}", table, (chunk for _, chunk in pieces))
            files[name] = of_buckets(entry, own[run])
    return files


def _by_run(chunks: Iterable[Chunk], runs: Sequence[range]) -> Iterator[tuple[int, Chunk]]:
    """Yield (number of the run, rows of its buckets); the chunks are in canonical order."""
    if len(runs) == 1:
        yield from ((0, chunk) for chunk in chunks)
        return
    ends = np.array([run.stop for run in runs])
    for chunk in chunks:
        of_row = np.searchsorted(ends, bucket_of(chunk.table, chunk.ids), side="right")
        for run in np.unique(of_row).tolist():
            yield run, chunk.pick(of_row == run)


def of_buckets(entry: FileEntry, buckets: range) -> FileEntry:
    """Set the fixed buckets of a file's entry, unless they are all; return the entry."""
    if len(buckets) < BUCKETS:
        entry.buckets = [buckets.start, buckets.stop]
    return entry


def _in_order(manifest: Manifest) -> list[tuple[str, FileEntry]]:
    """Return the row files with their names: each table's by their buckets, whichever shard wrote them."""
    files = [(name, entry) for name, entry in manifest.files.items() if entry.table]
    tables = {entry.table: at for at, (_, entry) in reversed(list(enumerate(files)))}
    return sorted(files, key=lambda file: (tables[file[1].table], file[1].buckets))


def read_chunks(
    storage: Storage, manifest: Manifest, table: str | None = None, buckets: Buckets = range(BUCKETS)
) -> Iterator[tuple[str, Chunk]]:
    """Yield (table, verified rows) of one checkpoint, without the snapshots it builds on; default all rows.

    Files that hold none of the fixed buckets are not opened.
    """
    for name, entry in _in_order(manifest):
        if table not in (None, entry.table):
            continue
        own = buckets(entry.table) if callable(buckets) else buckets
        held = mask_of(own)[slice(*(entry.buckets or (0, BUCKETS)))]
        if not held.any():
            continue
        for chunk in _table_chunks(storage, f"{manifest.data}/{name}", entry):
            yield entry.table, chunk if held.all() else within(chunk, own)


def within(chunk: Chunk, buckets: Sequence[int]) -> Chunk:
    """Return the rows of some fixed buckets."""
    return chunk.pick(mask_of(buckets)[bucket_of(chunk.table, chunk.ids)])


_WRONG = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError)
"""Raised by reading a file that holds no rows. `BlockReader` has turned errors of the disk into others."""


def _table_chunks(storage: Storage, name: str, entry: FileEntry) -> Iterator[Chunk]:
    rows = 0
    with storage.open(name, entry) as file:
        try:
            for chunk in read_rows(pa.PythonFile(file, mode="r"), entry.table):
                rows += len(chunk.ids)
                yield chunk
        except _WRONG as error:  # right checksums, wrong content
            raise damaged(storage.path(name), str(error)) from error
        file.read()  # verifies what Arrow did not read
    if rows != entry.rows:
        raise damaged(storage.path(name), f"it holds {rows} rows, the manifest says {entry.rows}")
