"""A process of `test_meshes`: it trains a network over a mesh as one process would."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

import satrap
from satrap.batch import Batch, EmbeddedBatch
from satrap.checkpoint.files import tensor_stream
from satrap.dense import ConnectedWorkers, Mesh, StepResult
from satrap.dense.backends import sharded as monkey
from satrap.dense.backends.protocol import PendingStep
from satrap.dense.memory import initial_weights as monkey_initial
from satrap.dense.memory.initial_weights import build, initial_weights
from satrap.dense.parallel import param_shards
from satrap.exchange import Exchange
from satrap.exchange.collective import CollectiveExchange
from satrap.exchange.servers import ServersExchange, Wire, WorkerId
from satrap.exchange.wrappers.broadcast import for_group
from satrap.models import PLE, MMoE
from satrap.store import StoreConfig
from satrap.train import Checkpointing, Trainer
from satrap.train.state.coordinator import SharedCut
from satrap.train.step.split_batch import MicroBatches
from satrap.train.worker_context import torch_ranks
from tests.support.trainers import joined
from tests.train.plain import Batches, grouped, make_batches, make_schema

STEPS, SHORT, SHARES = 30, 2, 4
"""Steps, batches that the last share has less, and the largest number of shares."""

EXACT = Wire("float32", "float32")


class Mine(nn.Module):
    """A user's network: a stack, a layer beside it, a weight used twice; 7 rows divide by no mesh."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Linear(25, 20), nn.ReLU(), nn.Dropout(0.0), nn.Linear(20, 7), nn.Tanh(), nn.Linear(7, 7)
        )
        self.beside, self.head = nn.Linear(25, 7), nn.Linear(7, 1)
        self.again = nn.Linear(7, 7)
        self.again.weight = nn.Parameter(torch.eye(7))
        self.once_more = nn.Linear(7, 7, bias=False)
        self.once_more.weight = self.again.weight
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        x = batch.flat()
        found = self.again(self.tower(x)) + self.once_more(self.beside(x)) * self.scale
        return self.head(found)


