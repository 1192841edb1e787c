"""Writes one store's part of a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from satrap.checkpoint.chain import Ids, deleted_file, pack_deleted
from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.parts import write_file, write_tables
from satrap.checkpoint.stores import Arrays, write_store
from satrap.store import BUCKETS, RowChunk


@dataclass(frozen=True, slots=True)
class StorePart:
    """All rows of a store, or the rows that changed; written once.

    Args:
        chunks: the rows, table after table, by bucket, then id.
        tables: names of all its tables; a table's position is the number of its file.
        state: other state that the store needs to continue exactly, see `write_store`.
        deleted: by table, ids that lost their row, if `chunks` are changes and no other writer has these ids.
        suffix: suffix of the file names, to distinguish several stores.
        buckets: the fixed buckets of its rows, ascending.
        whole: tables whose rows of all buckets it has.
        weights: write only weights, in this format, see `RowChunk.only_weights`; None: also optimizer state.
    """

    chunks: Iterable[RowChunk]
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
