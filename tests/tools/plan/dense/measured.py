"""Trains a network over a mesh and measures the memory of its tensors, by PyTorch's own tracker.

As a program, one of several processes, or one that only pretends to be.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed._tools.mod_tracker import ModTracker
from torch.distributed.pipelining import schedules
from torch.distributed.pipelining import stage as pipelining
from torch.testing._internal.distributed.fake_pg import FakeStore

import satrap
from satrap.batch import Batch, EmbeddedBatch
from satrap.dense import ConnectedWorkers, Mesh
from satrap.exchange.servers import Wire
from satrap.models import MMoE
from satrap.tools.plan.dense import Inputs, NetworkSpec
from satrap.train import Trainer
from satrap.train.step.loss import LabelLoss
from tests.train.plain import Batches, grouped, make_batches, make_schema

SIZE, WIDTH, BLOCKS, STEPS = 2048, 256, 4, 3


class Tower(nn.Module):
    """A network as wide as its batches are long."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(25, WIDTH)
        layers = [nn.Linear(WIDTH, WIDTH), nn.ReLU()]
        self.tower = nn.Sequential(
            *[type(m)(WIDTH, WIDTH) if isinstance(m, nn.Linear) else m for m in layers * BLOCKS]
        )
        self.head = nn.Linear(WIDTH, 1)

    def chain(self) -> list[Any]:
        return [EmbeddedBatch.flat, self.enter, *self.tower, self.head]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        found: Tensor = self.head(self.tower(self.enter(batch.flat())))
        return found


MODELS: dict[str, Callable[[], nn.Module]] = {
    "tower": Tower,
    "mmoe": partial(MMoE, make_schema(), experts=4, expert_hidden=[WIDTH, WIDTH], hidden=[WIDTH]),
}


class Held:
    """Keeps tensors until somebody has waited for them, as a work of gloo does, but none of "fake"."""

    def __init__(self, ops: list[dist.P2POp]) -> None:
        self._tensors = [op.tensor for op in ops]

    def wait(self) -> None:
        pass


class Pretended(ConnectedWorkers):
    """One of several workers without the others: sums and sent tensors go nowhere."""

    def __init__(self, mesh: Mesh, rank: int) -> None:
        self.mesh, self.rank, self.size, self._process, self.deadline = mesh, rank, mesh.size, rank, 30.0
        started, new = dist.init_process_group, dist.new_group
        c10d: Any = dist
        c10d.init_process_group = lambda *_, **__: started(
            "fake", store=FakeStore(), rank=rank, world_size=mesh.size
        )
        c10d.new_group = lambda ranks=None, **_: new(ranks, backend="fake")
        self._store = FakeStore()
        c10d.recv = lambda tensor, **_: tensor.fill_(1)  # the other stages know shapes, too
        module: Any = pipelining
        module._make_tensor_from_meta = lambda meta, device: torch.zeros(meta.shape, dtype=meta.dtype)
        try:
            self._connect("none", "cpu", Wire())
        finally:
            c10d.init_process_group, c10d.new_group = started, new

    def meet(self, stage: str, **_: Any) -> None:
        pass

    def share(self, data: bytes) -> bytes:
        return data

    def count(self, values: Sequence[float]) -> list[float]:
        return [value * self.size for value in values]

    def gather(self, data: bytes) -> list[bytes]:
        return [data]


class NoModules(ModTracker):
    """Follows no modules: its hooks allow one forward pass of each, and keep weights in memory."""

    def __enter__(self) -> NoModules:
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def adam(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)


@cache
def inputs() -> Inputs:
    """A batch of those that `peak` trains on."""
    schema = make_schema()
    trainer = Trainer(Tower(), schema, **arguments({}))
    plan = trainer.predictor.plan
    ticket = plan.ticket(batch())
    trainer.close()
    return Inputs.of(schema, plan, ticket, SIZE)


def network(model: str = "tower", **options: Any) -> NetworkSpec:
    """What the plan is told of the network that `peak` trains."""
    return NetworkSpec(MODELS[model], inputs(), adam, LabelLoss(make_schema().labels), **options)


def batch() -> Batch:
    return make_batches(1, size=SIZE)[0]


def arguments(options: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"embedding_optimizer": satrap.optim.Adagrad(lr=0.05), "dense_optimizer": adam}
    return grouped(**made, mode="sync", threads=1, **options)


def peak(workers: ConnectedWorkers | None, options: dict[str, Any]) -> int:
    """Return the most bytes of tensors in some steps of training."""
    tracker = MemTracker()
    tracker._mod_tracker = NoModules()
    model = MODELS[options.get("model", "tower")]
    given = {key: value for key, value in options.items() if key != "model"}
    with tracker:
        trainer = Trainer(
            model(), make_schema(), **arguments(given | ({} if workers is None else {"workers": workers}))
        )
        trainer.fit(Batches([batch()] * STEPS), steps=STEPS)
    trainer.close()
    assert trainer.run.progress.refused == 0  # or there would be no optimizer state
    found = tracker.get_tracker_snapshot("peak")
    return found[torch.device("cpu")]["Total"]


def main() -> None:
    """Print the peaks of cases, [[mesh, options, stage], ...], one after another."""
    store, rank, cases = sys.argv[1:]
    if store == "none":
        of_schedules: Any = schedules
        batch_p2p = schedules._batch_p2p
        of_schedules._batch_p2p = lambda ops, desc=None: [*batch_p2p(ops, desc), Held(ops)]
    for mesh, options, stage in json.loads(cases):
        torch.manual_seed(0)
        shape = Mesh(**mesh)
        if store == "none":
            workers: ConnectedWorkers = Pretended(shape, stage * shape.tensor)
        else:
            workers = ConnectedWorkers(store, int(rank), shape.size, mesh=shape, deadline=60)
        print(json.dumps(peak(workers, options)), flush=True)
        dist.destroy_process_group()
    os._exit(0)


if __name__ == "__main__":
    main()