class Stacked(nn.Module):
    """A user's network with a chain, in which two tensors pass from step to step."""

    tensor_plan: ClassVar = {"enter": "alone", "blocks.*": "alone"}

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.enter = nn.Linear(25, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(blocks))
        self.head = nn.Linear(16, 1)

    def chain(self) -> list[Any]:
        blocks = [(partial(self._block, block), block) for block in self.blocks]
        return [EmbeddedBatch.flat, self.enter, lambda x: (x, x), *blocks, torch.add, self.head]

    def _block(self, block: nn.Module, first: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        return first, x + torch.tanh(block(first * x))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        first = x = self.enter(batch.flat())
        for block in self.blocks:
            x = x + torch.tanh(block(first * x))
        return self.head(first + x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mine": Mine,
    "stacked": Stacked,
    "deep": partial(Stacked, 6),
    "mmoe": partial(MMoE, make_schema(), experts=4, expert_hidden=[12, 8], hidden=[6]),
    "ple": partial(PLE, make_schema(), shared_experts=4, expert_hidden=[8], hidden=[6]),
}


def share(rank: int, size: int) -> list[Batch]:
    """The batches of a share; the last of several has fewer. The last batch is short."""
    missing = SHORT if size > 1 and rank == size - 1 else 0
    long = make_batches(STEPS - missing - 1, size=12, seed=100 + rank)
    return [*long, *make_batches(1, size=3, seed=200 + rank)]


def whole(size: int) -> list[Batch]:
    """The batches of all shares, step by step."""
    shares = [share(rank, size) for rank in range(size)]
    return [joined([own[step] for own in shares if step < len(own)]) for step in range(STEPS)]


def make_trainer(mode: str, model: str = "mine", **arguments: Any) -> tuple[Trainer, list[float]]:
    """Return a trainer and the list of its losses."""
    torch.manual_seed(3)
    dense = arguments.pop("dense", lambda p: torch.optim.Adam(p, lr=1e-2))
    made: dict[str, Any] = {
        "embedding_optimizer": satrap.optim.Adagrad(lr=0.05),
        "dense_optimizer": dense,
        "mode": mode,
        "staleness": 2,
        "initial_scale": 0.5,
        "threads": 1,
    }
    in_parts = arguments.pop("in_parts", False)
    network = build(MODELS[model], 3, in_parts=in_parts)
    assert (initial_weights(network) is not None) == (in_parts and model != "mine")  # it ties weights
    trainer = Trainer(network, make_schema(), **grouped(**made | arguments))
    losses, step = list[float](), trainer.dense.step

    def noted(*given: Any, **named: Any) -> Any:
        pending = step(*given, **named)

        def finish() -> StepResult:
            agreed = pending.result()
            losses.append(agreed.loss)
            return agreed

        return PendingStep(pending.own, finish)

    trainer.dense.step = noted  # type: ignore[method-assign]
    return trainer, losses


def exchange_of(
    workers: ConnectedWorkers, shards: Sequence[str], mode: str, run: str
) -> Callable[..., Exchange]:
    """Return what makes the exchange of a process: over shard servers, or among the workers."""
    store = StoreConfig(initial_scale=0.5)

    def exchange(tables: Any) -> Exchange:
        if shards:
            own = WorkerId(workers.data.rank, workers.data.size, 0, run)
            return ServersExchange(shards, tables, store=store, wire=EXACT, mode=mode, worker=own)  # type: ignore[arg-type]
        return CollectiveExchange(torch_ranks(workers, 30), tables, store=store, wire=EXACT)

    return for_group(workers.peers, exchange)


def train(workers: ConnectedWorkers, task: dict[str, Any]) -> dict[str, Any]:
    """Do what a task says; return losses and metrics, and save the result."""
    param_shards.UNIT = task.get("unit", param_shards.UNIT)
    tensor_stream.READ = task.get("read", tensor_stream.READ)
    monkey_initial.LARGE = 2
    exchange = exchange_of(workers, task.get("shards", ()), task["mode"], task["run"])
    extra = {"clip_norm": task["clip"]} if "clip" in task else {}
    extra |= {
        name: task[name]
        for name in ("precision", "microbatches", "checkpoint_activations", "compile", "in_parts")
        if name in task
    }
    trainer, losses = make_trainer(
        task["mode"], task.get("model", "mine"), workers=workers, exchange=exchange, **extra
    )
    if "scale" in task:
        trainer.dense.scale.value = task["scale"]
    if task.get("forget") and workers.mesh.pipeline > 1:  # a mean of means
        MicroBatches.shares = property(lambda parts: [1 / len(parts)] * len(parts), lambda *_: None)  # type: ignore[assignment]
    elif task.get("forget"):
        monkey.average = lambda parameters, group: [group.sum(p.grad) for p in parameters]
    own = Batches(share(workers.data.rank, workers.data.size))
    fit: dict[str, Any] = {"steps": task.get("steps"), "resume": task.get("resume", False)}
    if "checkpoints" in task:
        fit["checkpoint"] = Checkpointing(task["checkpoints"], every_steps=10, keep=9)
    trainer.fit(own, **fit)
    held = make_batches(1 + workers.data.rank, seed=50 + workers.data.rank)
    metrics = trainer.evaluate(Batches(held))
    if task.get("killed") == workers.rank:
        kill_at_its_part()
    trainer.save(task["saved"])
    kept = sum(
        p.to_local().numel() if hasattr(p, "to_local") else p.numel()
        for p in trainer.model.parameters()
        if not p.is_meta
    )
    trainer.close()
    took = {"updates": trainer.run.updates, "refused": trainer.run.progress.refused}
    return {"losses": losses, "metrics": metrics, "kept": kept, "scale": trainer.dense.scale.value, **took}


def kill_at_its_part() -> None:
    """Kill this process when it should write its part of a file."""

    def killing(cut: SharedCut, *_: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    SharedCut._result = killing  # type: ignore[method-assign]


def main() -> None:
    store, rank, mesh, tasks, *deadline = sys.argv[1:]
    given = json.loads(mesh)
    shape = Mesh(**{**given, "stages": tuple(given["stages"])})
    workers = ConnectedWorkers(store, int(rank), shape.size, mesh=shape, deadline=float([*deadline, 60][0]))
    print(json.dumps([train(workers, task) for task in json.loads(Path(tasks).read_text())]), flush=True)
    workers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
