"""Has all processes of a divided network write and read their parts of it by themselves."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict

from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.saved_dense import DensePart, SavedDense
from satrap.checkpoint.storage import FileEntry, Storage
from satrap.dense import DenseState, Workers
from satrap.errors import CheckpointError


class DenseFiles:
    """Writes one snapshot's dense network: process 0 calls `write` and `release`, the others `assist`.

    All processes make one for each snapshot, at the same time.

    Args:
        workers: all processes.
        part: what this one writes.
    """

    def __init__(self, workers: Workers, part: DensePart) -> None:
        self._workers, self._part, self._told = workers, part, False
        self._key = unused_key(workers)

    def write(self, storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        """Write this part, have the others write theirs, and return the files of all."""
        self._tell([storage.absolute, folder])
        files = self._part.write(storage, folder, 0)
        for rank in range(1, self._workers.size):
            said = json.loads(self._workers.posted(f"{self._key}/{rank}"))
            if isinstance(said, str):
                raise CheckpointError(
                    f"worker {rank} could not write its part of the network: {said}",
                    where=storage.path(folder),
                    why="older checkpoints are untouched",
                )
            files |= {name: FileEntry(**entry) for name, entry in said.items()}
        return files

    def _tell(self, said: object) -> None:
        if not self._told:
            self._told = True
            self._workers.post(self._key, json.dumps(said).encode())

    def release(self) -> None:
        """Let the others go on if nothing was written."""
        self._tell(None)

    def assist(self) -> None:
        """Write this part where process 0 does."""
        said = json.loads(self._workers.posted(self._key))
        if said is None:
            return
        answer: object = "no answer"
        try:
            files = self._part.write(Storage(said[0]), said[1], self._workers.rank)
            answer = {name: asdict(entry) for name, entry in files.items()}
        except (OSError, CheckpointError) as error:
            answer = str(error)
        finally:
            self._workers.post(f"{self._key}/{self._workers.rank}", json.dumps(answer).encode())


def unused_key(workers: Workers) -> str:
    """Return a key that was never used: what was posted for other checkpoints is still there."""
    return f"dense/{workers.share(secrets.token_hex(8).encode()).decode()}"


def all_reach(workers: Workers, url: str) -> bool:
    """Return whether all processes see what process 0 writes to a folder."""
    name = f"seen-{secrets.token_hex(4)}"
    storage = Storage(url)
    if workers.rank == 0:
        with suppress(OSError):
            storage.make_folder("")
            storage.put(name, b"seen")
    place, name = json.loads(workers.share(json.dumps([storage.absolute, name]).encode()))
    seen = False
    with suppress(OSError, CheckpointError):
        seen = Storage(place).exists(name)
    [count] = workers.count([float(seen)])
    if workers.rank == 0:
        with suppress(OSError):
            storage.remove(name)
    return count == workers.size


def opened(workers: Workers, url: str) -> DenseState | None:
    """Return the network of a checkpoint, to be read by slices; None unless all processes reach it.

    Args:
        workers: all processes.
        url: of the checkpoint, in process 0.
    """
    place, id_ = json.loads(workers.share(json.dumps(_named(url) if workers.rank == 0 else []).encode()))
    found = None
    with suppress(OSError, CheckpointError):
        storage = Storage(place)
        manifest = read_manifest(storage)
        if manifest.id == id_:
            saved = SavedDense(storage, manifest)
            found = DenseState(dict(saved.weights), saved.optimizer)
    [count] = workers.count([float(found is not None)])
    return found if count == workers.size else None


def _named(url: str) -> list[str]:
    storage = Storage(url)
    return [storage.absolute, read_manifest(storage).id]
