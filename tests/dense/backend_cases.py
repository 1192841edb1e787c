"""What every dense backend is asked to do; as a program, one of several processes that do it together."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from satrap import optim
from satrap.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from satrap.dense import (
    ConnectedWorkers,
    DataParallelBackend,
    DenseBackend,
    DenseState,
    Mesh,
    RemoteStep,
    Workers,
)
from satrap.dense.backends.sharded import ShardedBackend
from satrap.exchange import LocalExchange
from satrap.schema import Table
from satrap.store import Shard
from satrap.train.state.across_workers import shared
from satrap.train.state.coordinator import SharedCut
from tests.dense.steps import stepped

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
}
MESHES = {
    "data parallel": Mesh(2),
    "sharded": Mesh(2, sharded=True),
    "gradients sharded": Mesh(2, sharded="gradients"),
    "optimizer sharded": Mesh(2, sharded="optimizer"),
    "tensor": Mesh(1, 2),
    "tensor and data": Mesh(2, 2),
    "tensor and sharded": Mesh(2, 2, sharded=True),
}
"""The backends of several processes."""

SPLITS = ((3, 5), (4, 4), (8, 0), (1, 7), (5, 3), (0, 8))
"""Samples of each of two shares in each step; if there is one share, it has the samples of both."""

RATES = (1.0, 1.0, 0.5, 0.5, 2.0, 1.0)
BAD, HALF, CLIP = 3, 3, 0.05
"""The step that is refused if one is, the step of the checkpoint, the norm where gradients are clipped."""


class Kept(nn.Module):
    """Has a buffer, and no effect."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        return x


