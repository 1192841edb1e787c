"""One worker: averages gradients with the others, and reports the time. See README.md here."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch
from torch import nn

from satrap.dense.backends.data_parallel import average
from satrap.dense.comm.compressed_gradients import compressed
from satrap.exchange.servers import Wire
from satrap.runtime.malloc import keep_freed_memory

WIDTHS = ((13, 512, 256, 128), (479, 1024, 1024, 512, 256, 1))
"""Of the two towers of DLRM in MLPerf: 2.4 million weights."""


def parameters() -> list[nn.Parameter]:
    """Return the parameters of DLRM's linear layers, with gradients."""
    layers = [nn.Linear(n, m) for widths in WIDTHS for n, m in pairwise(widths)]
    weights = [p for layer in layers for p in layer.parameters()]
    for parameter in weights:
        parameter.grad = torch.randn(parameter.shape)
    return weights


def main() -> None:
    """Rank 0 prints the milliseconds of each mean."""
    dense, repeats = sys.argv[1], int(sys.argv[2])
    keep_freed_memory()
    place = satrap.train.WorkerContext.from_environment(wire=Wire(dense=dense), threads=1)  # type: ignore[arg-type]
    workers, weights, milliseconds = place.workers, parameters(), []
    way, gradients = compressed(weights, workers.data), [p.grad for p in weights]
    for _ in range(3 + repeats):
        for parameter, gradient in zip(weights, gradients, strict=True):
            parameter.grad = gradient
        workers.count([0.0])  # all begin together
        start = time.perf_counter()
        if way is None:
            average(weights, workers.data, [0.0, 0.0])
        else:
            way.average([0.0, 0.0], refused=False)
        milliseconds.append(round(1000 * (time.perf_counter() - start), 2))
    if workers.rank == 0:
        print(json.dumps(milliseconds[3:]), flush=True)
    workers.close()


if __name__ == "__main__":
    main()
