"""Rewrites the row files of a checkpoint for another number of shards."""

import itertools
from collections.abc import Iterator

import numpy as np

from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.manifest import Manifest
from satrap.checkpoint.parts import of_buckets, read_chunks, write_table
from satrap.checkpoint.rewrite import rewrite_rows
from satrap.checkpoint.series import find
from satrap.exchange.servers import ShardMap
from satrap.store import RowChunk, bucket_of
from satrap.store.buckets import runs_of


def reshard_everywhere(url: str, shards: int) -> dict[str, int]:
    """Rewrite every checkpoint in a folder for a number of shards, each in one step; return name -> rows.

    Resuming does not need this, because each shard reads the files that hold its buckets. Afterwards, each
    shard's rows are in its own files. Memory is bounded. A checkpoint that is damaged or cannot be written
    raises CheckpointError; earlier ones are already rewritten.
    """
    shard_map, done = ShardMap(shards), {}
    for name, place in find(url).items():
        manifest = rewrite_rows(place, lambda storage, folder, old: _write(storage, folder, old, shard_map))
        done[name] = sum(manifest.rows().values())
    return done


def _write(storage: Storage, folder: str, old: Manifest, shard_map: ShardMap) -> dict[str, FileEntry]:
    files: dict[str, FileEntry] = {}
    for number, table in enumerate(old.rows()):
        pieces = _pieces(storage, old, table, shard_map)
        for shard, group in itertools.groupby(pieces, key=lambda piece: piece[0]):
            name = f"table-{number:03d}.shard-{shard:04d}.arrow"
            entry = write_table(storage, f"{folder}/{name}", table, (chunk for _, chunk in group))
            [buckets] = runs_of(shard_map.buckets(shard))
            files[name] = of_buckets(entry, buckets)
    return files


def _pieces(
    storage: Storage, old: Manifest, table: str, shard_map: ShardMap
) -> Iterator[tuple[int, RowChunk]]:
    """Yield (shard, rows); rows are in bucket order, so each shard occurs once."""
    for _, chunk in read_chunks(storage, old, table):
        shards = shard_map.owners[bucket_of(table, chunk.ids)]
        for shard in np.unique(shards).tolist():
            yield shard, chunk.pick(shards == shard)
