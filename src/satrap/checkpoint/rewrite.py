"""Changes the rows of an existing checkpoint: writes a new checkpoint that replaces it atomically."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from safetensors.numpy import load

from satrap.checkpoint.chain import is_deleted_file, open_chain, pack_deleted
from satrap.checkpoint.dense import pack_tensors, unpack_tensors
from satrap.checkpoint.files.counts import COUNTS, is_counts_file
from satrap.checkpoint.files.counts import without_id as without_counted
from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.checkpoint.parts import read_chunks, write_file, write_table, write_tables
from satrap.checkpoint.snapshot import commit, data_folder, read_newest, read_part
from satrap.checkpoint.stores import is_store_file, without_id
from satrap.errors import CheckpointError
from satrap.store import RowChunk

Change = Callable[[Iterator[RowChunk]], Iterable[RowChunk]]


def rewrite(
    url: str, table: str, change: Change, *, edit: Callable[[str, bytes], bytes] | None = None
) -> Manifest:
    """Change the rows of a table, which may be new; verify and copy everything else.

    `change` takes the chunks of the table and returns the new chunks. `edit` takes name and content of a file
    without rows and returns the new content. If the checkpoint is damaged or cannot be written, raises
    CheckpointError and leaves it unchanged, as do the other functions of this module.
    """
    storage = Storage(url)
    old = read_manifest(storage)

    def write(folder: str) -> dict[str, FileEntry]:
        files = {
            name: _copied(storage, folder, old, name, None if entry.table else edit)
            for name, entry in old.files.items()
            if entry.table != table
        }
        chunks = iter(change(chunk for _, chunk in read_chunks(storage, old, table)))
        first = next(chunks, None)
        if first is not None:
            name = _free(old, files, table)
            files[name] = write_table(storage, f"{folder}/{name}", table, itertools.chain([first], chunks))
        return dict(sorted(files.items()))

    return _replaced(storage, old, write)


def compact(url: str, *, weights: str | None = None, remove: bool = True) -> Manifest:
    """Turn a delta into a full snapshot, which needs no earlier snapshot; the deltas after it stay valid.

    A full snapshot stays unchanged.

    Args:
        url: URL of the delta.
        weights: write only weights, in this format, see `RowChunk.only_weights`.
        remove: remove the files of the delta; otherwise they stay next to the new files, for current readers.
    """
    chain = open_chain(url)
    storage, old = chain.members[-1]
    if old.delta is None:
        return old

    def write(folder: str) -> dict[str, FileEntry]:
        names = [name for name, entry in old.files.items() if not entry.table and not is_deleted_file(name)]
        files = {name: _copied(storage, folder, old, name) for name in names}
        for name in set(old.settings.get(COUNTS, {}).values()) - files.keys():
            files[name] = write_file(storage, f"{folder}/{name}", [read_newest(chain, name)])
        chunks = (chunk for _, chunk in chain.chunks())
        if weights is not None:
            chunks = (chunk.only_weights(weights) for chunk in chunks)
        return files | write_tables(storage, folder, chunks)

    return _replaced(storage, replace(old, delta=None), write, remove=remove)


def rewrite_rows(url: str, rows: Callable[[Storage, str, Manifest], dict[str, FileEntry]]) -> Manifest:
    """Write the rows of a checkpoint to other files; verify and copy everything else.

    `rows` takes storage, new data folder and old manifest, writes the files and returns their entries.
    Raises CheckpointError unless the new files hold the same number of rows.
    """
    storage = Storage(url)
    old = read_manifest(storage)

    def write(folder: str) -> dict[str, FileEntry]:
        names = [name for name, entry in old.files.items() if not entry.table]
        return {name: _copied(storage, folder, old, name) for name in names} | rows(storage, folder, old)

    return _replaced(storage, old, write, same_rows=True)


def _replaced(
    storage: Storage,
    old: Manifest,
    write: Callable[[str], dict[str, FileEntry]],
    *,
    same_rows: bool = False,
    remove: bool = True,
) -> Manifest:
    """Replace the old files by the files that `write` puts into a new data folder, see `commit`."""
    try:
        with data_folder(storage) as folder:
            files = write(folder)
        manifest = replace(old, data=folder, files=files)
        if same_rows:
            _check_rows(storage, old, manifest)
        commit(storage, manifest, remove=remove)
    except OSError as error:
        raise CheckpointError(f"the checkpoint could not be written: {error}", where=storage.url) from error
    return manifest


def _check_rows(storage: Storage, old: Manifest, new: Manifest) -> None:
    """If the new files hold another number of rows, remove them and raise CheckpointError."""
    counts = Counter[str]()
    for table, chunk in read_chunks(storage, new):
        counts[table] += len(chunk.ids)
    if counts != old.rows():
        with suppress(OSError):
            storage.remove(new.data)
        text = f"the rewritten files hold other numbers of rows: {dict(counts)} instead of {old.rows()}"
        raise CheckpointError(text, where=storage.url, why="the checkpoint is unchanged")


def _copied(
    storage: Storage,
    folder: str,
    old: Manifest,
    name: str,
    edit: Callable[[str, bytes], bytes] | None = None,
) -> FileEntry:
    data, entry = read_part(storage, old, name), old.files[name]
    copy = write_file(storage, f"{folder}/{name}", [data if edit is None else edit(name, data)])
    return replace(copy, table=entry.table, rows=entry.rows, buckets=entry.buckets)


def _free(old: Manifest, files: Mapping[str, FileEntry], table: str) -> str:
    """Return the name of the file with the rows of a table, or an unused name."""
    current = (name for name, entry in old.files.items() if entry.table == table)
    numbers = (f"table-{number:03d}.arrow" for number in range(len(files) + 1))
    return next(current, "") or next(name for name in numbers if name not in files)


def forget(url: str, table: str, id_: int) -> int:
    """Remove every trace of a row; return the number of removed rows.

    Removes the row with its optimizer state, its position in the order of eviction, its copies in lookups in
    flight, its id in a delta's deleted ids, and its counts. The order of eviction and lookups in flight also
    lose the rows of the same id in other tables, as do the counts of other columns. In a chain, start with
    the full snapshot; otherwise a delta that no longer lists the id as deleted would restore the row of an
    older snapshot.
    """
    tables = open_chain(url).tables
    if table not in tables:
        raise CheckpointError(
            f"the checkpoint has no table {table!r}", where=url, fix=f"tables: {', '.join(tables) or 'none'}"
        )
    target, removed = np.uint64(id_), 0

    def without(chunks: Iterator[RowChunk]) -> Iterator[RowChunk]:
        nonlocal removed
        for chunk in chunks:
            keep = chunk.ids != target
            removed += int((~keep).sum())
            yield chunk.pick(keep)

    def edit(name: str, data: bytes) -> bytes:
        if is_deleted_file(name):
            return pack_deleted({t: ids[(ids != target) | (t != table)] for t, ids in load(data).items()})
        if is_store_file(name):
            return without_id(data, target)
        if is_counts_file(name):
            return without_counted(data, id_)
        return _blank(data, target) if name.startswith("worker-") else data

    rewrite(url, table, without, edit=edit)
    return removed


def _blank(data: bytes, id_: np.uint64) -> bytes:
    """Zero an id in the lookups in flight that a worker's file holds."""
    tensors = unpack_tensors(data)
    for name in [name for name in tensors if name.startswith("ahead.") and name.endswith(".ids")]:
        prefix, ids = name.removesuffix("ids"), tensors[name].numpy()
        at = np.flatnonzero(ids == id_)
        tensors[prefix + "rows"][at] = 0
        ids[at] = 0
        before = tensors.get(prefix + "forgotten", torch.empty(0, dtype=torch.int64))
        tensors[prefix + "forgotten"] = torch.cat([before, torch.from_numpy(at)])
    return pack_tensors(tensors)
