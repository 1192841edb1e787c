"""Each version of a feed is what training had at its step, however it was published."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import satrap
from satrap.checkpoint import Series
from satrap.checkpoint.feed import Feed
from satrap.dense import DENSE_TABLE
from satrap.errors import CheckpointError, ConfigError, StoreError
from satrap.train import Checkpointing, Predictor, Publishing, Trainer
from satrap.train.publisher import Publisher
from tests import faults
from tests.support.exact_runs import Dropped, make_trainer, train_data
from tests.support.interruptions import KillAt, KilledError, StopAt
from tests.support.trainers import contents
from tests.train.plain import Tower
from tests.train.ranks import parts, ranks, rows_of, workers

pytestmark = pytest.mark.usefixtures("at_once")

Rows = dict[str, dict[int, Any]]
Had = dict[int, tuple[Rows, dict[str, Any]]]
"""Step -> what training had: rows by table and id, weights of the network by name."""


def feeding(plan: Publishing) -> Checkpointing:
    return Checkpointing(f"{plan.url}-snapshots", publish=plan)


EVERY = 1e-4
"""Seconds: a version at each step."""


@pytest.fixture
def had(monkeypatch: pytest.MonkeyPatch) -> Had:
    """What training had at the step of each version, read in another way than it was published."""
    found: dict[int, list[Any]] = {}
    publish = Publisher.publish

    def watched(self: Publisher) -> None:
        state = self._state
        state.exchange.flush()
        state.workers.meet("all is there")
        if state.steps_alone:
            state.dense.settle(state.exchange)
        mine = state.exchange.collective or state.workers.rank == 0
        rows = contents(state) if mine else {}
        weights = {name: tensor.numpy().copy() for name, tensor in state.model.state_dict().items()}
        found.setdefault(state.run.steps, []).append((state.workers.rank, rows, weights))
        publish(self)

    monkeypatch.setattr(Publisher, "publish", watched)
    return _Had(found)


class _Had(dict[int, Any]):
    def __init__(self, found: dict[int, list[Any]]) -> None:
        self._found = found

    def __missing__(self, step: int) -> tuple[Rows, dict[str, Any]]:
        parts = sorted(self._found[step], key=lambda part: part[0])
        return by_id(rows_of([rows for _, rows, _ in parts])), parts[0][2]


def by_id(rows: Any) -> Rows:
    """Weights by table and id; `rows`: (ids, weights, state) of each table."""
    return {
        table: dict(zip(columns[0].tolist(), columns[1], strict=True))
        for table, columns in rows.items()
        if table != DENSE_TABLE and len(columns[0])
    }


def read(place: str, model: Any = None) -> tuple[Rows, dict[str, Any], int]:
    predictor = Predictor.load(place, model or Dropped())
    rows: dict[str, Any] = {}
    for table, chunk in predictor.exchange.rows.cut(still=True):
        found = rows.setdefault(table, ([], [], []))
        found[0].append(chunk.ids)
        found[1].append(chunk.weights)
    weights = {name: tensor.numpy().copy() for name, tensor in predictor.model.state_dict().items()}
    step = predictor.step
    predictor.close()
    return (
        by_id({t: [np.concatenate(c) if c else c for c in columns] for t, columns in rows.items()}),
        weights,
        step,
    )


def assert_versions(feed: Feed, had: Had, *, model: Any = None, tolerance: float = 0.0) -> list[int]:
    """Compare all versions with what training had; return their steps."""
    for step in feed.steps():
        rows, weights, said = read(feed.place(step), model and model())
        expected_rows, expected_weights = had[step]
        assert said == step
        assert {t: r.keys() for t, r in rows.items()} == {t: r.keys() for t, r in expected_rows.items()}
        for table, own in rows.items():
            for id_, row in own.items():
                np.testing.assert_allclose(
                    row, expected_rows[table][id_], rtol=tolerance, atol=tolerance / 16
                )
        for name, tensor in expected_weights.items():
            assert np.array_equal(weights[name], tensor), name
    return feed.steps()


LRU = satrap.store.Eviction("lru")
STORES: dict[str, dict[str, Any]] = {
    "hybrid": {},
    "sync": {"mode": "sync", "staleness": 0},
    "evicting": {"memory": 107_500, "eviction": LRU},
    "admission": {"admission": satrap.store.Admission(min_count=2, probability=0.8, memory=256)},
    "16 bits": {"embedding_dtype": "bfloat16"},
}


@pytest.mark.parametrize("store", STORES)
def test_each_version_is_what_training_had(store: str, tmp_path: Path, had: Had) -> None:
    trainer = make_trainer(**STORES[store])
    plan = Publishing(str(tmp_path), every=EVERY, full_every=7, keep=3)
    trainer.fit(train_data(), epochs=2, checkpoint=feeding(plan))
    evicted = sum(table.evicted for table in trainer.statistics().tables.values())
    trainer.close()
    feed = Feed(str(tmp_path))
    steps = assert_versions(feed, had)
    links = [feed.manifest(step).delta for step in steps]
    assert steps == list(range(1, 31))
    full = [step for step, link in zip(steps, links, strict=True) if link is None]
    assert full == [1, 8, 15], "8 was made full at step 18, and 15 at 25"
    assert (evicted > 0) == (store == "evicting")
    if store == "hybrid":
        assert all(len(feed.manifest(s).rows()) == 2 for s in steps)


def test_a_feed_has_no_optimizer_state_and_may_have_half_the_bits(tmp_path: Path, had: Had) -> None:
    sizes = {}
    for dtype in ("float32", "float16"):
        trainer = make_trainer()
        plan = Publishing(str(tmp_path / dtype), every=EVERY, dtype=dtype)
        trainer.fit(train_data(), checkpoint=feeding(plan))
        trainer.close()
        feed = Feed(plan.url)
        assert_versions(feed, had, tolerance=0.0 if dtype == "float32" else 2**-11)
        files = feed.manifest(1).files
        sizes[dtype] = sum(entry.bytes for entry in files.values() if entry.table)
        assert files["optimizer.safetensors"].bytes < 100
    rows = sum(Feed(str(tmp_path / "float16")).manifest(1).rows().values())
    assert sizes["float32"] - sizes["float16"] == pytest.approx(rows * 8 * 2, abs=256)


def test_a_version_can_be_loaded_into_a_store_with_a_tier(tmp_path: Path) -> None:
    """Rows there have room for the state of an optimizer, and a version has none."""
    trainer = make_trainer()
    trainer.fit(train_data(), checkpoint=feeding(Publishing(str(tmp_path / "feed"))), steps=3)
    expected = trainer.predict(train_data())
    trainer.close()
    tier = satrap.store.Tier(str(tmp_path), size=1 << 20)
    store = satrap.store.StoreConfig(memory=4_000_000, eviction=LRU, tier=tier)
    predictor = Predictor.load(str(tmp_path / "feed"), Dropped(), store=store)
    assert np.array_equal(predictor.predict(train_data()), expected)
    predictor.close()


def test_weights_beyond_the_range_of_float16_are_its_largest() -> None:
    weights = np.array([[1e6, -1e6, 1.0]], np.float32)
    chunk = satrap.store.RowChunk("t", np.array([1], np.uint64), weights, np.zeros((1, 3), np.float32))
    narrow = chunk.only_weights("float16")
    assert narrow.weights.tolist() == [[65504.0, -65504.0, 1.0]]
    assert narrow.state.shape == (1, 0)
    with pytest.raises(StoreError, match="'int8'"):
        chunk.only_weights("int8")


def test_a_version_that_cannot_be_written_is_made_up_for_by_the_next(tmp_path: Path, had: Had) -> None:
    told: list[str] = []
    trainer = make_trainer(memory=107_500, eviction=LRU)
    plan = Publishing(str(tmp_path), every=EVERY, notice=told.append)
    failing = faults.armed("checkpoint.data_written", faults.fail(lambda: OSError(28, "no space")), at=4)
    with failing:
        trainer.fit(train_data(), checkpoint=feeding(plan))
    trainer.close()
    assert [("the run continues" in text and "no space" in text) for text in told] == [True]
    assert assert_versions(Feed(str(tmp_path)), had) == [1, 2, 3, *range(5, 16)]


def killed(plan: Checkpointing, **arguments: Any) -> None:
    """Train with a snapshot of step 7, and be killed at step 10."""
    trainer = make_trainer(**arguments)
    with pytest.raises(KilledError):
        trainer.fit(train_data(), checkpoint=plan, observers=[KillAt(10)])
    trainer.close()


def resumed(plan: Checkpointing, **arguments: Any) -> None:
    """Go on from the snapshot, and stop at step 12."""
    trainer = make_trainer(**arguments)
    trainer.fit(train_data(), checkpoint=plan, resume=True, observers=[StopAt(trainer, 12)])
    trainer.close()


def saving(folder: Path, **plan: Any) -> Checkpointing:
    feed = Publishing(str(folder / "feed"), **{"every": EVERY, **plan})
    return Checkpointing(str(folder / "snapshots"), every_steps=7, publish=feed)


@pytest.mark.parametrize("store", STORES)
def test_a_resumed_run_goes_on_with_its_feed(store: str, tmp_path: Path, had: Had) -> None:
    """Killed at 10 with a snapshot of 7: versions 8 and 9 are of a past that did not happen."""
    plan = saving(tmp_path, full_every=1, keep=100)
    killed(plan, **STORES[store])
    feed = Feed(str(tmp_path / "feed"))
    assert feed.steps() == list(range(1, 10))
    resumed(plan, **STORES[store])
    assert assert_versions(feed, had) == list(range(1, 14))
    full = [step for step in feed.steps() if feed.manifest(step).delta is None]
    assert full == [1, 2, 3], "made at 12 and 13: the deltas before the resume count, too"


def test_a_feed_whose_versions_are_rare_goes_on_too(tmp_path: Path, had: Had) -> None:
    """A version is cut with each snapshot."""
    plan = saving(tmp_path, every=3600)
    killed(plan)
    resumed(plan)
    feed = Feed(str(tmp_path / "feed"))
    assert assert_versions(feed, had) == [1, 7, 8, 13]
    assert [feed.manifest(step).delta is None for step in feed.steps()] == [True, False, False, False]
    assert feed.take_over(feed.manifest(13).settings["feed"]["run"], 13) is False


@pytest.mark.parametrize("why", ["another format", "lost"])
def test_a_feed_without_the_rows_of_the_snapshot_gets_all_rows(why: str, tmp_path: Path, had: Had) -> None:
    plan = saving(tmp_path)
    feed = Feed(str(tmp_path / "feed"))
    killed(plan)
    tolerance = 0.0
    if why == "lost":
        feed._remove("step-00000007")
    else:
        plan, tolerance = saving(tmp_path, dtype="float16"), 2**-11
    resumed(plan)
    assert_versions(feed, had, tolerance=tolerance)
    assert feed.manifest(8).delta is None
    assert feed.manifest(9).delta is not None


def test_the_last_step_is_published_and_seconds_pass_between_versions(tmp_path: Path, had: Had) -> None:
    trainer = make_trainer()
    trainer.fit(train_data(), checkpoint=feeding(Publishing(str(tmp_path), every=3600)))
    trainer.close()
    assert assert_versions(Feed(str(tmp_path)), had) == [1, 15]


def test_two_runs_cannot_publish_to_one_feed(tmp_path: Path) -> None:
    plan = Publishing(str(tmp_path), every=EVERY)
    first, second = make_trainer(), make_trainer()
    first.fit(train_data(), checkpoint=feeding(plan), steps=2)
    with pytest.raises(ConfigError, match="another run publishes to this folder"):
        second.fit(train_data(), checkpoint=feeding(plan))
    first.close()
    second.close()


def test_a_run_that_began_to_publish_meanwhile_is_noticed(tmp_path: Path) -> None:
    told: list[str] = []
    plan = Publishing(str(tmp_path), every=EVERY, notice=told.append)
    other = make_trainer()
    other.fit(train_data(), checkpoint=feeding(Publishing(str(tmp_path / "other"), every=3600)), steps=5)
    other.close()
    trainer = make_trainer()

    class Intruder(satrap.train.Observer):
        def step(self, progress: satrap.train.Progress) -> None:
            if progress.step == 3:
                (tmp_path / "other" / "step-00000005").rename(tmp_path / "step-00000005")

    trainer.fit(train_data(), checkpoint=feeding(plan), steps=4, observers=[Intruder()])
    trainer.close()
    assert all("another run publishes to this folder" in text for text in told)
    assert len(told) == 2


def test_a_feed_is_not_in_the_folder_of_snapshots(tmp_path: Path) -> None:
    trainer = make_trainer()
    place = Checkpointing(str(tmp_path), every_steps=5)
    with pytest.raises(ConfigError, match="in the folder of snapshots"):
        trainer.fit(train_data(), checkpoint=replace(place, publish=Publishing(str(tmp_path))))
    trainer.fit(train_data(), checkpoint=place)
    with pytest.raises(ConfigError, match="holds snapshots, not a feed"):
        trainer.fit(train_data(), checkpoint=feeding(Publishing(str(tmp_path))))
    trainer.close()


def test_training_does_not_go_on_from_a_feed(tmp_path: Path) -> None:
    trainer = make_trainer()
    trainer.fit(train_data(), checkpoint=feeding(Publishing(str(tmp_path))), steps=2)
    trainer.close()
    with pytest.raises(CheckpointError, match="holds only weights"):
        Trainer.load(str(tmp_path), Dropped())
    again = make_trainer()
    with pytest.raises(CheckpointError, match="holds only weights"):
        again.fit(train_data(), checkpoint=Checkpointing(str(tmp_path)), resume=True)
    again.close()


@pytest.mark.parametrize(
    ("wrong", "match"),
    [
        ({"every": 0.0}, "every"),
        ({"full_every": 0}, "full_every"),
        ({"keep": 0}, "keep"),
        ({"dtype": "int8"}, "int8"),
    ],
)
def test_impossible_settings_are_refused(wrong: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Publishing("feed", **wrong)


def fit(trainer: Trainer, rank: int, plan: Publishing) -> None:
    trainer.fit(parts(rank), epochs=2, checkpoint=feeding(plan))


@pytest.mark.cluster
@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_ranks_that_hold_the_rows_publish_them(mode: str, tmp_path: Path, had: Had) -> None:
    plan = Publishing(str(tmp_path), every=EVERY, full_every=5)
    ranks(2, lambda trainer, rank: fit(trainer, rank, plan), mode=mode)
    steps = assert_versions(Feed(str(tmp_path)), had, model=Tower)
    assert len(steps) > 3
    assert steps[-1] == 14


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("mode", "replicated"),
    [("sync", ()), ("hybrid", ()), ("async", ()), ("sync", ("user", "tags")), ("hybrid", ("user", "tags"))],
)
def test_workers_publish_the_rows_of_shards(
    mode: str, replicated: tuple[str, ...], tmp_path: Path, had: Had
) -> None:
    plan = Publishing(str(tmp_path), every=EVERY, full_every=5)
    workers(2, lambda trainer, rank: fit(trainer, rank, plan), mode=mode, replicated=replicated)
    steps = assert_versions(Feed(str(tmp_path)), had, model=Tower)
    assert len(steps) > 3


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("mode", "replicated"),
    [("sync", None), ("hybrid", None), ("async", ()), ("sync", ()), ("hybrid", ("user",))],
)
def test_a_run_of_several_workers_goes_on_with_its_feed(
    mode: str, replicated: tuple[str, ...] | None, tmp_path: Path, had: Had
) -> None:
    """`replicated` None: workers hold the rows."""
    plan = saving(tmp_path)
    feed = Feed(str(tmp_path / "feed"))

    def go_on(epochs: int) -> None:
        def work(trainer: Trainer, rank: int) -> None:
            trainer.fit(parts(rank), epochs=epochs, checkpoint=plan, resume=epochs > 1)

        if replicated is None:
            ranks(2, work, mode=mode)
        else:
            workers(2, work, mode=mode, replicated=replicated)

    go_on(1)
    before = feed.latest()
    assert before == Series(plan.url).latest()
    go_on(2)
    after = [step for step in assert_versions(feed, had, model=Tower) if step > before]
    assert after
    assert all(feed.manifest(step).delta is not None for step in after)


def test_snapshots_and_versions_are_written_side_by_side(tmp_path: Path, had: Had) -> None:
    snapshots = Checkpointing(str(tmp_path / "snapshots"), every_steps=5, delta_every_steps=2)
    plan = Publishing(str(tmp_path / "feed"), every=EVERY)
    trainer = make_trainer(memory=107_500, eviction=LRU)
    trainer.fit(train_data(), checkpoint=replace(snapshots, publish=plan))
    trainer.close()
    assert assert_versions(Feed(plan.url), had) == list(range(1, 16))
    assert Series(snapshots.url).steps() == [10, 12, 14, 15]
