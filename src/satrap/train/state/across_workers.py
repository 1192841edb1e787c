"""Merges and shares the data of several workers: metrics, state, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TypeVar

from safetensors import numpy as arrays
from torch import Tensor

from satrap.checkpoint import Checkpoint
from satrap.checkpoint.dense import pack_optimizer, pack_tensors, unpack_optimizer, unpack_tensors
from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest
from satrap.checkpoint.saved_dense import SavedDense
from satrap.checkpoint.snapshot import loaded
from satrap.dense import DenseState, Workers
from satrap.errors import CheckpointError
from satrap.metrics import Metrics

T = TypeVar("T")


def told(workers: Workers, value: T) -> T:
    """Return the value of process 0, plain data, on all workers."""
    if workers.size == 1:
        return value
    of_first: T = json.loads(workers.share(json.dumps(value).encode()))
    return of_first


def merged(metrics: Metrics, workers: Workers) -> dict[str, float]:
    """Return the metrics of the samples of all workers, the same numbers on each; changes `metrics`."""
    if workers.size == 1:
        return metrics.compute()
    workers.meet("evaluated")
    for state in workers.data.gather(arrays.save(metrics.state()))[1:]:
        other = metrics.empty()
        other.restore(arrays.load(state))
        metrics.merge(other)
    computed = dict[str, float]()
    workers.solo("metrics", lambda: computed.update(metrics.compute()))
    return told(workers, computed)


def pack_worker(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return plain data and named tensors as bytes, to send them to another worker."""
    text = json.dumps(plain).encode()
    return len(text).to_bytes(8, "little") + text + pack_tensors(tensors)


def unpack_worker(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the data that `pack_worker` packed."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), unpack_tensors(data[end:])


def shared(checkpoint: Checkpoint | None, workers: Workers, dense: DenseState | None = None) -> Checkpoint:
    """Return the checkpoint of process 0, which alone passes one, on all workers; the others get no rows.

    With `dense`, its network as seen by this process, the network is not sent.
    """
    if workers.size == 1:
        assert checkpoint is not None
        return checkpoint
    source = checkpoint or Checkpoint({}, {}, {}, ())
    extras = [pack_tensors(extra) for extra in (source.extra, *source.others)]
    settings, count = told(workers, (source.settings, len(extras)))
    if dense is None:
        workers.solo("reading the network", lambda: loaded(source))
        model = unpack_tensors(workers.share(pack_tensors(source.model)))
        dense = DenseState(model, unpack_optimizer(workers.share(pack_optimizer(source.optimizer))))
    extra, *others = (unpack_tensors(workers.share(extras[i] if checkpoint else b"")) for i in range(count))
    return Checkpoint(settings, dense.weights, dense.optimizer, source.chunks, extra, others)


def opened_network(workers: Workers, url: str, *, whole: bool) -> DenseState | None:
    """Open the network of a checkpoint, to be read by slices; None if some processes do not reach it.

    Args:
        workers: all processes.
        url: URL of the checkpoint, in process 0.
        whole: whether each process has the whole network; else each reads its part, so all must reach it.

    Raises:
        CheckpointError: a process does not reach its part; or the checkpoint is damaged, in process 0.
    """
    place, id_ = told(workers, _named(url) if workers.rank == 0 else ("", ""))
    network = None
    with suppress(OSError, CheckpointError):
        storage = Storage(place)
        manifest = read_manifest(storage)
        if manifest.id == id_:
            saved = SavedDense(storage, manifest)
            network = DenseState(dict(saved.weights), saved.optimizer)
    [count] = workers.count([float(network is not None)])
    if count < workers.size and not whole:
        raise CheckpointError(
            f"{workers.size - int(count)} of {workers.size} workers do not reach the checkpoint",
            where=place,
            why="each worker reads its part of the network from the files",
            fix="use a folder or an object store that all machines see",
        )
    return network if count == workers.size else None


def _named(url: str) -> tuple[str, str]:
    storage = Storage(url)
    return storage.absolute, read_manifest(storage).id
