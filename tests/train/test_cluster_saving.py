"""Snapshots of several workers and shard servers: going on from one gives the bytes of an undisturbed run."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import satrap
from satrap.batch import Batch
from satrap.checkpoint import Background, Series, read_checkpoint, verify
from satrap.checkpoint.rewrite import forget
from satrap.dense import Workers
from satrap.errors import CheckpointError, ConfigError
from satrap.exchange.servers import ServersExchange, ShardServer, Wire
from satrap.exchange.servers.client.rows import ServerRows
from satrap.train import Checkpointing, Observer, Progress, Result, Trainer
from tests import faults
from tests.dense.threads import together
from tests.support.covering import covering
from tests.support.trainers import connecting, contents, dense
from tests.support.watched import ROWS, Watched, data
from tests.train.plain import Batches, grouped, make_batches, make_schema

pytestmark = pytest.mark.cluster

EXACT = Wire("float32", "float32")


@pytest.fixture(autouse=True)
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots are complete before the next step, so that the steps they are of do not depend on time."""
    if "while_writing" not in request.node.name:
        monkeypatch.setattr(Background, "start", lambda self, job: self._run(job))


class KilledError(Exception):
    """Stands for SIGKILL."""


class At(Observer):
    """Does something when a step has been counted."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self.at, self.action = step, action

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            self.action()


def die() -> None:
    raise KilledError


class Left:
    """What a worker ended with."""

    def __init__(self, trainer: Trainer, result: Result, rows: Any) -> None:
        self.result, self.rows, self.dense = result, rows, dense(trainer)
        optimizer = trainer.dense.optimizer  # type: ignore[attr-defined]
        state = {} if optimizer is None else optimizer.state_dict()["state"]
        self.optimizer = {
            (i, key): torch.as_tensor(value).numpy().tobytes()
            for i, e in state.items()
            for key, value in e.items()
        }
        self.counts = (result.steps, result.samples, dict(result.staleness), result.stopped)


class Cluster:
    """Workers as threads, shards as servers in this process (or one store when `shards` is 0)."""

    def __init__(self, world: int, shards: int, **arguments: Any) -> None:
        self.world, self.shards, self.arguments = world, shards, {"mode": "sync", **arguments}
        self.models: list[Watched] = []
        self.one_user = False

    def fit(
        self,
        plan: Checkpointing | None = None,
        *,
        kill: int | None = None,
        stop: int | None = None,
        epochs: int = 2,
        resume: bool = False,
        watch: Observer | None = None,
        validation: Callable[[Trainer], Batches] | None = None,
    ) -> list[Left]:
        with ExitStack() as stack:
            servers = [stack.enter_context(ShardServer("127.0.0.1:0")) for _ in range(self.shards)]
            addresses = [server.address for server in servers]
            observers = [*([] if kill is None else [At(kill, die)]), *([watch] if watch else [])]
            fit = {"checkpoint": plan, "observers": observers, "epochs": epochs, "resume": resume}
            return together(self.world, lambda workers: self._work(workers, addresses, stop, validation, fit))

    def _work(
        self,
        workers: Workers,
        addresses: list[str],
        stop: int | None,
        validation: Callable[[Trainer], Batches] | None,
        fit: dict[str, Any],
    ) -> Left:
        for rank in range(self.world):
            if workers.rank == rank:
                trainer = self._trainer(workers, addresses)
            workers.meet("built")
        if self.arguments["mode"] == "async" and workers.rank > 0:
            fit = {**fit, "observers": []}  # each counts its own steps: rank 0, which calls for cuts, dies
        if stop is not None and workers.rank == self.world - 1:
            fit = {**fit, "observers": [At(stop, trainer.request_stop)]}
        if validation is not None:
            fit = {**fit, "validation": validation(trainer)}
        try:
            result = trainer.fit(data(workers.rank, self.world, self.one_user), **fit)
            workers.meet("trained")
        except BaseException:
            if isinstance(trainer.exchange, ServersExchange):
                trainer.exchange._shards._loop.stop()  # as a dead process: without a word
            else:
                trainer.close()
            raise
        rows = contents(trainer) if workers.rank == 0 else {}
        workers.meet("read")
        left = Left(trainer, result, rows)
        trainer.close()
        return left

    def _trainer(self, workers: Workers, addresses: list[str]) -> Trainer:
        torch.manual_seed(3)
        mode = self.arguments["mode"]
        connect = connecting(addresses, mode=mode, rank=workers.rank, world=self.world, deadline=60)
        defaults: dict[str, Any] = {
            "embedding_optimizer": satrap.optim.Adam(lr=0.05),
            "dense_optimizer": lambda p: torch.optim.Adam(p, lr=1e-2),
            "initial_scale": 0.5,
            "threads": 1,
        }
        model = Watched()
        self.models.append(model)
        arguments = {**defaults, **self.arguments, **({"exchange": connect} if addresses else {})}
        return Trainer(model, make_schema(), **grouped(workers=workers, **arguments))


def killed(cluster: Cluster, place: Path, every: int, kill: int) -> Checkpointing:
    plan = Checkpointing(str(place), every_steps=every)
    with pytest.raises(KilledError):
        cluster.fit(plan, kill=kill)
    return plan


def assert_same(one: list[Left], other: list[Left]) -> None:
    for a, b in zip(one, other, strict=False):
        assert a.counts == b.counts
        np.testing.assert_array_equal(a.dense, b.dense)
        assert a.optimizer == b.optimizer
    assert one[0].rows.keys() == other[0].rows.keys()
    for table, arrays in one[0].rows.items():
        for x, y in zip(arrays, other[0].rows[table], strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.fixture(scope="module")
def undisturbed() -> list[Left]:
    return Cluster(2, 2).fit()


@pytest.mark.parametrize(
    ("every", "kill", "shards"), covering([(5, 8), (13, 14), (12, 13), (14, 20)], [1, 2, 3])
)
def test_sync_resumed_equals_undisturbed_with_any_number_of_shards(
    undisturbed: list[Left], every: int, kill: int, shards: int, tmp_path: Path
) -> None:
    """Within a pass, at its last step (13), before and after it."""
    assert undisturbed[0].counts[:2] == (26, 2 * ROWS)
    plan = killed(Cluster(2, 2), tmp_path, every, kill)
    verify(Series(plan.url).place((kill - 1) // every * every))
    assert_same(undisturbed, Cluster(2, shards).fit(plan, resume=True))


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (3, 1), (0, 2), (2, 0)])
def test_resumed_from_deltas_of_shards_equals_undisturbed(before: int, after: int, tmp_path: Path) -> None:
    """Full at 4, where there is nothing to follow, at 10 and, after the resume, at 20."""
    world = 2 if before and after else 1
    expected = Cluster(world, min(before, 1)).fit()
    plan = Checkpointing(str(tmp_path), 10, 9, delta_every_steps=4)
    with pytest.raises(KilledError):
        Cluster(world, before).fit(plan, kill=18)
    series = Series(plan.url)

    def numbers() -> dict[int, int]:
        return {s: link.number if (link := series.manifest(s).delta) else 0 for s in series.steps() if s < 26}

    assert numbers() == {4: 0, 8: 1, 10: 0, 12: 1, 16: 2}
    for step in series.steps():
        series.verify(step)
    assert_same(expected, Cluster(world, after).fit(plan, resume=True))
    assert numbers() == {4: 0, 8: 1, 10: 0, 12: 1, 16: 2, 20: 0, 24: 1}


def test_deltas_go_on_after_a_resume(tmp_path: Path) -> None:
    expected = Cluster(2, 2).fit()
    series, every = Series(str(tmp_path)), 3
    plan = Checkpointing(series.url, None, 9, delta_every_steps=every)
    for number, (shards, kill) in enumerate([(2, 8), (2, 14), (3, 17)]):
        with pytest.raises(KilledError):
            Cluster(2, shards).fit(plan, kill=kill, resume=number > 0)
    assert_same(expected, Cluster(2, 2).fit(plan, resume=True))
    links = [series.manifest(step).delta for step in series.steps()]
    assert [link.number if link else 0 for link in links] == list(range(26 // every))


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (1, 3)])
def test_hybrid_of_one_worker_goes_on_in_one_process_or_with_shards(
    before: int, after: int, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"mode": "hybrid", "staleness": 3}
    expected = Cluster(1, 0, **settings).fit()
    plan = killed(Cluster(1, before, **settings), tmp_path, 10, 17)
    assert_same(expected, Cluster(1, after, **settings).fit(plan, resume=True))


@pytest.mark.parametrize(
    ("before", "after", "mode"), covering([(2, 1), (1, 2), (2, 3), (3, 2), (2, 5)], ["sync", "hybrid"])
)
def test_with_other_workers_each_sample_is_trained_once_in_a_pass(
    before: int, after: int, mode: str, tmp_path: Path
) -> None:
    every = 5
    first, second = Cluster(before, 2, mode=mode), Cluster(after, 2, mode=mode)
    plan = killed(first, tmp_path, every, every + 1)
    left = second.fit(plan, resume=True)
    assert left[0].result.samples == 2 * ROWS
    seen = Counter(i for m in first.models for batch in m.seen[:every] for i in batch)
    seen += Counter(i for m in second.models for batch in m.seen for i in batch)
    assert seen == Counter({i: 2 for i in range(ROWS)})


def test_workers_may_change_again_in_the_same_pass(tmp_path: Path) -> None:
    plan = Checkpointing(str(tmp_path), every_steps=1, keep=1)
    seen: Counter[int] = Counter()
    for number, (world, steps) in enumerate([(3, 2), (2, 3), (4, 1), (1, 3), (5, None)]):
        cluster = Cluster(world, 1)
        before = Series(plan.url).latest() or 0
        if steps is None:
            assert cluster.fit(plan, resume=True, epochs=1)[0].result.samples == ROWS
        else:
            with pytest.raises(KilledError):
                cluster.fit(plan, resume=number > 0, epochs=1, kill=before + steps + 1)
            assert Series(plan.url).latest() == before + steps
        for model in cluster.models:
            seen += Counter(
                i for batch in (model.seen if steps is None else model.seen[:steps]) for i in batch
            )
    assert seen == Counter(range(ROWS))


def test_a_stop_of_one_worker_stops_and_saves_all(undisturbed: list[Left], tmp_path: Path) -> None:
    plan = Checkpointing(str(tmp_path))
    stopped = Cluster(2, 2).fit(plan, stop=7)
    assert [left.result.stopped for left in stopped] == ["stopped", "stopped"]
    assert Series(plan.url).steps() == [stopped[0].result.steps]
    assert_same(undisturbed, Cluster(2, 2).fit(plan, resume=True))


class Validation(Batches):
    """Data for evaluations: in the first one, after a few batches, a worker is asked to stop."""

    def __init__(self, trainer: Trainer, asked: int | None) -> None:
        super().__init__(make_batches(40, 16, seed=50 + trainer.workers.rank))
        self.trainer, self.asked, self.read = trainer, asked, 0

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        for batch in self.items:
            if self.trainer.workers.rank == self.asked and self.read == 3:
                self.trainer.request_stop()
            self.read += 1
            yield batch


@pytest.mark.parametrize("asked", [0, 1])
def test_a_stop_of_one_worker_ends_the_evaluation_of_all(asked: int, tmp_path: Path) -> None:
    expected = Cluster(2, 2).fit(validation=lambda trainer: Validation(trainer, None))
    plan, made = Checkpointing(str(tmp_path)), []

    def validation(trainer: Trainer) -> Validation:
        made.append(Validation(trainer, asked))
        return made[-1]

    stopped = Cluster(2, 2).fit(plan, validation=validation)
    assert [left.result.stopped for left in stopped] == ["stopped", "stopped"]
    assert Series(plan.url).steps() == [13]  # of the first pass of two
    assert {one.trainer.workers.rank: one.read for one in made}[asked] == 4
    assert [left.result.history for left in stopped] == [(), ()]
    left = Cluster(2, 2).fit(plan, resume=True, validation=lambda trainer: Validation(trainer, None))
    assert_same(expected, left)
    assert [one.result.history for one in left] == [one.result.history for one in expected]


@pytest.mark.parametrize("stop", [None, 9])
def test_async_workers_meet_for_a_cut_only(stop: int | None, tmp_path: Path) -> None:
    plan = Checkpointing(str(tmp_path), every_steps=6)
    cluster = Cluster(2, 2, mode="async", staleness=2)
    left = cluster.fit(plan, stop=stop)
    if stop is not None:
        assert {one.result.stopped for one in left} == {"stopped"}
        left = Cluster(2, 2, mode="async", staleness=2).fit(plan, resume=True)
    assert left[0].result.samples == 2 * ROWS
    assert left[0].result.traffic["snapshots"] >= 2


@pytest.mark.parametrize(
    ("before", "after", "shards"),
    [
        (2, 3, 1),
        pytest.param(2, 1, 1, marks=pytest.mark.slow),
        (2, 1, 0),
        pytest.param(1, 2, 1, marks=pytest.mark.slow),
    ],
)
def test_async_goes_on_after_a_kill(tmp_path: Path, before: int, after: int, shards: int) -> None:
    """All samples of the run are counted, also those of workers that are gone."""
    plan = killed(Cluster(before, 2, mode="async", staleness=2), tmp_path, 5, 8)
    step, saved = Series(plan.url).read()
    assert step == 5
    assert "satrap.dense" in {table for table, _ in saved.chunks}
    left = Cluster(after, shards, mode="async", staleness=2).fit(plan, resume=True)
    assert left[0].result.samples == 2 * ROWS


def test_training_goes_on_while_writing(tmp_path: Path) -> None:
    """A shard is held up in the middle of its file until ten more steps are done."""
    gone_on = threading.Event()
    plan = Checkpointing(str(tmp_path / "slow"), every_steps=8, keep=9)
    cluster = Cluster(2, 2)
    with faults.armed("shard.chunk", lambda _: None if gone_on.wait(20) else die()):
        left = cluster.fit(plan, watch=At(18, gone_on.set))
    assert left[0].result.steps == 26
    assert gone_on.is_set()
    assert 0 < left[0].result.traffic["snapshot_pause_ms"] < 2000
    quick = Checkpointing(str(tmp_path / "quick"), every_steps=8, keep=9)
    killed_at = Cluster(2, 2)
    with pytest.raises(KilledError):
        killed_at.fit(quick, kill=9)
    (_, first), (_, second) = Series(plan.url).read(8), Series(quick.url).read(8)
    for (_, a), (_, b) in zip(first.chunks, second.chunks, strict=True):
        np.testing.assert_array_equal(a.ids, b.ids)
        np.testing.assert_array_equal(a.weights, b.weights)
        np.testing.assert_array_equal(a.state, b.state)


def test_data_that_cannot_be_shared_out_anew_is_refused(tmp_path: Path) -> None:
    plan = killed(Cluster(2, 1), tmp_path, 5, 6)

    class Fixed:
        def batches(self, epoch: int = 0, position: Any = None) -> Any:
            return data(0, 1).batches(epoch, position)

    trainer = Cluster(1, 0)._trainer(Workers(), [])
    with pytest.raises(ConfigError, match="for 2 workers, with which the epoch began"):
        trainer.fit(Fixed(), epochs=2, checkpoint=plan, resume=True)
    trainer.close()


def test_a_forgotten_row_is_gone_from_every_shard_and_worker(tmp_path: Path) -> None:
    plan = killed(Cluster(2, 2, mode="hybrid", staleness=3), tmp_path, 5, 6)
    place = Series(plan.url).place(5)
    found = read_checkpoint(place)
    ids = found.others[0]["ahead.0.0.ids"].numpy()
    wanted = next(int(i) for t, c in found.chunks if t == "user" for i in c.ids if i in ids)
    assert forget(place, "user", wanted) == 1
    left = read_checkpoint(place)
    rows = left.others[0]["ahead.0.0.rows"].numpy()[ids == wanted]
    assert len(rows) > 0
    assert not rows.any()
    assert not any((chunk.ids == wanted).any() for table, chunk in left.chunks if table == "user")
    assert Cluster(2, 3, mode="hybrid", staleness=3).fit(plan, resume=True)[0].result.samples == 2 * ROWS


@pytest.mark.parametrize(("mode", "late"), covering(["hybrid", "async"], ["push of rank 1", "cut of rank 0"]))
def test_a_cut_has_all_updates_of_its_steps_and_no_later_one(
    mode: str, late: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All batches use one row, whose optimizer counts the updates."""
    cut, update = ServerRows.cut, ServersExchange.apply

    def late_cut(self: ServerRows, **named: Any) -> Any:
        time.sleep(0.1 if "cut" in late else 0)
        return cut(self, **named)

    def late_update(self: ServersExchange, *arguments: Any, **named: Any) -> None:
        if "push" in late and threading.current_thread().name == "rank 1":
            self._shards.post(lambda: time.sleep(0.03))  # the network is slow: the push is on its way
        update(self, *arguments, **named)

    monkeypatch.setattr(ServerRows, "cut", late_cut)
    monkeypatch.setattr(ServersExchange, "apply", late_update)
    cluster = Cluster(2, 2, mode=mode, staleness=2)
    cluster.one_user = True
    plan = Checkpointing(str(tmp_path), every_steps=5, keep=9)
    cluster.fit(plan, epochs=1)
    series = Series(plan.url)
    assert series.steps() == [5, 10]
    for step in series.steps():
        checkpoint = series.read(step)[1]
        settings = checkpoint.settings
        done = sum(run["updates"] for run in [settings["run"], *settings["peers"]])
        counts = [chunk.state[:, -1] for table, chunk in checkpoint.chunks if table == "user"]
        np.testing.assert_array_equal(np.concatenate(counts), [done])
        assert mode == "async" or done == 2 * step


def test_a_damaged_snapshot_is_repaired_to_the_one_before(tmp_path: Path) -> None:
    plan = killed(Cluster(2, 2), tmp_path, 5, 11)
    series = Series(plan.url)
    assert series.steps() == [5, 10]
    file = next(Path(series.place(10)).glob("data-*/table-*.shard-0001.arrow"))
    file.write_bytes(file.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match="damaged"):
        Cluster(2, 2).fit(plan, resume=True)
    assert series.repair()[0] == 5
    assert_same(Cluster(2, 2).fit(), Cluster(2, 2).fit(plan, resume=True))


def test_a_place_named_by_a_url(undisturbed: list[Left], tmp_path: Path) -> None:
    plan = Checkpointing(f"file://{tmp_path}/run", every_steps=5)
    with pytest.raises(KilledError):
        Cluster(2, 2).fit(plan, kill=8)
    assert_same(undisturbed, Cluster(2, 3).fit(plan, resume=True))
