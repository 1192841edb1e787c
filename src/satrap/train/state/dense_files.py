"""Lets all processes of a sharded network write and read their own parts of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from satrap.checkpoint.files.storage import FileEntry, Storage
from satrap.checkpoint.files.tensor_stream import READ
from satrap.checkpoint.manifest import Manifest, read_manifest
from satrap.checkpoint.saved_dense import DensePart, SavedDense, is_dense_file
from satrap.dense import DenseState, Workers
from satrap.errors import CheckpointError


class DenseFiles:
    """Writes one snapshot's dense network: process 0 calls `write` and `release`, the others `assist`.

    All processes make one for each snapshot, at the same time.

    Args:
        workers: all processes.
        part: the part that this process writes.
    """

    def __init__(self, workers: Workers, part: DensePart) -> None:
        self._workers, self._part, self._told = workers, part, False
        self._key = unused_key(workers)

    def write(self, storage: Storage, folder: str) -> Mapping[str, FileEntry]:
        """Write this part, let the others write theirs, and return the files of all."""
        self._tell([storage.absolute, folder])
        files = self._part.write(storage, folder, 0)
        for rank in range(1, self._workers.size):
            reply = json.loads(self._workers.posted(f"{self._key}/{rank}"))
            if isinstance(reply, str):
                raise CheckpointError(
                    f"worker {rank} could not write its part of the network: {reply}",
                    where=storage.path(folder),
                    why="older checkpoints are unchanged",
                )
            files |= {name: FileEntry(**entry) for name, entry in reply.items()}
        return files

    def _tell(self, said: object) -> None:
        if not self._told:
            self._told = True
            self._workers.post(self._key, json.dumps(said).encode())

    def release(self) -> None:
        """Release the others if nothing was written."""
        self._tell(None)

    def assist(self) -> None:
        """Write this part to the same place as process 0."""
        place = json.loads(self._workers.posted(self._key, readers=self._workers.size - 1))
        if place is None:
            return
        answer: object = "no answer"
        try:
            files = self._part.write(Storage(place[0]), place[1], self._workers.rank)
            answer = {name: asdict(entry) for name, entry in files.items()}
        except (OSError, CheckpointError) as error:
            answer = str(error)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._workers.post(f"{self._key}/{self._workers.rank}", json.dumps(answer).encode())


def unused_key(workers: Workers) -> str:
    """Return an unused key: the messages of a failed checkpoint stay in the store under theirs."""
    return f"dense/{workers.share(secrets.token_hex(8).encode()).decode()}"


def all_reach(workers: Workers, url: str) -> bool:
    """Return whether all processes see a file that process 0 writes to a folder."""
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


@contextmanager
def opened(workers: Workers, url: str, *, whole: bool) -> Iterator[DenseState | None]:
    """Open the network of a checkpoint, to be read by slices.

    If some processes do not reach the checkpoint, it is None where each process has the `whole` network.
    Where each has a part, process 0 sends the files, a few megabytes at a time, and processes that do not
    reach them have copies in a temporary folder until the context ends.

    Args:
        workers: all processes.
        url: URL of the checkpoint, in process 0.
        whole: whether each process has the whole network.

    Raises:
        CheckpointError: a process has no space for the copy; or the checkpoint is damaged, in process 0.
    """
    place, id_ = json.loads(workers.share(json.dumps(_named(url) if workers.rank == 0 else []).encode()))
    network = None
    with suppress(OSError, CheckpointError):
        storage = Storage(place)
        manifest = read_manifest(storage)
        if manifest.id == id_:
            network = _network(storage, manifest)
    [count] = workers.count([float(network is not None)])
    if whole or count == workers.size:
        yield network if count == workers.size else None
        return
    with TemporaryDirectory(prefix="satrap-") as folder:
        sent = _described(workers, place)
        _keep(workers, _blocks(workers, place, sent), None if network or workers.rank == 0 else folder)
        yield network or _network(Storage(folder if workers.rank else place), sent)


def _network(storage: Storage, manifest: Manifest) -> DenseState:
    saved = SavedDense(storage, manifest)
    return DenseState(dict(saved.weights), saved.optimizer)


def _described(workers: Workers, place: str) -> Manifest:
    """Return process 0's description of the network's files in a checkpoint."""
    description = b""
    if workers.rank == 0:
        manifest = read_manifest(Storage(place))
        files = {name: entry.to_dict() for name, entry in manifest.files.items() if is_dense_file(name)}
        description = json.dumps([manifest.data, files]).encode()
    data, plain = json.loads(workers.share(description))
    return Manifest(data, {}, {name: FileEntry.from_dict(entry) for name, entry in plain.items()})


def _blocks(workers: Workers, place: str, manifest: Manifest) -> Iterator[tuple[str, bytes]]:
    """Yield (file, its next bytes) in all processes, as process 0 reads them."""
    for name, entry in manifest.files.items():
        path = f"{manifest.data}/{name}"
        with Storage(place).open(path, entry) if workers.rank == 0 else nullcontext() as file:
            for _ in range(0, entry.bytes, READ):
                block = b"" if file is None else file.read(READ)
                # A barrier waits as long as all are alive, so a slow disk does not exceed the deadline of
                # `share`.
                workers.meet("reading the network")
                yield path, workers.share(block)


def _keep(workers: Workers, blocks: Iterable[tuple[str, bytes]], folder: str | None) -> None:
    """Write blocks to files in a folder, if one is given; if a process fails, raise an error in all."""
    wrong = None
    for path, block in blocks:
        if folder is None or wrong is not None:
            continue
        target = Path(folder, path)
        try:
            target.parent.mkdir(exist_ok=True)
            with target.open("ab") as file:
                file.write(block)
        except OSError as error:
            wrong = error
    [failed] = workers.count([float(wrong is not None)])
    if failed:
        raise CheckpointError(
            f"{int(failed)} of {workers.size} workers could not copy the network: {wrong or 'not this one'}",
            where=folder or "",
            why="these workers do not reach the checkpoint, so each needs a copy of its files",
            fix="save where all machines see it, or set TMPDIR to a folder with space for the network",
        )


def _named(url: str) -> list[str]:
    storage = Storage(url)
    return [storage.absolute, read_manifest(storage).id]
