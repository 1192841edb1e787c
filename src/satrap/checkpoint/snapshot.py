"""Writes and reads one checkpoint: data first, manifest last."""

import itertools
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from torch import Tensor

from satrap.checkpoint.chain import DELETED, Chain, open_chain, pack_deleted
from satrap.checkpoint.dense import flat_optimizer, unpack_optimizer, unpack_tensors
from satrap.checkpoint.files.counts import DIGEST, apart, together
from satrap.checkpoint.files.disk import BESIDE
from satrap.checkpoint.files.storage import FileEntry, Storage, damaged, is_plain
from satrap.checkpoint.files.tensor_stream import streamed
from satrap.checkpoint.manifest import MANIFEST, ChainLink, Manifest, write_manifest
from satrap.checkpoint.parts import ahead, read_chunks, write_file, write_tables
from satrap.checkpoint.saved_dense import MODEL, OPTIMIZER, SavedDense, loaded_values
from satrap.errors import CheckpointError
from satrap.runtime.fault_points import hit
from satrap.store import RowChunk


def worker_file(rank: int) -> str:
    """Return the name of the file with the state of a worker."""
    return f"worker-{rank:03d}.safetensors"


EXTRA = worker_file(0)


@dataclass(slots=True)
class Checkpoint:
    """A trained state.

    Instead of `chunks`, `rows` may be given: it takes (storage, data folder), writes the rows and returns
    their files. `dense` does the same for the network, instead of `model` and `optimizer`. A delta has only
    the rows that changed since the previous snapshot; `deleted` holds, by table, the ids that had a row then
    and have none now.
    """

    settings: dict[str, Any]  # plain JSON data: schema, model, optimizer, counters
    model: Mapping[str, Any]  # `state_dict` of the network; from `open_checkpoint` with `SavedTensor`s
    optimizer: Mapping[str, Any]  # `state_dict` of the dense optimizer, or empty; as for `model`
    chunks: Iterable[tuple[str, RowChunk]]  # (table, rows) by bucket, then id; can be read only once
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # worker 0: generators, lookups in flight
    others: Sequence[Mapping[str, Tensor]] = ()  # `extra` of the other workers
    rows: Callable[[Storage, str], Mapping[str, FileEntry]] | None = None
    deleted: Mapping[str, npt.NDArray[np.uint64]] | None = None  # None: not a delta
    dense: Callable[[Storage, str], Mapping[str, FileEntry]] | None = None


def write_checkpoint(
    url: str, checkpoint: Checkpoint, *, link: ChainLink | None = None, before: Manifest | None = None
) -> Manifest:
    """Write a checkpoint to a folder or fsspec URL; replace an older checkpoint there atomically.

    Consumes the chunks. If the checkpoint cannot be written, raises CheckpointError, and the older checkpoint
    is unchanged.

    Args:
        url: the folder.
        checkpoint: the trained state.
        link: the position of a delta in its chain.
        before: the snapshot before a delta; counts of ids that it has are not written again.
    """
    storage = Storage(url)
    try:
        new = not storage.exists(MANIFEST)
        settings, counts = apart(checkpoint.settings)
        if before is not None and before.settings.get(DIGEST) == settings.get(DIGEST):
            counts = {}
        with data_folder(storage) as folder:
            files = _write_data(storage, folder, checkpoint)
            files |= {name: write_file(storage, f"{folder}/{name}", [data]) for name, data in counts.items()}
        manifest = Manifest(folder, settings, files, link)
        commit(storage, manifest, new=new)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint could not be written: {error}",
            where=url,
            why="older checkpoints are unchanged",
            fix="free disk space or choose another folder",
        ) from error
    return manifest


@contextmanager
def data_folder(storage: Storage) -> Iterator[str]:
    """Create a new folder for the files of a checkpoint; at the end of the block they are durable.

    An error removes the folder. Its name is random, so that files of a killed save cannot be mixed in.
    """
    folder = f"data-{secrets.token_hex(4)}"
    try:
        with storage.together():
            storage.make_folder(folder)
            yield folder
            storage.sync_folder(folder)
    except BaseException:
        _discard(storage, [folder])
        raise


def commit(storage: Storage, manifest: Manifest, *, new: bool = False, remove: bool = True) -> None:
    """Write the manifest for the files of a `data_folder`, then remove the files they replace, if possible.

    Without `remove`, the replaced files stay until the next commit, for current readers. With `new`, raises
    FileExistsError if a checkpoint exists. After another OSError the manifest may or may not have been
    written, so no file was removed.
    """
    hit("checkpoint.data_written")
    write_manifest(storage, manifest, new=new)
    hit("checkpoint.committed")
    if not remove:
        return
    with suppress(OSError):
        _discard(storage, [name for name in storage.names() if _is_left_over(name, manifest)])


def _is_left_over(name: str, manifest: Manifest) -> bool:
    old = name.startswith("data-") and name != manifest.data
    return is_plain(name) and (old or (name.startswith(MANIFEST) and name.endswith(BESIDE)))


