"""Shards join and leave between steps of a training; what it learns does not depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.errors import ExchangeError
from satrap.exchange.resharding import bucket_moves as carrying
from satrap.exchange.resharding.bucket_moves import Carried
from satrap.exchange.shard_map import ShardMap
from satrap.store import BUCKETS, bucket_of
from satrap.train.resharding import moves
from satrap.train.resharding.moves import Course, Mover
from satrap.train.resharding.requests import RequestSource, ReshardRequest, ReshardResult
from tests.contract.parties import threads
from tests.dense.threads import together
from tests.support.trainers import Answer, connecting, contents, make_trainer
from tests.train.plain import VOCABULARY, Batches, make_batches

STEPS = 42


class Wishes(RequestSource):
    """Asks for one order after the other, each after so many looks."""

    def __init__(self, orders: Sequence[ReshardRequest], after: int) -> None:
        self.orders, self.after, self.looks = list(orders), after, 0
        self.answers: list[ReshardResult] = []

    def order(self) -> ReshardRequest | None:
        self.looks += 1
        return self.orders[0] if self.orders and self.looks > self.after else None

    def answer(self, moved: ReshardResult) -> None:
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
            wishes.orders = [
                ReshardRequest("a", join=join) if order.id == "a" else order for order in wishes.orders
            ]

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
    """Portions of ten rows, then twice as many each, one after each step, as soon as steps are looked at.

    Several workers look at every eighth.
    """
    monkeypatch.setattr(moves, "EVERY", 8)
    monkeypatch.setattr(carrying, "COUNTED", 512)  # all buckets are counted in eight questions
    monkeypatch.setattr(moves, "FIRST_ROWS", 10)
    monkeypatch.setattr(moves, "CARRY_SECONDS", 1e9)
    monkeypatch.setattr(moves, "PAUSED", 1.0)
    waiting = property(lambda course: course._prepared.exception(60) is None)
    monkeypatch.setattr(moves.Course, "prepared", waiting)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("world", "arguments"),
    [
        pytest.param(1, {"mode": "sync"}, marks=pytest.mark.slow),
        pytest.param(1, {"mode": "sync", "lookahead": 3}, marks=pytest.mark.slow),
        pytest.param(1, {"mode": "hybrid", "staleness": 4}, marks=pytest.mark.slow),
        (2, {"mode": "sync"}),
    ],
)
def test_a_training_with_moves_ends_with_the_bytes_of_one_without(
    world: int, arguments: dict[str, Any], small_portions: None
) -> None:
    orders = [
        ReshardRequest("a"),
        ReshardRequest("look", survey=True),
        ReshardRequest("b", leave=(0,)),
        ReshardRequest("c"),
    ]
    wishes = Wishes(orders, after=0 if world > 1 else 6)
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


@pytest.mark.cluster
@pytest.mark.parametrize("world", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_traffic_and_bytes_get_even_and_what_is_even_stays(world: int, small_portions: None) -> None:
    orders = [
        ReshardRequest("look", survey=True),
        ReshardRequest("even", by="traffic"),
        ReshardRequest("twice", by="traffic"),
    ]
    wishes = Wishes([*orders, ReshardRequest("size", by="bytes")], after=0 if world > 1 else 5)
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


class Shards:
    """Shards that hold what they are said to hold; carrying takes as long as it is said to take."""

    def __init__(self, map: ShardMap, rows: np.ndarray, uses: np.ndarray | None = None) -> None:
        self.map, self.rows, self.uses = map, rows, np.zeros(BUCKETS) if uses is None else uses
        self.now, self.takes = 100.0, 0.0
        self.rehearsed: list[Any] = []
        self.error: Exception | None = None

    def rehearse(self, map: ShardMap, join: Any) -> None:
        self.rehearsed.append((map, dict(join)))
        if self.error is not None:
            raise self.error

    def rows_by_bucket(self) -> tuple[np.ndarray, np.ndarray]:
        return self.rows, 100 * self.rows

    def uses_by_bucket(self) -> np.ndarray:
        return self.uses

    def carry(self, map: ShardMap) -> Carried:
        self.now += self.takes
        if self.error is not None:
            raise self.error
        moved = int(self.rows[map.owners != self.map.owners].sum())
        return Carried(moved, 100 * moved)


def course_of(shards: Shards, order: ReshardRequest, monkeypatch: pytest.MonkeyPatch) -> Course:
    """Return a course that is prepared; time is that of the shards."""
    monkeypatch.setattr(moves, "time", SimpleNamespace(perf_counter=lambda: shards.now))
    course = Course(order, shards, 0)  # type: ignore[arg-type]
    course._prepared.exception(20)
    assert course.prepared
    return course


def test_portions_are_as_large_as_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(ShardMap(1), np.full(BUCKETS, 10))
    course = course_of(shards, ReshardRequest("x", join={1: "h:1"}, epoch=7), monkeypatch)
    assert (course.failure, course.idle) == (None, False)
    [(rehearsed, join)] = shards.rehearsed
    assert (rehearsed.members, rehearsed.epoch, join) == ([0, 1], 7, {1: "h:1"})
    assert not rehearsed.owners.any()

    def portion(begun: float, steps: int, takes: float) -> tuple[dict[str, Any], dict[str, Any], int]:
        shards.now, shards.takes = begun, takes
        plan = course.portion(begun, steps)
        map = ShardMap.from_dict(plan["map"])
        said = course.carry(map, begun)
        moved = np.count_nonzero(map.owners != shards.map.owners)
        shards.map = map
        course.paused(begun, steps)
        return plan, said, int(moved)

    plan, said, moved = portion(100.5, 50, 1 / 64)  # a step takes 0.01 s
    assert (plan["join"], plan["map"]["epoch"], moved) == ({1: "h:1"}, 7, 8192 // 10)
    assert said == {"steps": 24}  # 15 times as long as it took, in steps
    plan, said, moved = portion(101.515625, 60, 0.25)  # a step takes 0.1 s
    assert (plan["join"], plan["map"]["epoch"], moved) == ({}, 8, int(8192 * 0.02 * 64) // 10)
    assert said == {"steps": 38}
    _, said, moved = portion(102.765625, 60, 1e9)  # there was no step between
    assert (moved, said) == (int(10485 * 0.02 / 0.25) // 10, {"steps": 15 * 10**9})
    _, _, moved = portion(2e9, 10**9, 0.0005)
    assert moved == 1  # however slow it was
    course._rows = 10**6
    _, said, moved = portion(3e9, 10**9 + 1, 0.25)
    assert (said, moved) == ({}, 2048 - 819 - 1048 - 83 - 1)
    assert course.told() == {
        "carried": 20_480,
        "carried_bytes": 2_048_000,
        "buckets": 2048,
        "pauses": 5,
        "paused": pytest.approx(1e9 + 0.516, abs=1e-3),
        "seconds": pytest.approx(1e9),
    }


def test_an_error_while_rows_are_carried_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(ShardMap(2), np.full(BUCKETS, 10))
    course = course_of(shards, ReshardRequest("x", leave=(1,)), monkeypatch)
    plan = course.portion(100.0, 0)
    assert ShardMap.from_dict(plan["map"]).members == [0, 1]
    shards.error = ExchangeError("lost")
    said = course.carry(ShardMap.from_dict(plan["map"]), 100.0)
    assert said["error"]["what"] == "lost"
    assert course.told() == dict.fromkeys(
        ("carried", "carried_bytes", "buckets", "pauses", "paused", "seconds"), 0
    )
    course._rows = 10**6
    assert ShardMap.from_dict(course.portion(100.0, 0)["map"]).members == [0]  # the last portion


@pytest.mark.parametrize(("factor", "moves_rows"), [(1.0, False), (1.03, False), (1.05, True)])
def test_traffic_that_is_nearly_even_moves_nothing(
    factor: float, moves_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The busier shard would have less by 1.5 % and 2.4 % of a share; rows move for any difference."""
    weights = np.where(np.arange(BUCKETS) < BUCKETS // 2, factor, 1.0)
    course = course_of(
        Shards(ShardMap(2), np.zeros(BUCKETS), weights), ReshardRequest("x", by="traffic"), monkeypatch
    )
    assert course.idle != moves_rows
    rows = (1000 * weights).astype(np.int64)
    course = course_of(Shards(ShardMap(2), rows), ReshardRequest("x", by="rows"), monkeypatch)
    assert course.idle == (factor == 1.0)


def test_why_nothing_can_be_carried(monkeypatch: pytest.MonkeyPatch) -> None:
    shards = Shards(ShardMap(2), np.full(BUCKETS, 10))
    course = course_of(shards, ReshardRequest("x", by="traffic"), monkeypatch)
    assert course.failure is not None
    assert course.failure.what == "the shards cannot be balanced by traffic"
    shards.error = ValueError("our own mistake")
    with pytest.raises(ValueError, match="our own mistake"):
        _ = course_of(shards, ReshardRequest("x"), monkeypatch).failure


class Quiet:
    """Snapshots that are never written."""

    def writing(self) -> bool:
        return False

    def any_worker(self, ready: bool) -> bool:
        return ready


@pytest.mark.parametrize(
    ("size", "apart", "looks"), [(1, False, [*range(1, 40)]), (2, False, [16, 32]), (2, True, [])]
)
def test_several_workers_look_at_the_same_steps(size: int, apart: bool, looks: list[int]) -> None:
    found: list[int] = []

    class Asked(Wishes):
        def order(self) -> ReshardRequest | None:
            found.append(state.run.steps)
            return None

    workers, run = Workers(), SimpleNamespace(steps=0)
    workers.size = size
    state = SimpleNamespace(workers=workers, exchange=None, steps_alone=apart, run=run)
    mover = Mover(state, Asked([], 0), Quiet())  # type: ignore[arg-type]
    nobody = Mover(state, None, Quiet())  # type: ignore[arg-type]
    for run.steps in range(1, 40):
        mover.stepped()
        nobody.stepped()
    assert found == looks
