"""Changes the rows of an existing checkpoint: writes a new one that replaces it in one step."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from satrap.checkpoint.chain import is_deleted_file, open_chain, pack_deleted, unpack_deleted
from satrap.checkpoint.dense import pack_tensors, unpack_tensors
from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.checkpoint.parts import read_chunks, write_file, write_table
from satrap.checkpoint.snapshot import commit, data_folder, is_worker_file, read_part
from satrap.checkpoint.storage import FileEntry, Storage
from satrap.checkpoint.stores import is_store_file, without_id
from satrap.errors import CheckpointError
from satrap.store import Chunk

Change = Callable[[Iterator[Chunk]], Iterable[Chunk]]


def rewrite(
    url: str, table: str, change: Change, *, edit: Callable[[str, bytes], bytes] | None = None
) -> Manifest:
    """Change the rows of one table; verify and copy everything else.

    Args:
        url: of the checkpoint.
        table: name of the table; it may be new.
        change: given the table's chunks, returns the new ones.
        edit: given name and content of any other file, returns the new content.

    Raises:
        CheckpointError: damaged, or it cannot be written; the checkpoint is unchanged.
    """
    storage = Storage(url)
    old = read_manifest(storage)
    try:
        with data_folder(storage) as folder:
            files: dict[str, FileEntry] = {}
            for name, entry in old.files.items():
                if entry.table == table:
                    continue
                data = read_part(storage, old, name)
                changed = edit(name, data) if edit is not None and not entry.table else data
                files[name] = write_file(storage, f"{folder}/{name}", changed)
                files[name].table, files[name].rows = entry.table, entry.rows
                files[name].buckets = entry.buckets
            chunks = iter(change(chunk for _, chunk in read_chunks(storage, old, table)))
            first = next(chunks, None)
            if first is not None:
                name = _free(old, files, table)
                whole = (chunk for part in ((first,), chunks) for chunk in part)
                files[name] = write_table(storage, f"{folder}/{name}", table, whole)
        manifest = replace(old, data=folder, files=dict(sorted(files.items(), key=lambda f: f[0])))
        commit(storage, manifest)
    except OSError as error:
        raise CheckpointError(f"the checkpoint could not be written: {error}", where=url) from error
    return manifest


def compact(url: str) -> Manifest:
    """Make a delta a full snapshot, which needs no snapshot before it; the deltas after it stay valid.

    Args:
        url: of the snapshot; a full one stays as it is.

    Raises:
        CheckpointError: damaged, a snapshot before it is missing, or it cannot be written; it is unchanged.
    """
    chain = open_chain(url)
    storage, old = chain.members[-1]
    if old.delta is None:
        return old
    try:
        with data_folder(storage) as folder:
            files: dict[str, FileEntry] = {}
            for name, entry in old.files.items():
                if not entry.table and not is_deleted_file(name):
                    files[name] = _copied(storage, folder, old, name)
            tables = itertools.groupby(chain.chunks(), key=lambda pair: pair[0])
            for number, (table, pairs) in enumerate(tables):
                name = f"table-{number:03d}.arrow"
                files[name] = write_table(storage, f"{folder}/{name}", table, (chunk for _, chunk in pairs))
        manifest = replace(old, data=folder, files=files, delta=None)
        commit(storage, manifest)
    except OSError as error:
        raise CheckpointError(f"the checkpoint could not be written: {error}", where=url) from error
    return manifest


def rewrite_rows(url: str, rows: Callable[[Storage, str, Manifest], dict[str, FileEntry]]) -> Manifest:
    """Write the rows of a checkpoint to other files; verify and copy everything else.

    Args:
        url: of the checkpoint.
        rows: given (storage, new data folder, old manifest), writes the files and returns their entries.

    Raises:
        CheckpointError: damaged, it cannot be written, or the new files do not hold as many rows; the
            checkpoint is unchanged.
    """
    storage = Storage(url)
    old = read_manifest(storage)
    try:
        with data_folder(storage) as folder:
            files = {
                name: _copied(storage, folder, old, name)
                for name, entry in old.files.items()
                if not entry.table
            }
            files |= rows(storage, folder, old)
        manifest = replace(old, data=folder, files=files)
        found: dict[str, int] = {}
        for table, chunk in read_chunks(storage, manifest):
            found[table] = found.get(table, 0) + len(chunk.ids)
        if found != old.rows():
            raise CheckpointError(f"{found} rows would take the place of {old.rows()}", where=url)
        commit(storage, manifest)
    except OSError as error:
        raise CheckpointError(f"the checkpoint could not be written: {error}", where=url) from error
    return manifest


def _copied(storage: Storage, folder: str, old: Manifest, name: str) -> FileEntry:
    entry = write_file(storage, f"{folder}/{name}", read_part(storage, old, name))
    entry.buckets = old.files[name].buckets
    return entry


def _free(old: Manifest, files: dict[str, FileEntry], table: str) -> str:
    for name, entry in old.files.items():
        if entry.table == table:
            return name
    numbers = (f"table-{number:03d}.arrow" for number in range(len(files) + 1))
    return next(name for name in numbers if name not in files)


def forget(url: str, table: str, id_: int) -> int:
    """Remove every trace of a row; return how many rows were removed.

    Removes the row with its optimizer state, its place in the order of eviction, its copies in lookups in
    flight, and the note of a delta that it was deleted. The order of eviction and lookups in flight also lose
    the rows of the same id in other tables.

    Args:
        url: of the checkpoint. In a chain, begin with the full snapshot; otherwise, a delta without its note
            of the deletion would bring the row of an older snapshot back.
        table: name of the table.
        id_: the row's id, uint64.

    Raises:
        CheckpointError: no such table, damaged, or it cannot be written.
    """
    tables = open_chain(url).tables
    if table not in tables:
        raise CheckpointError(f"there is no table {table!r}", where=url, fix=f"tables: {', '.join(tables)}")
    wanted, removed = np.uint64(id_), 0

    def without(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        nonlocal removed
        for chunk in chunks:
            keep = chunk.ids != wanted
            removed += int(len(keep) - keep.sum())
            yield Chunk(chunk.table, chunk.ids[keep], chunk.weights[keep], chunk.state[keep])

    def edit(name: str, data: bytes) -> bytes:
        if is_deleted_file(name):
            return pack_deleted(
                {t: ids[ids != wanted] if t == table else ids for t, ids in unpack_deleted(data).items()}
            )
        if is_store_file(name):
            return without_id(data, wanted)
        return _blank(data, wanted) if is_worker_file(name) else data

    rewrite(url, table, without, edit=edit)
    return removed


def _blank(data: bytes, id_: np.uint64) -> bytes:
    """Zero an id in the lookups in flight that a worker's file holds."""
    tensors = unpack_tensors(data)
    for name in list(tensors):
        if name.endswith(".ids") and name.startswith("ahead."):
            _blank_lookup(tensors, name.removesuffix("ids"), id_)
    return pack_tensors(tensors)


def _blank_lookup(tensors: dict[str, Tensor], prefix: str, id_: np.uint64) -> None:
    ids = tensors[prefix + "ids"].numpy()
    at = np.flatnonzero(ids == id_)
    tensors[prefix + "rows"][at] = 0
    ids[at] = 0
    before = tensors.get(prefix + "forgotten", torch.empty(0, dtype=torch.int64))
    tensors[prefix + "forgotten"] = torch.cat([before, torch.from_numpy(at)])
