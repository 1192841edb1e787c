"""Shards join and leave between steps of a training; what it learns does not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.store import BUCKETS, bucket_of
from satrap.train import moves
from satrap.train.desk import Desk, Moved, Order
from tests.contract.parties import threads
from tests.dense.threads import together
from tests.train.plain import VOCABULARY, Batches, make_batches
from tests.train.test_workers import Answer, connecting, contents, make_trainer

STEPS = 70


class Wishes(Desk):
    """Asks for one order after the other, each after so many looks."""

    def __init__(self, orders: Sequence[Order], after: int) -> None:
        self.orders, self.after, self.looks = list(orders), after, 0
        self.answers: list[Moved] = []

    def order(self) -> Order | None:
        self.looks += 1
        return self.orders[0] if self.orders and self.looks > self.after else None

    def answer(self, moved: Moved) -> None:
        assert moved.id == self.orders.pop(0).id
        self.answers.append(moved)
        self.looks = 0


def run(
    world: int, wishes: Wishes | None, *, hot: bool = False, **arguments: Any
) -> tuple[Answer, list[str]]:
    """Train over two shards, or those that the wishes ask for; return what rank 0 ended with."""
    with threads(3) as servers:
        addresses = [server.address for server in servers]
        if wishes is not None:
            join = {2: addresses[2]}
            wishes.orders = [Order("a", join=join) if order.id == "a" else order for order in wishes.orders]

        def work(workers: Workers) -> Answer:
            mode = "hybrid" if arguments.get("lookahead") else arguments["mode"]
            connect = connecting(addresses[:2], mode=mode, rank=workers.rank, world=world, deadline=60.0)
            desk = None if wishes is None else wishes if workers.rank == 0 else Wishes([], 0)
            for rank in range(world):
                if workers.rank == rank:
                    trainer = make_trainer(exchange=connect, workers=workers, desk=desk, **arguments)
                workers.meet("built")
            batches = make_batches(STEPS, seed=workers.rank)
            result = trainer.fit(Batches(list(map(heated, batches)) if hot else batches), epochs=1)
            workers.meet("trained")
            rows = contents(trainer) if workers.rank == 0 else {}
            workers.meet("read")
            trainer.close()
            return Answer(trainer, result, rows)

        return together(world, work)[0], addresses


def heated(batch: Batch) -> Batch:
    """Return a batch of which nearly all users and items are in buckets of the first of two shards."""
    for table in ("user", "item"):
        every = np.arange(VOCABULARY, dtype=np.uint64)
        own = every[bucket_of(table, every) < BUCKETS // 2]
        ids = batch.ids[table].values
        ids[3:] = own[ids[3:] % np.uint64(len(own))]
    return batch


@pytest.fixture
def small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of ten rows, then twice as many each, one after each step, as soon as steps are looked at."""
    monkeypatch.setattr(moves, "FIRST_ROWS", 10)
    monkeypatch.setattr(moves, "CARRY_SECONDS", 1e9)
    monkeypatch.setattr(moves, "PAUSED", 1.0)
    waiting = property(lambda course: course._prepared.exception(60) is None)
    monkeypatch.setattr(moves.Course, "prepared", waiting)


@pytest.mark.parametrize(
    ("world", "arguments"),
    [
        (1, {"mode": "sync"}),
        (1, {"mode": "sync", "lookahead": 3}),
        (1, {"mode": "hybrid", "staleness": 4}),
        (2, {"mode": "sync"}),
    ],
)
def test_a_training_with_moves_ends_with_the_bytes_of_one_without(
    world: int, arguments: dict[str, Any], small_portions: None
) -> None:
    orders = [Order("a"), Order("look", survey=True), Order("b", leave=(0,)), Order("c")]
    wishes = Wishes(orders, after=0 if world > 1 else 15)
    moved, _ = run(world, wishes, **arguments)
    plain, _ = run(world, None, **arguments)
    assert [answer.id for answer in wishes.answers][:3] == ["a", "look", "b"]
    first, look, second, *_ = wishes.answers
    assert (first.error, first.map.members) == (None, [0, 1, 2])
    assert first.map.epoch == 1 + first.pauses > 2
    assert 0 < first.seconds < first.paused
    assert first.carried > 10
    assert 1300 < first.buckets < 1430
    assert look.map == first.map
    assert sum(look.rows.values()) > 50
    assert (second.error, second.map.members) == (None, [1, 2])
    assert sum(second.rows.values()) >= sum(look.rows.values()) > second.carried > 5
    assert moved.digest == plain.digest
    assert moved.rows.keys() == plain.rows.keys()
    for table, columns in plain.rows.items():
        for mine, theirs in zip(moved.rows[table], columns, strict=True):
            assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()


@pytest.mark.parametrize("world", [1, 2])
def test_traffic_and_bytes_get_even_and_what_is_even_stays(world: int, small_portions: None) -> None:
    orders = [Order("look", survey=True), Order("even", by="traffic"), Order("twice", by="traffic")]
    wishes = Wishes([*orders, Order("size", by="bytes")], after=0 if world > 1 else 10)
    moved, _ = run(world, wishes, hot=True, mode="sync")
    plain, _ = run(world, None, hot=True, mode="sync")
    look, even, twice, size = wishes.answers[:4]
    assert [answer.error for answer in wishes.answers] == [None] * 4
    for answer in wishes.answers:
        assert answer.traffic.keys() == {0, 1}
        assert sum(answer.traffic.values()) == pytest.approx(1)
    assert look.traffic[0] > 0.6
    assert even.traffic[0] == pytest.approx(0.5, abs=0.02)
    assert even.carried > 0
    assert (twice.map, twice.pauses, twice.carried) == (even.map, 0, 0)
    assert size.map.epoch > even.map.epoch
    assert abs(size.rows[0] - size.rows[1]) <= 3  # all rows of this model are of one size
    assert moved.digest == plain.digest
