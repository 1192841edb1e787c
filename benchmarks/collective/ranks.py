"""A worker of satrap as a side of a comparison; rows are in workers, shard servers or its own process."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from benchmarks.train_vs_pytorch.__main__ import network
from benchmarks.train_vs_pytorch.workload import Samples, schema
from satrap.dense import ConnectedWorkers, Workers
from satrap.exchange import Exchange
from satrap.exchange.collective import Alone, CollectiveExchange
from satrap.exchange.collective.torch_ranks import TorchRanks
from satrap.exchange.servers import ServersExchange, Wire, WorkerId

LR, DENSE_LR = 0.01, 1e-3
Side = tuple[Callable[[Samples], object], Callable[[], object], Callable[[], dict[str, Any]]]
"""Three functions: train on samples; wait for all ranks; return the seconds of the last training by stage,
and the bytes sent so far."""
WIRES = {"float32": Wire("float32", "float32"), "int8": Wire("int8", "int8")}


class FarRanks(TorchRanks):
    """Ranks with a longer distance: their messages arrive later."""

    def __init__(self, delay: float) -> None:
        super().__init__(deadline=300.0)
        self._delay = delay

    def another(self) -> FarRanks:
        """See `Ranks.another`."""
        return FarRanks(self._delay)

    def all_to_all(self, given: Any, lengths: Sequence[int], sizes: Sequence[int]) -> list[Any]:
        """See `Ranks.all_to_all`."""
        time.sleep(self._delay)
        return super().all_to_all(given, lengths, sizes)


class FarWorkers(ConnectedWorkers):
    """Workers with a longer distance; their sum is a ring, in which every part is sent 2 (W - 1) times."""

    delay = 0.0

    def sum(self, tensor: torch.Tensor, *, exact: int | None = None) -> None:
        """See `Group.sum`."""
        time.sleep(2 * (self.size - 1) * self.delay)
        super().sum(tensor, exact=exact)


def satrap_side(options: argparse.Namespace) -> Side:
    """One process, collective ranks, or shard servers; any 64-bit id gets a row on first use.

    Args:
        options: `side` names where the rows are ("local", "collective" or "servers"), and after a hyphen
            what differs from the defaults.
    """
    described, workers = schema(options.dim), Workers()
    if options.world > 1:
        workers = FarWorkers(options.store, options.rank, options.world, host=options.host, deadline=300.0)
        workers.delay = options.delay / 1e3
    hybrid = "hybrid" in options.side
    optimizer = satrap.optim.Adagrad if "adagrad" in options.side else satrap.optim.RowWiseAdagrad

    def connect(tables: Any) -> Exchange:
        wire = WIRES.get(options.side.rpartition("-")[2], Wire())
        if options.side.startswith("servers"):
            worker = WorkerId(rank=options.rank, world=options.world, run="benchmark")
            mode = "hybrid" if hybrid else "sync"
            return ServersExchange(options.shards, tables, wire=wire, mode=mode, worker=worker)
        alone = options.world == 1
        ranks = Alone() if alone else FarRanks(options.delay / 1e3)
        return CollectiveExchange(ranks, tables, wire=wire)

    trainer = satrap.Trainer(
        network(options.tower, described),
        described,
        embedding_optimizer=optimizer(lr=LR),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=DENSE_LR),
        mode="hybrid" if hybrid else "sync",
        staleness=4 if hybrid else 0,
        lookahead=2 if "lookahead" in options.side else 0,
        place=satrap.train.WorkerContext(
            None if options.side.startswith("local") else connect, workers, threads=1
        ),
    )

    def fit(samples: Samples) -> None:
        data = satrap.data.read(samples.columns(), described, batch_size=options.batch_size, shuffle=False)
        trainer.fit(data)

    def report() -> dict[str, Any]:
        stages, traffic = trainer.run.stages.seconds, trainer.exchange.telemetry.traffic()
        return {**stages, "sent": traffic.sent}

    return fit, lambda: workers.meet("pass"), report
