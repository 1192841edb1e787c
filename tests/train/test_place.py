"""A trainer is where its place says: its rows, its partners, its threads."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from satrap.dense import Workers
from satrap.exchange import LocalExchange
from satrap.schema import Table
from satrap.store import Shard
from satrap.train import Place
from tests.train.test_trainer import make_trainer


def test_rows_are_where_the_exchange_puts_them() -> None:
    made: list[LocalExchange] = []

    def connect(tables: Sequence[Table]) -> LocalExchange:
        made.append(LocalExchange(Shard(tables, seed=3)))
        return made[-1]

    workers, threads = Workers(), torch.get_num_threads()
    trainer = make_trainer(exchange=connect, workers=workers, threads=1)
    assert [trainer.exchange] == made
    assert trainer.workers is trainer.state.workers is workers
    assert torch.get_num_threads() == 1
    trainer.close()
    torch.set_num_threads(threads)


def test_by_default_a_trainer_is_alone() -> None:
    assert (Place().workers.size, Place().exchange, Place().threads) == (1, None, None)
    assert Place().workers is not Place().workers
