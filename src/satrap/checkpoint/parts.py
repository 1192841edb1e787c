"""The row files of a checkpoint; nothing here needs PyTorch, so that shard servers start fast."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from satrap.checkpoint.ahead import ahead
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.rows import read_rows, write_rows
from satrap.checkpoint.storage import FileEntry, Storage, damaged
from satrap.store import Chunk


def write_table(storage: Storage, name: str, table: str, chunks: Iterator[Chunk]) -> FileEntry:
    """Write the rows of a table, at least one chunk; return the file's entry.

    A chunk is made, in a thread, while the one before is checksummed and written: two are in memory.
    """
    with storage.writer(name) as writer:
        made = ahead(chunks)
        rows = write_rows(writer, next(made), made)
    writer.entry.table, writer.entry.rows = table, rows
    return writer.entry


def read_chunks(
    storage: Storage, manifest: Manifest, table: str | None = None
) -> Iterator[tuple[str, Chunk]]:
    """Yield (table, verified rows) of all tables, or of one.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    for name, entry in manifest.files.items():
        if entry.table and table in (None, entry.table):
            for chunk in _table_chunks(storage, f"{manifest.data}/{name}", entry):
                yield entry.table, chunk


def _table_chunks(storage: Storage, name: str, entry: FileEntry) -> Iterator[Chunk]:
    rows = 0
    with storage.open(name, entry) as file:
        try:
            for chunk in read_rows(pa.PythonFile(file, mode="r")):
                rows += len(chunk.ids)
                yield chunk
        except (
            pa.ArrowException,
            ValueError,
            KeyError,
            TypeError,
        ) as error:  # right checksums, wrong content
            raise damaged(storage.path(name), str(error)) from error
        file.read()  # to the end: what Arrow did not ask for is verified too
    if rows != entry.rows:
        raise damaged(storage.path(name), f"it holds {rows} rows, the manifest says {entry.rows}")
