"""The row files of a checkpoint. Does not import PyTorch, so that shard servers start fast."""

import itertools
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TypeVar

import numpy as np
import pyarrow as pa

from satrap.checkpoint.files.storage import FileEntry, Storage, damaged
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.rows import read_rows, write_rows
from satrap.store import BUCKETS, RowChunk, bucket_of
from satrap.store.buckets import mask_of, runs_of

T = TypeVar("T")

Buckets = Sequence[int] | Callable[[str], Sequence[int]]
"""Fixed buckets, ascending: for all tables, or a function of the table's name."""


def ahead(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items while a thread computes the next one; the consumer gets errors, and ends the thread."""
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


def write_table(storage: Storage, name: str, table: str, chunks: Iterator[RowChunk]) -> FileEntry:
    """Write the rows of a table, at least one chunk; return the file's entry.

    A thread computes the next chunk while the current one is checksummed and written, so memory holds two
    chunks and a few pieces of the file.
    """
    with closing(ahead(chunks)) as made, storage.writer(name) as writer:
        rows = write_rows(writer, next(made), made)
    writer.entry.table, writer.entry.rows = table, rows
    return writer.entry


def write_tables(
    storage: Storage,
    folder: str,
    chunks: Iterable[RowChunk],
    tables: Sequence[str] | None = None,
    *,
    suffix: str = "",
    buckets: Sequence[int] = range(BUCKETS),
    whole: Collection[str] = (),
) -> dict[str, FileEntry]:
    """Write the rows of several tables, one file each; return name -> entry. Tables without rows get no file.

    A table has a file for each run of consecutive buckets, so that files can be read in bucket order.

    The chunks come table after table, by bucket, then id. The number of a table's file is its position in
    `tables`, by default among the tables with rows. The suffix distinguishes the files of several writers.
    The rows are of these fixed buckets only, except for the tables in `whole`, which have all buckets.
    """
    files: dict[str, FileEntry] = {}
    runs = runs_of(buckets)
    for at, (table, parts) in enumerate(itertools.groupby(chunks, key=lambda chunk: chunk.table)):
        number = at if tables is None else tables.index(table)
        table_runs = [range(BUCKETS)] if table in whole else runs
        for run, pieces in itertools.groupby(_by_run(parts, table_runs), key=lambda piece: piece[0]):
            more = f"-{run:04d}" if run else ""
            name = f"table-{number:03d}{suffix}{more}.arrow"
            entry = write_table(storage, f"{folder}/{name}", table, (chunk for _, chunk in pieces))
            files[name] = of_buckets(entry, table_runs[run])
    return files


def _by_run(chunks: Iterable[RowChunk], runs: Sequence[range]) -> Iterator[tuple[int, RowChunk]]:
    """Yield (number of the run, rows of its buckets); the chunks are ordered by bucket, then id."""
    if len(runs) == 1:
        yield from ((0, chunk) for chunk in chunks)
        return
    ends = np.array([run.stop for run in runs])
    for chunk in chunks:
        of_row = np.searchsorted(ends, bucket_of(chunk.table, chunk.ids), side="right")
        for run in np.unique(of_row).tolist():
            yield run, chunk.pick(of_row == run)


def of_buckets(entry: FileEntry, buckets: range) -> FileEntry:
    """Set the fixed buckets of a file's entry unless it has all buckets; return the entry."""
    if len(buckets) < BUCKETS:
        entry.buckets = [buckets.start, buckets.stop]
    return entry


def _in_order(manifest: Manifest) -> list[tuple[str, FileEntry]]:
    """Return the row files with their names, by table, then buckets, regardless of the shard."""
    files = [(name, entry) for name, entry in manifest.files.items() if entry.table]
    tables = {entry.table: at for at, (_, entry) in reversed(list(enumerate(files)))}
    return sorted(files, key=lambda file: (tables[file[1].table], file[1].buckets))


def read_chunks(
    storage: Storage, manifest: Manifest, table: str | None = None, buckets: Buckets = range(BUCKETS)
) -> Iterator[tuple[str, RowChunk]]:
    """Yield (table, verified rows) of one checkpoint, without the snapshots it builds on; default all rows.

    Files without any of the fixed buckets are not opened.
    """
    for name, entry in _in_order(manifest):
        if table not in (None, entry.table):
            continue
        selected = buckets(entry.table) if callable(buckets) else buckets
        held = mask_of(selected)[slice(*(entry.buckets or (0, BUCKETS)))]
        if not held.any():
            continue
        for chunk in _table_chunks(storage, f"{manifest.data}/{name}", entry):
            yield entry.table, chunk if held.all() else within(chunk, selected)


def within(chunk: RowChunk, buckets: Sequence[int]) -> RowChunk:
    """Return the rows of some fixed buckets."""
    return chunk.pick(mask_of(buckets)[bucket_of(chunk.table, chunk.ids)])


_WRONG = (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError)
"""Errors of reading a file that does not hold rows. `BlockReader` converts disk errors to other types."""


def _table_chunks(storage: Storage, name: str, entry: FileEntry) -> Iterator[RowChunk]:
    rows = 0
    with storage.open(name, entry) as file:
        try:
            for chunk in read_rows(pa.PythonFile(file, mode="r"), entry.table):
                rows += len(chunk.ids)
                yield chunk
        except _WRONG as error:  # valid checksums, invalid content
            raise damaged(storage.path(name), str(error)) from error
        file.read()  # verifies the bytes that Arrow did not read
    if rows != entry.rows:
        raise damaged(storage.path(name), f"it holds {rows} rows instead of {entry.rows}")
