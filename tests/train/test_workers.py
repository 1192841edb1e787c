"""Several workers and shards give what one process gives: rows, dense weights, metrics, decisions."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.batch import Batch
from satrap.checkpoint import Series
from satrap.dense import Workers
from satrap.exchange.servers import Limits, ShardServer
from satrap.metrics import Metrics
from satrap.store import Eviction, Tier
from satrap.train import Checkpointing, Observer, Progress, Trainer, WorkerContext
from satrap.train.state import across_workers, snapshots
from tests.dense.threads import together
from tests.support.covering import covering
from tests.support.trainers import (
    Answer,
    adam,
    alone,
    assert_same,
    connecting,
    contents,
    dense,
    distributed,
    joined,
    make_trainer,
    sgd,
)
from tests.train.plain import Batches, make_batches, make_schema


@pytest.mark.parametrize(
    ("mode", "staleness", "shards"),
    covering([("sync", 0), ("hybrid", 3)], [1, 3]),
)
def test_any_number_of_shards_gives_what_one_process_gives_to_the_bit(
    mode: str, staleness: int, shards: int
) -> None:
    batches = Batches(make_batches(15))
    arguments = {"mode": mode, "staleness": staleness, "epochs": 2}
    reference = alone(batches, **arguments)
    (first,) = distributed(1, shards, lambda _: batches, **arguments)
    (second,) = distributed(1, shards, lambda _: batches, **arguments)
    assert_same(first, reference)
    assert_same(second, reference)
    assert first.result.staleness == reference.result.staleness


@pytest.mark.cluster
def test_shards_with_a_tier_read_what_batches_to_come_will_look_up(tmp_path: Path) -> None:
    batches = Batches(make_batches(40, size=256))
    for number, batch in enumerate(batches.items):
        for column in batch.ids.values():
            column.values[:] += np.uint64(200 * (number % 20))  # the second half reads what left memory
    bounds: dict[str, Any] = {"memory": 600_000, "eviction": Eviction("lru")}
    with ExitStack() as stack:
        servers = [stack.enter_context(ShardServer("127.0.0.1:0")) for _ in range(2)]
        addresses, tier = [server.address for server in servers], Tier(str(tmp_path), 1 << 18)
        connect = connecting(addresses, **bounds, tier=tier)
        trainer = make_trainer(exchange=connect, mode="hybrid")
        trainer.fit(batches)
        counts, rows = trainer.statistics().tier, contents(trainer)
        trainer.close()
    assert counts.prefetched > 100
    assert counts.prefetch_hits > 0
    reference = alone(batches, mode="hybrid")
    for table, columns in reference.rows.items():
        for x, y in zip(columns, rows[table], strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("world", [2, 3])
def test_sync_workers_take_the_steps_of_one_with_their_batches_joined(world: int) -> None:
    parts = [make_batches(15, size=16, seed=rank) for rank in range(world)]
    reference = alone(Batches([joined(step) for step in zip(*parts, strict=True)]), mode="sync")
    answers = distributed(world, 2, lambda rank: Batches(parts[rank]), mode="sync")
    assert_same(answers[0], reference, 1e-6)
    assert len({answer.digest for answer in answers}) == 1
    assert answers[0].result.samples == reference.result.samples == 15 * 16 * world
    assert answers[0].result.steps == 15


def weighted(batches: list[Batch], seed: int) -> list[Batch]:
    """The same batches with sample weights and unknown labels."""
    rng = np.random.default_rng(seed)
    for batch in batches:
        batch.weights = rng.exponential(1.0, batch.size).astype(np.float32)
        batch.label_mask = rng.random((batch.size, 1)) < 0.7
    return batches


def test_weights_and_unknown_labels_count_as_in_one_batch() -> None:
    parts = [weighted(make_batches(12, size=16, seed=rank), rank) for rank in range(2)]
    reference = alone(Batches([joined(step) for step in zip(*parts, strict=True)]), mode="sync")
    answers = distributed(2, 2, lambda rank: Batches(parts[rank]), mode="sync")
    assert_same(answers[0], reference, 1e-6)


def test_unequal_numbers_and_sizes_of_batches_lose_nothing() -> None:
    """Worker 0 has 12 batches and a short one, worker 1 has 5, worker 2 none at all."""
    parts = [
        [*make_batches(12, size=16, seed=0), *make_batches(1, size=3, seed=7)],
        make_batches(5, size=16, seed=1),
        [],
    ]
    steps = [[part[i] for part in parts if i < len(part)] for i in range(13)]
    reference = alone(Batches([joined(step) for step in steps]), mode="sync", epochs=2)
    answers = distributed(3, 2, lambda rank: Batches(parts[rank]), mode="sync", epochs=2)
    assert_same(answers[0], reference, 1e-6)
    assert len({answer.digest for answer in answers}) == 1
    assert [answer.result.steps for answer in answers] == [26, 26, 26]
    assert answers[0].result.samples == 2 * (17 * 16 + 3)


@pytest.mark.cluster
def test_a_worker_without_a_batch_keeps_no_ordered_lookup_waiting() -> None:
    """Whichever has more; and the rows that are left do not depend on which worker is faster."""
    bounds = {"ordered": True, "memory": 280_000, "eviction": Eviction("lru")}
    for lengths in ((5, 12), (12, 5)):
        parts = [make_batches(n, size=256, seed=rank) for rank, n in enumerate(lengths)]
        for part in parts:
            for number, batch in enumerate(part):
                for column in batch.ids.values():
                    column.values[:] += np.uint64(200 * number)
        first, second = (
            distributed(2, 2, lambda rank, p=parts: Batches(p[rank]), mode="sync", bounds=bounds)
            for _ in range(2)
        )
        assert [answer.result.steps for answer in first] == [12, 12]
        assert sum(len(ids) for ids, _, _ in first[0].rows.values()) < 1000  # of 1,779
        assert_same(first[0], second[0])


def test_hybrid_workers_keep_equal_dense_weights_and_their_own_staleness() -> None:
    parts = [make_batches(12, size=16, seed=rank) for rank in range(2)]
    answers = distributed(2, 2, lambda rank: Batches(parts[rank]), mode="hybrid", staleness=3)
    assert answers[0].digest == answers[1].digest
    for answer in answers:
        assert answer.result.staleness == {0: 1, 1: 1, 2: 1, 3: 9}


@cache
def learnt_from(kind: str) -> list[Answer]:
    """What workers learn from gradients in a number format."""
    data = [Batches(make_batches(30, size=16, seed=rank)) for rank in range(2)]
    return distributed(2, 1, data.__getitem__, mode="sync", dense=kind, dense_optimizer=sgd)


@pytest.mark.cluster
@pytest.mark.parametrize(("kind", "most"), [("bfloat16", 0.01), ("float16", 0.001), ("int8", 0.06)])
def test_dense_weights_learn_nearly_the_same_from_gradients_in_fewer_bits(kind: str, most: float) -> None:
    (short, other), (exact, _) = learnt_from(kind), learnt_from("float32")
    start = make_trainer()
    way = np.linalg.norm(exact.dense - dense(start))
    start.close()
    assert short.digest == other.digest
    assert 0 < np.linalg.norm(short.dense - exact.dense) < most * way
    roundings = [answer["rounding_dense"] for answer in short.result.traffic["workers"]]
    assert all(0 < rounding < most for rounding in roundings)
    assert exact.result.traffic["rounding_dense"] == 0


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_a_batch_that_is_not_finite_is_refused_by_all(kind: str) -> None:
    parts = [make_batches(12, size=16, seed=rank) for rank in range(2)]
    assert parts[1][5].numeric is not None
    parts[1][5].numeric[3] = np.inf
    answers = distributed(2, 2, lambda rank: Batches(parts[rank]), mode="sync", dense=kind)
    assert [answer.result.refused for answer in answers] == [1, 1]
    assert answers[0].digest == answers[1].digest
    kept = [[b for i, b in enumerate(part) if i != 5] for part in parts]
    reference = alone(Batches([joined(step) for step in zip(*kept, strict=True)]), mode="sync")
    atol = {"float32": 1e-6, "int8": 0.1}[kind]
    np.testing.assert_allclose(answers[0].dense, reference.dense, atol=atol, rtol=0)


@pytest.mark.cluster
def test_metrics_and_decisions_are_those_of_one_process() -> None:
    """Plateau, patience and the return to the best weights, with validation rows spread over the workers."""
    parts = [make_batches(10, size=16, seed=rank) for rank in range(2)]
    held = [make_batches(8, size=16, seed=50 + rank) for rank in range(2)]
    arguments: dict[str, Any] = {"mode": "sync", "patience": 2, "plateau": 0.1, "epochs": 12}
    arguments["embedding_optimizer"] = satrap.optim.Adagrad(lr=0.5)  # labels are noise: it must overfit
    reference = alone(
        Batches([joined(step) for step in zip(*parts, strict=True)]),
        Batches([*held[0], *held[1]]),
        **arguments,
    )
    answers = distributed(2, 2, lambda r: Batches(parts[r]), lambda r: Batches(held[r]), **arguments)
    assert reference.result.stopped == "patience"
    assert_same(answers[0], reference, 1e-5)
    assert answers[0].digest == answers[1].digest
    for answer in answers:
        assert (answer.result.stopped, answer.lr_scale) == ("patience", reference.lr_scale)
        assert answer.result.history == answers[0].result.history
        for mine, theirs in zip(answer.result.history, reference.result.history, strict=True):
            assert mine["samples"] == theirs["samples"] == 2 * 8 * 16
            assert mine["auc"] == pytest.approx(
                theirs["auc"], abs=2e-4
            )  # one pair of 16,000 may change order
            assert mine["logloss"] == pytest.approx(theirs["logloss"], abs=1e-6)


class StopAt(Observer):
    """Asks one worker to stop."""

    def __init__(self, trainers: list[Trainer], step: int) -> None:
        self.trainers, self.at = trainers, step

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            self.trainers[0].request_stop()


class Slow(Batches):
    """A data set that takes its time before each batch."""

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        for batch in self.items:
            time.sleep(0.5)
            yield batch


@pytest.mark.cluster
def test_a_worker_may_evaluate_for_longer_than_every_deadline() -> None:
    """Rank 1 has nothing to evaluate: it waits at the end, where only a sign of life has a deadline."""
    parts = [make_batches(6, size=16, seed=rank) for rank in range(2)]
    held = [Slow(make_batches(5, size=16, seed=50)), Batches([])]
    answers = distributed(
        2,
        2,
        lambda rank: Batches(parts[rank]),
        lambda rank: held[rank],
        mode="sync",
        epochs=2,
        limits=Limits(wait=0.7),
        deadline=1.5,
    )
    assert [len(answer.result.history) for answer in answers] == [2, 2]
    assert answers[0].digest == answers[1].digest


def test_a_stop_of_one_stops_all_after_the_same_step() -> None:
    def work(workers: Workers) -> int:
        for rank in range(2):
            if workers.rank == rank:
                trainer = make_trainer(workers=workers, mode="sync")
            workers.meet("built")
        observers = [StopAt([trainer], 4)] if workers.rank == 1 else []
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(Batches(make_batches(20, seed=workers.rank)), observers=observers)
        steps = trainer.run.steps
        trainer.close()
        return steps

    assert together(2, work) == [5, 5]


class Late(Batches):
    """A data set whose batches come late from the sixth on."""

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        for number, batch in enumerate(self.items):
            time.sleep(0.5 * (number > 5))
            yield batch


@pytest.mark.cluster
def test_workers_that_stop_end_what_they_read_ahead_together(tmp_path: Path) -> None:
    """One has read and counted all that it may; the other counts later: no other count may come between."""
    before = threading.enumerate()  # an earlier test's thread may be at its end

    def work(workers: Workers) -> tuple[int, int]:
        for rank in range(2):
            if workers.rank == rank:
                trainer = make_trainer(workers=workers)
            workers.meet("built")
        data = (Batches, Late)[workers.rank](make_batches(20, seed=workers.rank))
        observers = [StopAt([trainer], 4)] if workers.rank else []
        stopped = trainer.fit(data, observers=observers, checkpoint=Checkpointing(str(tmp_path)))
        assert stopped.stopped == "stopped"
        new = [thread for thread in threading.enumerate() if thread not in before]
        assert "satrap-prefetch" not in [thread.name for thread in new]
        again = trainer.fit(Batches(make_batches(20, seed=workers.rank)))
        trainer.close()
        return stopped.steps, again.steps

    assert together(2, work) == [(5, 20), (5, 20)]


class Counted(Batches):
    """A data set that knows its length."""

    def num_rows(self) -> int:
        return 16 * len(self.items)


class Idle(Observer):
    """Hears of an evaluation."""

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        pass


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("slow", "stop"),
    [
        ((Series, "write"), False),
        ((Series, "write"), True),
        *(
            pytest.param(slow, False, marks=pytest.mark.cluster)
            for slow in (
                (Series, "prune"),
                (Series, "open"),
                (across_workers, "loaded"),
                (Metrics, "compute"),
                (Counted, "num_rows"),
                (Idle, "evaluated"),
            )
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else str(value),
)
def test_what_one_worker_does_alone_may_take_longer_than_every_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: tuple[Any, str], stop: bool
) -> None:
    quickly, slowed = getattr(*slow), list[float]()
    if slow[1] == "loaded":
        monkeypatch.setattr(snapshots, "opened_network", lambda *_, **__: None)  # as if no folder were common

    def slowly(*arguments: Any, **more: Any) -> Any:
        if threading.current_thread().name != "rank 1" and not slowed:
            slowed.append(time.monotonic())
            time.sleep(4)
        return quickly(*arguments, **more)

    def work(workers: Workers) -> str:
        for rank in range(2):
            if workers.rank == rank:
                trainer = make_trainer(workers=workers)
            workers.meet("built")
        data = Counted(make_batches(8, seed=workers.rank))
        trainer.fit(data, validation=data)  # compiles
        workers.solo("slow from now on", lambda: monkeypatch.setattr(*slow, slowly))
        workers.board.patience = 2.0  # type: ignore[attr-defined]
        plan = Checkpointing(str(tmp_path), every_steps=8)
        observers = [Idle(), *([StopAt([trainer], 4)] if stop and workers.rank else [])]
        result = trainer.fit(data, validation=data, epochs=2, observers=observers, checkpoint=plan)
        if not stop:
            trainer.fit(data, epochs=3, checkpoint=plan, resume=True)
        trainer.close()
        return result.stopped

    assert together(2, work) == 2 * ["stopped" if stop else "epochs"]
    assert slowed
    assert Series(str(tmp_path)).steps() == [5] if stop else [16, 24]


def test_a_run_over_shards_is_saved_and_loaded(tmp_path: Any) -> None:
    schema, batches = make_schema(), Batches(make_batches(20))
    with ShardServer("127.0.0.1:0") as one, ShardServer("127.0.0.1:0") as two:
        connect = connecting([one.address, two.address])
        torch.manual_seed(3)
        model = satrap.models.DCNv2(schema, hidden=[16])
        trainer = Trainer(
            model,
            schema,
            embedding_optimizer=satrap.optim.Adam(lr=0.1),
            dense_optimizer=adam,
            place=WorkerContext(connect),
        )
        trainer.fit(batches)
        trainer.save(str(tmp_path / "model"))
        expected, rows = trainer.predict(batches), contents(trainer)
        trainer.exchange.rows.clear()
        trainer.close()
        local = Trainer.load(str(tmp_path / "model"))
        np.testing.assert_array_equal(local.predict(batches), expected)
        again = Trainer.load(str(tmp_path / "model"), place=WorkerContext(connect))
        for table, columns in contents(again).items():
            for x, y in zip(columns, rows[table], strict=True):
                np.testing.assert_array_equal(x, y)
        local.close()
        again.close()


def test_what_went_between_worker_and_shards_is_reported() -> None:
    batches = make_batches(20, size=16)
    (answer,) = distributed(1, 2, lambda _: Batches(batches))
    traffic = answer.result.traffic
    assert sum(traffic["shard_rows"]) == sum(len(columns[0]) for columns in answer.rows.values())
    assert len(traffic["shard_rows"]) == 2
    ids = sum(len(np.unique(j.values)) for b in batches for j in b.ids.values())
    # Down: 8 float32 a distinct id. Up: its gradient and, packed, its id twice. A little per message.
    assert 1.0 < traffic["received_bytes_per_sample"] / (ids * 32 / 320) < 1.5
    assert 1.0 < traffic["sent_bytes_per_sample"] / (ids * 32 / 320) < 2.0
    assert 0 < traffic["distinct_ratio"] < 1
    assert traffic["lookup_wait_seconds"] > 0