def network(seed: int) -> nn.Module:
    """A network with a buffer; two processes cannot divide the rows of its last layer, nor its offset's."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1), Kept(), Offset())


class Offset(nn.Module):
    """Adds a number without dimensions, and one to a layer that is left whole."""

    def __init__(self) -> None:
        super().__init__()
        self.offset, self.scale = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.offset


def samples(step: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(step)
    return torch.randn(8, 3, generator=random), torch.randn(8, 1, generator=random)


class Party:
    """A process with its network and backend; it trains as the loop does."""

    def __init__(
        self, kind: str, workers: Workers, optimizer: str, clip_norm: float | None = None, seed: int = 0
    ) -> None:
        self.workers, make = workers, OPTIMIZERS[optimizer]
        self.model = network(seed + workers.rank)
        whole = RemoteStep if kind == "remote" else DataParallelBackend
        backend = whole if workers.mesh.whole else ShardedBackend
        self.dense: DenseBackend = backend(self.model, make, clip_norm, workers)
        ids = Table("ids", dim=4, optimizer=optim.SGD(lr=1.0))
        self.use(LocalExchange(Shard([ids, *self.dense.tables({4})], seed=0)))

    def use(self, exchange: LocalExchange) -> None:
        self.exchange = exchange
        self.dense.attach(exchange.groups)

    def begin(self) -> Party:
        self.dense.begin()
        self.dense.seed(self.exchange)
        return self

    def train(self, first: int, last: int, *, bad: bool = False, stop: bool = False) -> list[Any]:
        said = []
        for step in range(first, last):
            x, y = samples(step)
            own, share = self.workers.data, 1.0
            if own.size > 1:
                x, y = (column.split(SPLITS[step])[own.rank] for column in (x, y))
                share = own.size * len(x) / 8
            if not len(x) and self.dense.collective:
                x, y = torch.ones(2, 3), torch.ones(2, 1)
            requests = list(self.dense.requests)
            if requests:
                lookup = self.exchange.lookup(requests, create=True)
                self.dense.pull(lookup.result())
            loss = nn.functional.mse_loss(self.model(x), y) if len(x) else None
            if loss is not None and bad and step == BAD:
                loss = loss * float("nan")
            done = stepped(self.dense, loss, [], RATES[step], share=share, stop=stop and step == BAD)
            if requests:
                gradients = self.dense.push() if done.accepted else []
                self.exchange.apply(lookup, gradients, lr_scale=RATES[step])
            said.append([done.accepted, done.loss, done.stop])
        self.exchange.flush()
        self.dense.settle(self.exchange)
        return said

    def whole(self) -> DenseState:
        """What a checkpoint has of the network, as each process gets it back."""
        part, written = self.dense.part(), None
        cut = SharedCut(self.exchange, self.workers, None if self.dense.whole else part, still=True)
        if cut.assists:
            cut.assist()
        elif self.workers.rank == 0:
            network = (part.weights, part.optimizer) if self.dense.whole else ({}, {})
            with TemporaryDirectory() as place:
                cut.direct(lambda: write_checkpoint(place, cut.fill(Checkpoint({}, *network, ()))))
                written = read_checkpoint(place)
        found = shared(written, self.workers)
        return DenseState(found.model, found.optimizer)

    def plain_state(self) -> dict[str, Any]:
        whole = self.whole()
        state = whole.optimizer.get("state", {})
        return {
            "weights": {key: tensor.tolist() for key, tensor in whole.weights.items()},
            "optimizer": {f"{i} {k}": v.tolist() for i, e in state.items() for k, v in e.items()},
        }

    def numbers(self) -> list[float]:
        """All weights."""
        if self.workers.mesh.whole:
            return nn.utils.parameters_to_vector(self.model.parameters()).tolist()
        weights = self.whole().weights
        return [x for name, _ in self.model.named_parameters() for x in weights[name].view(-1).tolist()]


def answers(kind: str, workers: Workers) -> dict[str, Any]:
    """Do all that a backend promises, and return what came out."""
    found: dict[str, Any] = {}
    last = len(RATES)
    for name in OPTIMIZERS:
        party = Party(kind, workers, name).begin()
        with closing(party.exchange):
            losses = [loss for _, loss, _ in party.train(0, last)]
            found[f"trained {name}"] = {"weights": party.numbers(), "losses": losses}
            found[f"state {name}"] = party.plain_state()
        party = Party(kind, workers, name).begin()
        with closing(party.exchange):
            party.train(0, HALF)
            whole, other = party.whole(), Party(kind, workers, name, seed=5)
            other.exchange.close()
            other.use(party.exchange)
            other.dense.restore(whole)
            other.train(HALF, last)
            found[f"resumed {name}"] = other.plain_state()
        party = Party(kind, workers, name).begin()
        with closing(party.exchange):
            party.train(0, HALF)
            party.whole()
            party.train(HALF, last)
            found[f"went on {name}"] = party.numbers()
    for name, clip, how in (("refused", None, "bad"), ("clipped", CLIP, ""), ("stopped", None, "stop")):
        party = Party(kind, workers, "momentum", clip).begin()
        with closing(party.exchange):
            # Only the last process has the bad loss, or is asked to stop.
            flags = {how: workers.rank == workers.size - 1} if how else {}
            found[name] = {"said": party.train(0, last, **flags), "weights": party.numbers()}
    found["own"] = own(kind, workers)
    return found


def own(kind: str, workers: Workers) -> list[float]:
    """Return this process's buffer after it went through what `own` and `state` give."""
    party, other = (Party(kind, workers, "adam", seed=seed).begin() for seed in (0, 5))
    with closing(party.exchange), closing(other.exchange):
        for name, buffer in party.model.named_buffers():
            if name.endswith("mean"):
                buffer += workers.rank + 1.0
        other.dense.restore(party.whole())
        other.dense.restore_own(party.dense.own())
        return dict(other.model.named_buffers())["3.mean"].tolist()


def main() -> None:
    store, rank, kind = sys.argv[1:]
    mesh = MESHES[kind]
    workers = ConnectedWorkers(store, int(rank), mesh.size, mesh=mesh)
    print(json.dumps(answers(kind, workers)), flush=True)
    workers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
