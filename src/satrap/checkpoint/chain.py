"""A full snapshot and the deltas that follow it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load, save

from satrap.checkpoint.files.storage import Storage, damaged, instead_of
from satrap.checkpoint.manifest import MANIFEST, ChainLink, Manifest, read_manifest
from satrap.checkpoint.merging import merge
from satrap.checkpoint.parts import Buckets, read_chunks
from satrap.errors import CheckpointError
from satrap.store import BUCKETS, RowChunk

Ids = npt.NDArray[np.uint64]

DELETED = "deleted.safetensors"
"""File of a delta: by table, ids that had a row in the previous snapshot and have none now."""


def deleted_file(suffix: str) -> str:
    """Return the name of the `DELETED` file of one of several writers."""
    return f"deleted{suffix}.safetensors"


def is_deleted_file(name: str) -> bool:
    """Return whether a file holds deleted ids."""
    return name.startswith("deleted.")


@dataclass(frozen=True, slots=True)
class Chain:
    """A full snapshot and its deltas, in order; made by `open_chain`."""

    members: tuple[tuple[Storage, Manifest], ...]

    @property
    def tables(self) -> list[str]:
        """Names of the tables, in the order of their files."""
        names: dict[str, str] = {}
        for _, manifest in self.members:
            names = {e.table: file for file, e in manifest.files.items() if e.table} | names
        return sorted(names, key=lambda table: names[table])

    def chunks(
        self, table: str | None = None, buckets: Buckets = range(BUCKETS)
    ) -> Iterator[tuple[str, RowChunk]]:
        """Yield (table, verified rows): the newest row of each id, in canonical order; default all rows."""
        if len(self.members) == 1:
            yield from read_chunks(*self.members[0], table, buckets)
            return
        deleted = [read_deleted(*member) for member in self.members]
        for name in self.tables if table is None else [table]:
            sources = [(chunk for _, chunk in read_chunks(*member, name, buckets)) for member in self.members]
            gone = [by_table.get(name, np.empty(0, np.uint64)) for by_table in deleted]
            yield from ((name, chunk) for chunk in merge(sources, gone))


def pack_deleted(deleted: Mapping[str, Ids]) -> bytes:
    """Return the content of a `DELETED` file: ids by table, ascending."""
    return save({table: np.sort(ids) for table, ids in deleted.items()})


def read_deleted(storage: Storage, manifest: Manifest) -> dict[str, Ids]:
    """Return, by table, the ids that a delta deletes; none for a full snapshot."""
    if manifest.delta is None:
        return {}
    if DELETED not in manifest.files:
        raise damaged(storage.path(manifest.data), f"{DELETED} is missing")
    deleted: dict[str, list[Ids]] = {}
    for name in filter(is_deleted_file, manifest.files):
        where = f"{manifest.data}/{name}"
        try:
            for table, ids in load(storage.read(where, manifest.files[name])).items():
                deleted.setdefault(table, []).append(ids)
        except (SafetensorError, KeyError, ValueError) as error:  # valid checksums, invalid content
            raise damaged(storage.path(where), str(error)) from error
    return {table: np.sort(np.concatenate(parts)) for table, parts in deleted.items()}


def open_chain(url: str) -> Chain:
    """Return a checkpoint with the snapshots it builds on; reads only their manifests.

    Raises CheckpointError if the checkpoint does not exist, or a delta is missing, copied, renamed, or of
    another chain.
    """
    storage = Storage(url.rstrip("/"))
    members = [(storage, read_manifest(storage))]
    while (link := members[0][1].delta) is not None:
        members.insert(0, _followed(members[0][0], link))
    return Chain(tuple(members))


def deltas_since(url: str, id_: str) -> list[tuple[Storage, Manifest]] | None:
    """Return the deltas from the checkpoint with an id to the one at `url`, in order; None: not connected.

    Reads only their manifests, and raises as `open_chain` does.
    """
    storage = Storage(url.rstrip("/"))
    manifest = read_manifest(storage)
    deltas: list[tuple[Storage, Manifest]] = []
    while manifest.id != id_:
        if (link := manifest.delta) is None:
            return None
        deltas.insert(0, (storage, manifest))
        if link.previous_id == id_:
            break
        storage, manifest = _followed(storage, link)
    return deltas


def read_buckets(url: str, buckets: Buckets = range(BUCKETS)) -> Iterator[RowChunk]:
    """Yield the verified rows of some fixed buckets of a checkpoint; all by default."""
    return (chunk for _, chunk in open_chain(url).chunks(buckets=buckets))


def _followed(storage: Storage, link: ChainLink) -> tuple[Storage, Manifest]:
    """Return the snapshot before a delta; raise unless the delta is in its folder and follows it."""
    above = storage.absolute.rstrip("/").rsplit("/", 1)[0]
    before = Storage(f"{above}/{link.previous}")
    name = storage.root.rstrip("/").rsplit("/", 1)[-1]
    if link.name != name:
        raise _refused(f"{name} is a copy of delta {link.name}", storage, f"rename it to {link.name}")
    if not before.exists(MANIFEST):
        raise _refused(
            f"delta {name} follows {link.previous}, which is missing",
            storage,
            f"restore {link.previous} from a backup",
        )
    previous = read_manifest(before)
    number = 0 if previous.delta is None else previous.delta.number
    # Numbers must decrease from delta to delta; otherwise manifests in a cycle would loop forever.
    if previous.id != link.previous_id or number >= link.number:
        raise _refused(
            f"delta {name} follows another {link.previous}, not the one in this folder",
            storage,
            "restore the snapshots of the delta's run",
        )
    return before, previous


def _refused(what: str, storage: Storage, fix: str) -> CheckpointError:
    return CheckpointError(
        what,
        where=storage.path(MANIFEST),
        why="a delta can only be used with exactly the snapshots before it",
        fix=f"{fix}, or {instead_of(storage.path(MANIFEST))}",
    )
