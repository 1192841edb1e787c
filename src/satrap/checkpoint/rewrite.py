"""Changes the rows of an existing checkpoint: writes a new one that replaces it in one step."""

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
from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.checkpoint.parts import read_chunks, write_file, write_table, write_tables
from satrap.checkpoint.snapshot import commit, data_folder, read_part
from satrap.checkpoint.storage import FileEntry, Storage
from satrap.checkpoint.stores import is_store_file, without_id
from satrap.errors import CheckpointError
from satrap.store import Chunk

Change = Callable[[Iterator[Chunk]], Iterable[Chunk]]


def rewrite(
    url: str, table: str, change: Change, *, edit: Callable[[str, bytes], bytes] | None = None
) -> Manifest:
    """Change the rows of a table, which may be new; verify and copy everything else.

    `change` takes the chunks of the table and returns the new ones. `edit` takes name and content of a file
    without rows and returns the new content. If the checkpoint is damaged or cannot be written, this raises
    CheckpointError, and it is unchanged, as by the other functions here.
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
    """Make a delta a full snapshot, which needs no snapshot before it; the deltas after it stay valid.

    A full snapshot stays as it is.

    Args:
        url: of the delta.
        weights: write only weights, in this format, see `Chunk.only_weights`.
        remove: remove the files of the delta; else they stay beside the new ones, for those who are reading.
    """
    chain = open_chain(url)
    storage, old = chain.members[-1]
    if old.delta is None:
        return old

    def write(folder: str) -> dict[str, FileEntry]:
        names = [name for name, entry in old.files.items() if not entry.table and not is_deleted_file(name)]
        files = {name: _copied(storage, folder, old, name) for name in names}
        chunks = (chunk for _, chunk in chain.chunks())
        if weights is not None:
            chunks = (chunk.only_weights(weights) for chunk in chunks)
        return files | write_tables(storage, folder, chunks)

    return _replaced(storage, replace(old, delta=None), write, remove=remove)


def rewrite_rows(url: str, rows: Callable[[Storage, str, Manifest], dict[str, FileEntry]]) -> Manifest:
    """Write the rows of a checkpoint to other files; verify and copy everything else.

    `rows` takes storage, new data folder and old manifest, writes the files and returns their entries.
    Raises CheckpointError unless the new files hold as many rows.
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
    """Commit the files that `write` puts into a new data folder in place of the old ones, see `commit`."""
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
    """Raise CheckpointError unless new files hold as many rows; then remove them."""
    found = Counter[str]()
    for table, chunk in read_chunks(storage, new):
        found[table] += len(chunk.ids)
    if found != old.rows():
        with suppress(OSError):
            storage.remove(new.data)
        text = f"{dict(found)} rows would take the place of {old.rows()}"
        raise CheckpointError(text, where=storage.url)


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
    """Return the name of the file with the rows of a table, or a new one."""
    own = (name for name, entry in old.files.items() if entry.table == table)
    numbers = (f"table-{number:03d}.arrow" for number in range(len(files) + 1))
    return next(own, "") or next(name for name in numbers if name not in files)


def forget(url: str, table: str, id_: int) -> int:
    """Remove every trace of a row; return how many rows were removed.

    Removes the row with its optimizer state, its place in the order of eviction, its copies in lookups in
    flight, and the note of a delta that it was deleted. The order of eviction and lookups in flight also lose
    the rows of the same id in other tables. In a chain, begin with the full snapshot; otherwise, a delta
    without its note of the deletion would bring the row of an older snapshot back.
    """
    tables = open_chain(url).tables
    if table not in tables:
        raise CheckpointError(
            f"there is no table {table!r}", where=url, fix=f"tables: {', '.join(tables) or 'none'}"
        )
    wanted, removed = np.uint64(id_), 0

    def without(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        nonlocal removed
        for chunk in chunks:
            keep = chunk.ids != wanted
            removed += int((~keep).sum())
            yield chunk.pick(keep)

    def edit(name: str, data: bytes) -> bytes:
        if is_deleted_file(name):
            return pack_deleted({t: ids[(ids != wanted) | (t != table)] for t, ids in load(data).items()})
        if is_store_file(name):
            return without_id(data, wanted)
        return _blank(data, wanted) if name.startswith("worker-") else data

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
