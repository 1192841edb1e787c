"""Merges and shares the data of several workers: metrics, state, checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from safetensors import numpy as arrays
from torch import Tensor

from satrap.checkpoint import Checkpoint
from satrap.checkpoint.dense import pack_optimizer, pack_tensors, unpack_optimizer, unpack_tensors
from satrap.checkpoint.snapshot import loaded
from satrap.dense import DenseState, Workers
from satrap.metrics import Metrics


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
    values: dict[str, float] = json.loads(workers.share(json.dumps(computed).encode()))
    return values


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
    settings, count = json.loads(workers.share(json.dumps([source.settings, len(extras)]).encode()))
    if dense is None:
        workers.solo("reading the network", lambda: loaded(source))
        model = unpack_tensors(workers.share(pack_tensors(source.model)))
        dense = DenseState(model, unpack_optimizer(workers.share(pack_optimizer(source.optimizer))))
    extra, *others = (unpack_tensors(workers.share(extras[i] if checkpoint else b"")) for i in range(count))
    return Checkpoint(settings, dense.weights, dense.optimizer, source.chunks, extra, others)
