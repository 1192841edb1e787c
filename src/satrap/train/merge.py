"""Merges and shares the data of several workers: metrics, state, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safetensors import numpy as arrays
from torch import Tensor

from satrap.checkpoint import Checkpoint
from satrap.checkpoint.dense import pack_optimizer, pack_tensors, unpack_optimizer, unpack_tensors
from satrap.dense import Workers
from satrap.metrics import BinaryMetrics


def merged(metrics: BinaryMetrics, workers: Workers) -> dict[str, float]:
    """Return the metrics over all workers, the same numbers on each.

    Args:
        metrics: of this worker.
        workers: all workers.
    """
    if workers.size == 1:
        return metrics.compute()
    workers.meet("evaluated")
    for state in workers.data.gather(arrays.save(metrics.state()))[1:]:
        other = BinaryMetrics(metrics.names, grouped=metrics.grouped)
        other.restore(arrays.load(state))
        metrics.merge(other)
    values: dict[str, float] = json.loads(workers.share(json.dumps(metrics.compute()).encode()))
    return values


def pack_worker(plain: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> bytes:
    """Return plain data and named tensors as bytes, to send them to another worker."""
    text = json.dumps(plain).encode()
    return len(text).to_bytes(8, "little") + text + pack_tensors(tensors)


def unpack_worker(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what `pack_worker` packed."""
    end = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:end]), unpack_tensors(data[end:])


def shared_with_extras(
    checkpoint: Checkpoint | None, workers: Workers
) -> tuple[Checkpoint, list[Mapping[str, Tensor]]]:
    """Return the checkpoint of rank 0 on all workers, without rows, and the state of each worker, by rank.

    Args:
        checkpoint: on rank 0; None elsewhere.
        workers: all workers.
    """
    given = [] if checkpoint is None else [checkpoint.extra, *checkpoint.others]
    if workers.size == 1:
        assert checkpoint is not None
        return checkpoint, given
    made = shared(checkpoint, workers)
    count = 1 + len(made.settings["peers"])
    extras = [workers.share(pack_tensors(given[i]) if given else b"") for i in range(count)]
    return made, [unpack_tensors(extra) for extra in extras]


def shared(checkpoint: Checkpoint | None, workers: Workers) -> Checkpoint:
    """Return the checkpoint of rank 0 on all workers; the others get no rows.

    Args:
        checkpoint: on rank 0; None elsewhere.
        workers: all workers.
    """
    if workers.size == 1:
        assert checkpoint is not None
        return checkpoint
    given = checkpoint or Checkpoint({}, {}, {}, ())
    settings = json.loads(workers.share(json.dumps(given.settings).encode()))
    model = unpack_tensors(workers.share(pack_tensors(given.model)))
    optimizer = unpack_optimizer(workers.share(pack_optimizer(given.optimizer)))
    return Checkpoint(settings, model, optimizer, given.chunks)
