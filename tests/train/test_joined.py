"""Workers with replicas of some tables, and shard servers for the others, train as with servers alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import satrap
from satrap.checkpoint import Series, read_checkpoint
from satrap.errors import ConfigError, StoreError
from satrap.exchange.servers import Wire
from satrap.train import Checkpointing, Observer, Progress, Trainer
from tests import faults
from tests.support.covering import covering
from tests.support.interruptions import KillAt, KilledError
from tests.support.trainers import EXACT, Answer, Rows, assert_same, contents, distributed
from tests.train.plain import Tower
from tests.train.ranks import fitted, parts, rows_of, workers


def whole(found: list[tuple[Answer, Rows]]) -> Answer:
    """Return what rank 0 ended with, with the rows of all."""
    answers, rows = zip(*found, strict=True)
    assert len({answer.digest for answer in answers}) == 1
    answers[0].rows = rows_of(list(rows))
    return answers[0]


def trained(world: int, *, epochs: int = 1, validation: Any = lambda _: None, **arguments: Any) -> Answer:
    def work(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        return fitted(trainer, parts(rank), epochs=epochs, validation=validation(rank))

    return whole(workers(world, work, **arguments))


WIRES = {"exact": EXACT, "16-bit": Wire(), "8-bit": Wire("int8", "int8")}


@pytest.mark.parametrize(("name", "world"), covering(list(WIRES), [3, 2]))
def test_sync_is_that_of_shard_servers_alone_to_the_bit(name: str, world: int) -> None:
    wire = WIRES[name]
    arguments: dict[str, Any] = {"mode": "sync", "epochs": 2, "validation": lambda r: parts(3 - r)}
    mine = trained(world, wire=wire, **arguments)
    servers = distributed(world, 2, parts, bounds={"wire": wire}, **arguments)[0]
    assert_same(mine, servers)
    assert mine.result.metrics == servers.result.metrics
    assert (mine.result.steps, mine.result.samples) == (servers.result.steps, servers.result.samples)


HELD = {"servers": (), "one": ["item"], "two": ["user", "tags"], "collective": None}
"""Who holds the tables: which of them are replicated."""


@pytest.mark.cluster
@pytest.mark.parametrize("delta", [None, 2])
@pytest.mark.parametrize(
    "stages",
    [
        ("two", "two", "two"),
        ("servers", "one", "two", "collective"),
        ("collective", "two", "servers", "one"),
    ],
)
def test_a_run_moves_between_them_to_the_bit(
    stages: Sequence[str], delta: int | None, tmp_path: Path
) -> None:
    plan = Checkpointing(str(tmp_path), every_steps=4, delta_every_steps=delta)
    arguments: dict[str, Any] = {"mode": "sync", "embedding_dtype": "bfloat16"}

    def killed(step: int, resume: bool) -> Callable[[Trainer, int], None]:
        def work(trainer: Trainer, rank: int) -> None:
            kill = [KillAt(step)]
            with pytest.raises(KilledError):
                trainer.fit(parts(rank), epochs=3, checkpoint=plan, observers=kill, resume=resume)

        return work

    for number, stage in enumerate(stages[:-1]):
        step = 7 + 4 * number
        workers(2, killed(step, number > 0), replicated=HELD[stage], shards=1 + number, **arguments)

    def last(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        return fitted(trainer, parts(rank), epochs=3, checkpoint=plan, resume=True)

    mine = whole(workers(2, last, replicated=HELD[stages[-1]], **arguments))
    assert_same(mine, trained(2, replicated=(), epochs=3, **arguments))


@pytest.mark.cluster
@pytest.mark.parametrize("held", ["two", "collective"])
@pytest.mark.parametrize("error", [StoreError, MemoryError])
def test_a_rank_that_cannot_write_its_rows_costs_a_snapshot_and_no_more(
    error: type[Exception], held: str, tmp_path: Path
) -> None:
    notices: list[str] = []
    plan = Checkpointing(str(tmp_path), every_steps=3, notice=notices.append)
    arguments: dict[str, Any] = {"mode": "sync", "replicated": HELD[held]}

    def work(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        return fitted(trainer, parts(rank), epochs=2, checkpoint=plan)

    # The first files of a snapshot are those of network, optimizer and two workers, then of two shards.
    at = {"collective": 6, "two": 8}[held]
    with faults.armed("disk.create", faults.fail(lambda: error("no room in memory")), at=at) as fault:
        mine = whole(workers(2, work, **arguments))
    assert fault.fired == ["disk.create"]
    [notice] = notices
    assert "no room in memory" in notice
    assert "worker " in notice
    assert_same(mine, trained(2, epochs=2, **arguments))
    assert (Series(plan.url).latest() or 0) >= 6  # the next ones were written, at once or a little late


class StopAt(Observer):
    """Asks for a stop after a step."""

    def __init__(self, trainer: Trainer, at: int) -> None:
        self.trainer, self.at = trainer, at

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            self.trainer.request_stop()


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("before", "again", "stops"),
    [
        ("two", "two", True),
        ("two", "two", False),
        ("two", "servers", True),
        ("two", "one", False),
        ("two", "collective", False),
        ("servers", "two", False),
    ],
)
def test_in_hybrid_a_run_goes_on_with_lookups_in_flight_or_with_new_ones(
    before: str, again: str, stops: bool, tmp_path: Path
) -> None:
    plan = Checkpointing(str(tmp_path), every_steps=4)
    arguments: dict[str, Any] = {"mode": "hybrid", "staleness": 3}

    def first(trainer: Trainer, rank: int) -> None:
        if stops:
            trainer.fit(parts(rank), epochs=2, checkpoint=plan, observers=[StopAt(trainer, 4)])
            return
        with pytest.raises(KilledError):
            trainer.fit(parts(rank), epochs=2, checkpoint=plan, observers=[KillAt(5)])

    def last(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        return fitted(trainer, parts(rank), epochs=2, checkpoint=plan, resume=True)

    workers(2, first, replicated=HELD[before], **arguments)
    mine = whole(workers(2, last, replicated=HELD[again], shards=1, **arguments))
    straight = trained(2, replicated=(), epochs=2, **arguments)
    assert (mine.result.steps, mine.result.samples) == (straight.result.steps, straight.result.samples)
    assert {t: len(columns[0]) for t, columns in mine.rows.items()} == {
        t: len(columns[0]) for t, columns in straight.rows.items()
    }
    # Runs in hybrid differ with the speed of the workers.
    assert np.linalg.norm(mine.dense - straight.dense) < 0.3 * np.linalg.norm(straight.dense)


def test_async_is_refused() -> None:
    with pytest.raises(ConfigError, match="async cannot be combined with exchange: collective"):
        workers(2, lambda *_: None, mode="async")


@pytest.mark.cluster
def test_the_best_weights_are_brought_back() -> None:
    arguments: dict[str, Any] = {
        "mode": "sync",
        "epochs": 4,
        "patience": 1,
        "validation": lambda r: parts(3 - r),
        "embedding_optimizer": satrap.optim.Adagrad(lr=0.2),  # labels are noise: it must overfit
    }
    mine = trained(2, **arguments)
    servers = distributed(2, 2, parts, **arguments)[0]
    assert mine.result.stopped == "patience"
    assert_same(mine, servers)
    assert mine.result.metrics == servers.result.metrics


def test_a_saved_model_loads_anywhere(tmp_path: Path) -> None:
    place = str(tmp_path)

    def save(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        found = fitted(trainer, parts(rank))
        trainer.save(place)
        return found

    def load(trainer: Trainer, rank: int) -> tuple[Answer, Rows]:
        trainer.state.restore(read_checkpoint(place))
        return Answer(trainer, trainer.run.finish(), {}), contents(trainer)

    mine = whole(workers(2, save, mode="hybrid"))
    one = Trainer.load(place, Tower())
    assert_same(mine, Answer(one, mine.result, contents(one)))
    one.close()
    assert_same(mine, whole(workers(3, load, mode="hybrid", replicated=["item"])))
