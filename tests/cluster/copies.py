"""A process of `test_copies`: four train two copies of a network, and two hold each copy.

Until networks are divided among processes, both that hold a copy compute the same. Each process has its own
store; rows do not learn, so that all stores give the same rows.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import satrap
from satrap.dense import ConnectedWorkerGroup, ConnectedWorkers, WorkerGroup
from satrap.train import Checkpointing, Trainer
from tests.support.watched import Watched, data
from tests.train.plain import Batches, grouped, make_batches, make_schema

SIZE, COPIES, KILLED = 4, 2, 8
HELD = [make_batches(3, seed=50 + share) for share in range(COPIES)]


class Paired(ConnectedWorkers):
    """Processes 0 and 1 hold the first copy, 2 and 3 the second."""

    def __init__(self, store: str, rank: int) -> None:
        super().__init__(store, rank, SIZE, deadline=60)
        parts = SIZE // COPIES
        groups = [[dist.new_group(list(range(part, SIZE, parts))) for _ in range(2)] for part in range(parts)]
        self._data = ConnectedWorkerGroup(*groups[rank % parts])

    @property
    def data(self) -> WorkerGroup:
        return self._data


def make_trainer(**place: Any) -> Trainer:
    torch.manual_seed(3)
    arguments: dict[str, Any] = {
        "embedding_optimizer": satrap.optim.SGD(lr=1e-30),
        "dense_optimizer": lambda p: torch.optim.Adam(p, lr=1e-2),
        "mode": "hybrid",
        "staleness": 2,
        "initial_scale": 0.5,
        "threads": 1,
    }
    return Trainer(Watched(), make_schema(), **grouped(**arguments, **place))


def weights(trainer: Trainer) -> list[float]:
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()).tolist()


def train(workers: Paired, **fit: Any) -> dict[str, Any]:
    trainer = make_trainer(workers=workers)
    result = trainer.fit(data(workers.data.rank, workers.data.size), **fit)
    metrics = trainer.evaluate(Batches(HELD[workers.data.rank]))
    trainer.close()
    assert isinstance(trainer.model, Watched)
    return {
        "weights": weights(trainer),
        "samples": result.samples,
        "steps": result.steps,
        "seen": trainer.model.seen,
        "metrics": metrics,
        "total": trainer.run.progress.total_samples,
    }


def main() -> None:
    store, rank, folder = sys.argv[1:]
    workers = Paired(store, int(rank))
    plan = Checkpointing(str(Path(folder) / "checkpoints"), every_steps=5, keep=9)
    answer = {
        "ranks": [workers.rank, workers.data.rank],
        "whole": train(workers, epochs=2),
        "begun": train(workers, epochs=2, steps=KILLED, checkpoint=plan),
        "resumed": train(workers, epochs=2, checkpoint=plan, resume=True),
    }
    print(json.dumps(answer), flush=True)
    workers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
