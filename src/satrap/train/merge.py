"""What several workers found or hold, made one."""

from __future__ import annotations

import json

from safetensors import numpy as arrays

from satrap.checkpoint import Checkpoint
from satrap.checkpoint.dense import pack_optimizer, pack_tensors, unpack_optimizer, unpack_tensors
from satrap.dense import Workers
from satrap.metrics import BinaryMetrics


def merged(metrics: BinaryMetrics, workers: Workers) -> dict[str, float]:
    """Return the metrics of what all workers have seen; the same numbers on each.

    Args:
        metrics: what this worker has seen.
        workers: who takes part.
    """
    if workers.world == 1:
        return metrics.compute()
    workers.meet("evaluated")
    for state in workers.gather(arrays.save(metrics.state()))[1:]:
        other = BinaryMetrics(metrics.names, grouped=metrics.grouped)
        other.restore(arrays.load(state))
        metrics.merge(other)
    values: dict[str, float] = json.loads(workers.share(json.dumps(metrics.compute()).encode()))
    return values


def shared(checkpoint: Checkpoint | None, workers: Workers) -> Checkpoint:
    """Return the checkpoint of rank 0 on all workers; the others get no rows.

    Args:
        checkpoint: on rank 0; None elsewhere.
        workers: who takes part.
    """
    if workers.world == 1:
        assert checkpoint is not None
        return checkpoint
    given = checkpoint or Checkpoint({}, {}, {}, ())
    settings = json.loads(workers.share(json.dumps(given.settings).encode()))
    model = unpack_tensors(workers.share(pack_tensors(given.model)))
    optimizer = unpack_optimizer(workers.share(pack_optimizer(given.optimizer)))
    return Checkpoint(settings, model, optimizer, given.chunks)
