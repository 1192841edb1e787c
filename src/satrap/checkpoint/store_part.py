"""Writes what one store gives to a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from satrap.checkpoint.chain import Ids, deleted_file, pack_deleted
from satrap.checkpoint.parts import write_file, write_tables
from satrap.checkpoint.storage import FileEntry, Storage
from satrap.checkpoint.stores import Arrays, write_store
from satrap.store import BUCKETS, Chunk


@dataclass(frozen=True, slots=True)
class StorePart:
    """The rows of a store, or those that changed; written once.

    Args:
        chunks: the rows, table after table, in canonical order.
        tables: names of all its tables; a table's position is the number of its file.
        state: what else the store needs to continue exactly, see `write_store`.
        deleted: by table, ids that have lost their row, if `chunks` are changes and nobody else writes them.
        suffix: of the names of its files; tells several stores apart.
        buckets: the fixed buckets of its rows, ascending.
        whole: tables of which it has the rows of all buckets.
        weights: write only weights, in this format, see `Chunk.only_weights`; None: optimizer states, too.
    """

    chunks: Iterable[Chunk]
    tables: Sequence[str]
    state: Arrays = field(default_factory=dict)
    deleted: Mapping[str, Ids] | None = None
    suffix: str = ""
    buckets: Sequence[int] = range(BUCKETS)
    whole: Collection[str] = ()
    weights: str | None = None

    def write(self, storage: Storage, folder: str) -> dict[str, FileEntry]:
        """Write the files; return name -> entry.

        Raises:
            CheckpointError, OSError: the storage cannot be written to.
        """
        suffix, buckets, chunks, weights = self.suffix, self.buckets, self.chunks, self.weights
        if weights is not None:
            chunks = (chunk.only_weights(weights) for chunk in chunks)
        files = write_tables(
            storage, folder, chunks, self.tables, suffix=suffix, buckets=buckets, whole=self.whole
        )
        files |= write_store(storage, folder, self.state, suffix=suffix, buckets=buckets)
        if self.deleted is not None:
            name = deleted_file(suffix)
            files[name] = write_file(storage, f"{folder}/{name}", [pack_deleted(self.deleted)])
        return files