def _discard(storage: Storage, names: Iterable[str]) -> None:
    for name in names:
        with suppress(OSError):
            storage.remove(name)


def _write_data(storage: Storage, folder: str, checkpoint: Checkpoint) -> dict[str, FileEntry]:
    parts = dict[str, Iterable[bytes | memoryview]]()
    if checkpoint.dense is None:
        parts[MODEL] = streamed(checkpoint.model, {})
        parts[OPTIMIZER] = streamed(*flat_optimizer(checkpoint.optimizer))
    if checkpoint.extra:
        parts[EXTRA] = streamed(checkpoint.extra, {})
    parts |= {worker_file(1 + i): streamed(extra, {}) for i, extra in enumerate(checkpoint.others)}
    if checkpoint.deleted is not None:
        parts[DELETED] = [pack_deleted(checkpoint.deleted)]
    files = {name: write_file(storage, f"{folder}/{name}", data) for name, data in parts.items()}
    if checkpoint.dense is not None:
        files |= sorted(checkpoint.dense(storage, folder).items())
    if checkpoint.rows is not None:
        files |= sorted(checkpoint.rows(storage, folder).items())
    return files | write_tables(storage, folder, (chunk for _, chunk in checkpoint.chunks))


def read_checkpoint(url: str) -> Checkpoint:
    """Open a checkpoint. Every byte is verified when it is read; rows while `chunks` is consumed.

    A delta is merged with the snapshots it builds on, so its rows are complete. Raises CheckpointError: the
    checkpoint is missing, of an unknown format or damaged (the error names file and bytes), or the snapshot
    before a delta is missing.
    """
    return loaded(open_checkpoint(url))


def loaded(checkpoint: Checkpoint) -> Checkpoint:
    """Read the network of a checkpoint of `open_checkpoint`, in place; return it."""
    checkpoint.model, checkpoint.optimizer = (
        loaded_values(checkpoint.model),
        loaded_values(checkpoint.optimizer),
    )
    return checkpoint


def open_checkpoint(url: str) -> Checkpoint:
    """Open a checkpoint as `read_checkpoint` does, without reading the network: see `SavedTensor`."""
    chain = open_chain(url)
    storage, manifest = chain.members[-1]

    def tensors(name: str) -> dict[str, Tensor]:
        return unpack_tensors(read_part(storage, manifest, name))

    saved = SavedDense(storage, manifest)
    following = map(worker_file, itertools.count(1))
    try:
        return Checkpoint(
            settings=saved_settings(chain),
            model=dict(saved.weights),
            optimizer=saved.optimizer,
            chunks=ahead(chain.chunks()),
            extra=tensors(EXTRA) if EXTRA in manifest.files else {},
            others=[tensors(name) for name in itertools.takewhile(manifest.files.__contains__, following)],
        )
    except (SafetensorError, ValueError, KeyError) as error:  # valid checksums, invalid content
        raise damaged(f"{storage.path(manifest.data)}/*.safetensors", str(error)) from error


def saved_settings(chain: Chain) -> dict[str, Any]:
    """Return the settings of a checkpoint, with counts of ids; raise CheckpointError for damage."""
    storage, manifest = chain.members[-1]
    try:
        return together(manifest.settings, lambda name: read_newest(chain, name))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise damaged(f"{storage.path(manifest.data)}/counts-*.safetensors", str(error)) from error


def read_newest(chain: Chain, name: str) -> bytes:
    """Return a verified file of the newest snapshot that has it; raise CheckpointError as `read_part`."""
    having = (member for member in reversed(chain.members) if name in member[1].files)
    return read_part(*next(having, chain.members[-1]), name)


def read_part(storage: Storage, manifest: Manifest, name: str) -> bytes:
    """Return a verified file; raise CheckpointError if it is damaged, or missing in the manifest."""
    if name not in manifest.files:
        raise damaged(storage.path(manifest.data), f"{name} is missing")
    return storage.read(f"{manifest.data}/{name}", manifest.files[name])


def verify(url: str, *, known: set[str] | None = None) -> Manifest:
    """Read a checkpoint and the snapshots it builds on; return its manifest, or raise the first damage found.

    The data folders in `known` are not read again; newly verified folders are added.
    """
    good = set() if known is None else known
    chain = open_chain(url)
    for storage, manifest in chain.members:
        if storage.path(manifest.data) not in good:
            _verify_files(storage, manifest)
            good.add(storage.path(manifest.data))
    return chain.members[-1][1]


def _verify_files(storage: Storage, manifest: Manifest) -> None:
    for name, entry in manifest.files.items():
        if entry.table:
            continue
        data = storage.read(f"{manifest.data}/{name}", entry)
        try:
            unpack_optimizer(data) if name.startswith("optimizer.") else unpack_tensors(data)
        except (SafetensorError, ValueError, KeyError) as error:  # valid checksums, invalid content
            raise damaged(storage.path(f"{manifest.data}/{name}"), str(error)) from error
    SavedDense(storage, manifest)
    for _ in read_chunks(storage, manifest):
        pass
