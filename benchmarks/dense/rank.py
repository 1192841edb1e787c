"""One process of a variant of training: it takes steps on request, and reports their time."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import satrap  # noqa: F401  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.batch import EmbeddedBatch
from satrap.dense import ConnectedWorkers, DataParallelBackend, DenseBackend, Mesh, Workers
from satrap.dense.backends.pipelined import PipelinedBackend
from satrap.dense.backends.sharded import ShardedBackend
from satrap.dense.memory.activation_checkpoint import checkpoint_activations
from satrap.runtime.malloc import keep_freed_memory

WARM = 3


class Tower(nn.Module):
    """A stack of linear layers."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tower = nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(width, width), nn.ReLU())])
        self.head = nn.Linear(width, 1)

    def chain(self) -> list[Any]:
        return [EmbeddedBatch.flat, *self.tower, self.head]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        output: Tensor = self.head(self.tower(batch.flat()))
        return output


def batch_of(size: int, width: int) -> EmbeddedBatch:
    return EmbeddedBatch(size, {}, torch.randn(size, width), labels=torch.rand(size, 1).round())


class Parts(list[EmbeddedBatch]):
    """The microbatches of a batch of numbers, see `satrap.train.step.split_batch.MicroBatches`."""

    rows = ()

    def __init__(self, batch: EmbeddedBatch, count: int) -> None:
        assert batch.labels is not None
        pairs = zip(batch.numeric.tensor_split(count), batch.labels.tensor_split(count), strict=True)
        super().__init__(EmbeddedBatch(len(numeric), {}, numeric, labels=labels) for numeric, labels in pairs)
        self.sizes = [part.size for part in self]
        self.shares = [size / batch.size for size in self.sizes]


def loss_of(logits: Tensor, batch: EmbeddedBatch) -> Tensor:
    assert batch.labels is not None
    return F.binary_cross_entropy_with_logits(logits, batch.labels)


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-4)


class Party:
    """Trains a tower in one variant.

    Args:
        how: {"mesh": ..., "parts": ..., "checkpointed": ..., "plain": ...}, all optional.
        workers: the processes.
    """

    def __init__(self, how: dict[str, Any], workers: Workers, size: int, width: int, layers: int) -> None:
        torch.manual_seed(0)
        self.model, self.parts, self.size = Tower(width, layers), how.get("parts", 1), size
        self.batch = batch_of(size, width)
        if how.get("checkpointed"):
            checkpoint_activations(self.model)
        self.optimizer = adam(list(self.model.parameters())) if how.get("plain") else None
        if self.optimizer is None:
            mesh = workers.mesh
            kind = (
                DataParallelBackend
                if mesh.whole
                else ShardedBackend
                if mesh.pipeline == 1
                else PipelinedBackend
            )
            self.dense: DenseBackend = kind(self.model, adam, None, workers)
            if self.dense.pipeline is not None:
                self.dense.pipeline.try_out(batch_of(2, width))
            self.dense.begin()

    def step(self) -> None:
        if self.optimizer is not None:
            self.optimizer.zero_grad()
            loss_of(self.model(self.batch), self.batch).backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()
            return
        if (pipeline := self.dense.pipeline) is not None:
            _, loss = pipeline.run(Parts(self.batch, pipeline.count), loss_of, 1.0)
            self.dense.backward(loss, 1.0)
        else:
            for number, part in enumerate(Parts(self.batch, self.parts), 1):
                self.dense.backward(
                    loss_of(self.model(part), part), 1 / self.parts, last=number == self.parts
                )
        assert self.dense.step([], 1.0).result().accepted


def main() -> None:
    """Read numbers of steps from standard input, and print the milliseconds per step of each round."""
    store, rank, how, sizes = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), json.loads(sys.argv[4])
    keep_freed_memory()
    torch.set_num_threads(1)
    mesh = Mesh(**how.get("mesh", {}))
    workers = (
        Workers() if mesh.size == 1 else ConnectedWorkers(store, rank, mesh.size, mesh=mesh, deadline=600)
    )
    party = Party(how, workers, **sizes)
    for _ in range(WARM):
        party.step()
    print("ready", flush=True)
    for line in sys.stdin:
        steps = int(line)
        start = time.perf_counter()
        for _ in range(steps):
            party.step()
        print(1000 * (time.perf_counter() - start) / steps, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
