"""A trainer is where its place says: its rows, its partners, its threads."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pytest
import torch

from satrap.dense import ConnectedWorkers, Workers
from satrap.errors import ConfigError
from satrap.exchange import LocalExchange
from satrap.schema import Table
from satrap.store import Shard
from satrap.train import WorkerContext
from tests.train.one_trainer import make_trainer


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
    assert (WorkerContext().workers.size, WorkerContext().exchange, WorkerContext().threads) == (
        1,
        None,
        None,
    )
    assert WorkerContext().workers is not WorkerContext().workers


def test_without_torchrun_there_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for size in ("1", None):
        monkeypatch.delenv("WORLD_SIZE", raising=False)
        if size is not None:
            monkeypatch.setenv("WORLD_SIZE", size)
        place = WorkerContext.from_environment(threads=3)
        assert (place.exchange, place.workers.size, place.threads) == (None, 1, 3)
        assert place.share == {"worker": 0, "workers": 1}


def test_half_an_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(ConfigError, match="the variables of torchrun"):
        WorkerContext.from_environment()
    monkeypatch.setenv("WORLD_SIZE", "many")
    with pytest.raises(ConfigError, match="the variables of torchrun"):
        WorkerContext.from_environment()


def test_a_process_that_does_not_answer_for_30_seconds_is_lost() -> None:
    for made in (WorkerContext.from_environment, ConnectedWorkers):
        assert inspect.signature(made).parameters["deadline"].default == 30.0
