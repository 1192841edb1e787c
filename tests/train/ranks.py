"""Several trainers as threads: ranks that hold the rows together, and workers over shard servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch

from satrap.dense import Workers
from satrap.exchange.collective import CollectiveExchange
from satrap.exchange.servers import ShardServer, Wire
from satrap.store import StoreConfig
from satrap.train import Trainer
from tests.dense.threads import together
from tests.exchange.collective.parties import Meeting, ThreadRanks
from tests.exchange.joining import connecting
from tests.support.trainers import EXACT, Answer, Rows, contents, make_trainer
from tests.train.plain import Batches, Tower, make_batches


def ranks(world: int, work: Callable[[Trainer, int], Any], **arguments: Any) -> list[Any]:
    """Do something with the trainer of each rank; return what it returned on each."""
    meeting, towers = Meeting(world), []
    for _ in range(world):
        torch.manual_seed(3)
        towers.append(Tower())
    store = StoreConfig(initial_scale=0.5)
    held = {key: arguments.pop(key) for key in ("placement", "pools", "wire") if key in arguments}
    dense = arguments.pop("dense", "float32")

    def run(workers: Workers) -> Any:
        rank = workers.rank

        def exchange(tables: Any) -> CollectiveExchange:
            return CollectiveExchange(
                ThreadRanks(meeting, rank), tables, store=store, **{"wire": EXACT, **held}
            )

        trainer = make_trainer(model=towers[rank], exchange=exchange, workers=workers, **arguments)
        try:
            return work(trainer, rank)
        finally:
            workers.meet("done")
            trainer.close()

    return together(world, run, dense=dense)


def rows_of(parts: list[Rows]) -> Rows:
    """The rows of all ranks as those of one store."""
    return {
        table: tuple(
            np.concatenate(columns) for columns in zip(*(p[table] for p in parts if table in p), strict=True)
        )
        for table in sorted({table for part in parts for table in part})
    }


def trained(world: int, data: Callable[[int], Batches], **arguments: Any) -> Answer:
    """Train; return what rank 0 ended with, with the rows of all."""
    fit = {key: arguments.pop(key) for key in ("epochs",) if key in arguments}
    validation = arguments.pop("validation", lambda _: None)

    def work(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        result = trainer.fit(data(rank), validation=validation(rank), **fit)
        return Answer(trainer, result, {}), contents(trainer)

    answers, parts = zip(*ranks(world, work, **arguments), strict=True)
    assert len({answer.digest for answer in answers}) == 1
    answers[0].rows = rows_of(list(parts))
    return answers[0]


PARTS = [
    [*make_batches(6, size=16, seed=0), *make_batches(1, size=3, seed=7)],
    make_batches(3, size=16, seed=1),
    [],
    make_batches(5, size=16, seed=2),
]
"""Batches of four ranks, of unequal number and size."""


def parts(rank: int) -> Batches:
    return Batches(PARTS[rank])


def workers(
    world: int,
    work: Callable[[Trainer, int], Any],
    *,
    shards: int = 2,
    replicated: Sequence[str] | None = ("user", "tags"),
    wire: Wire = EXACT,
    **arguments: Any,
) -> list[Any]:
    """Do something with the trainer of each worker; return what it returned for each."""
    store, towers = StoreConfig(initial_scale=0.5), []
    for _ in range(world):
        torch.manual_seed(3)
        towers.append(Tower())
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer("127.0.0.1:0")) for _ in range(shards)]
        mode = "sync" if arguments["mode"] == "sync" else "hybrid"
        connect = connecting(
            [s.address for s in servers], world, store=store, replicated=replicated, wire=wire, mode=mode
        )

        def run(others: Workers) -> Any:
            rank = others.rank
            made = make_trainer(
                model=towers[rank], exchange=lambda tables: connect(rank, tables), workers=others, **arguments
            )
            try:
                return work(made, rank)
            finally:
                others.meet("done")
                made.close()

        return together(world, run)


def fitted(trainer: Trainer, data: Batches, **fit: Any) -> tuple[Answer, Rows]:
    answer = Answer(trainer, trainer.fit(data, **fit), {})
    mine = trainer.exchange.collective or trainer.workers.rank == 0
    rows = contents(trainer) if mine else {}
    trainer.workers.meet("read")
    return answer, rows
