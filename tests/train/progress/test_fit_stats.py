"""The account of a run: what it counts, when it looks at the store, what goes on from a snapshot."""

from __future__ import annotations

import json
import math
import time
from concurrent.futures import Future, wait
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from satrap.batch import Batch, Jagged
from satrap.dense import StepResult, Workers
from satrap.embedding import NO_BATCH, EmbeddingPlan
from satrap.errors import ExchangeError, TrainingError
from satrap.exchange import ExchangeStatistics, TableGroup, Traffic
from satrap.exchange.telemetry import RequestTotals
from satrap.schema import Categorical, Label, Schema
from satrap.train import Observer, Progress, Result
from satrap.train.progress import throughput
from satrap.train.progress.fit_stats import FitStats
from satrap.train.progress.plateau_control import PlateauControl
from satrap.train.step.agree import StepInput

GOOD, BAD = StepResult(True, 1.0, False), StepResult(False, math.nan, False)
NONE = StepInput(NO_BATCH, 1.0, 10)


def test_a_resumed_run_goes_on_counting_the_seconds_of_its_stages() -> None:
    before, run = FitStats([Label(name="y")]), FitStats([Label(name="y")])
    before.stages.seconds |= {"read": 3.0, "push": 1.0}
    run.restore(*before.state())
    run.stages.seconds["read"] += 2.0
    assert run.progress.stage_seconds["read"] == run.stages.seconds["read"] == 5.0
    assert run.progress.stage_seconds["push"] == run.stages.seconds["push"] == 1.0


def test_time_between_passes_does_not_count() -> None:
    run = FitStats([Label(name="y")], epochs=2)
    run.begin_epoch(0)
    time.sleep(0.02)
    run.end_epoch()
    before = run.finish().seconds
    assert before >= 0.02
    time.sleep(0.02)
    assert run.finish().seconds == before


class Told(Observer):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def started(self, progress: Progress) -> None:
        self.told.append(("started", progress.total_samples))

    def step(self, progress: Progress) -> None:
        self.told.append(("step", progress.step))

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        self.told.append(("evaluated", metrics, progress.step))

    def finished(self, result: Result) -> None:
        self.told.append(("finished", result.steps))


class Store:
    """An exchange that only counts: one row more each time it is asked."""

    collective = False

    def __init__(self) -> None:
        self.telemetry = self
        self.asked = 0
        self.failing: list[Exception] = []

    def statistics(self) -> ExchangeStatistics:
        if self.failing:
            raise self.failing.pop()
        self.asked += 1
        return ExchangeStatistics(rows=self.asked, bytes=100 * self.asked)

    def traffic(self) -> Traffic:
        return Traffic({}, {}, RequestTotals(), RequestTotals(), sent=400, received=200)


class Rows:
    """Data of which one knows how long it is, or where a batch is."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    def num_rows(self) -> int | None:
        return self._rows

    def progress(self, position: Any, epoch: int) -> float:
        return float(position)


class Now:
    seconds = 100.0


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    now = Now()
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: now.seconds))
    return now


def settled(run: FitStats) -> None:
    """Wait until the store has answered."""
    if run._asked is not None:
        run._asked.result(20)


def turn_of(size: int, position: float | None = None) -> StepInput:
    plan = EmbeddingPlan(Schema(["y"], {"user": Categorical(dim=2)}), [TableGroup(0, ("user",), 2)])
    ids = {"user": Jagged(np.arange(size, dtype=np.uint64) // 2)}
    labels = np.zeros((size, 1), np.float32)
    return StepInput(plan.ticket(Batch(size, ids, labels=labels, position=position)), 1.0, 10)


def test_steps_are_counted_and_told(now: Now) -> None:
    store, observer = Store(), Told()
    run = FitStats([Label(name="y")], 2, [observer])
    with run.watching(store, Rows(50)):  # type: ignore[arg-type]
        run.begin_epoch(1)
        now.seconds = 102.0
        run.after_step(turn_of(4), run.predicted(torch.zeros(4, 1)), GOOD, 3)
        settled(run)
        progress = run.progress
        assert (progress.epoch, progress.step, progress.samples) == (1, 1, 10)
        assert (progress.samples_per_second, progress.total_samples, progress.eta_seconds) == (5.0, 100, 18.0)
        assert (progress.loss, progress.staleness, progress.distinct_ratio, run.updates) == (1.0, 3, 0.5, 1)
        assert (store.asked, progress.rows) == (1, 0)  # the answer is taken at the next look
        now.seconds = 102.4375
        run.after_step(NONE, None, StepResult(True, 2.0, False), 0)
        assert (progress.loss, progress.staleness, run.updates) == (pytest.approx(0.98 + 0.02 * 2), 3, 2)
        assert (store.asked, progress.rows) == (1, 0)
        now.seconds = 102.5
        run.after_step(NONE, None, BAD, 0)
        settled(run)
        assert (store.asked, progress.rows, progress.memory_bytes) == (2, 1, 100)
        assert progress.sent_bytes_per_sample == 100.0  # of this worker's 4 samples
        assert (progress.refused, run.updates, dict(run.staleness)) == (1, 2, {3: 1})
        for _ in range(8):
            run.after_step(NONE, None, StepResult(False, math.nan, False, rescaled=True), 0)
        assert (progress.refused, progress.eta_seconds) == (1, 0.0)
        run.end_epoch()
        assert (store.asked, progress.rows) == (3, 3)  # asked anew, and waited for
        run.evaluated({"auc": 0.5})
        result = run.finish()
    assert observer.told == [
        ("started", 100),
        *(("step", n) for n in range(1, 12)),
        ("evaluated", {"auc": 0.5}, 11),
        ("finished", 11),
    ]
    assert (result.steps, result.samples, result.seconds, result.refused) == (11, 110, 2.5, 1)
    assert (result.samples_per_second, result.stopped) == (44.0, "epochs")
    assert (result.history, result.staleness) == (({"auc": 0.5},), {3: 1})
    traffic = dict(result.traffic)
    assert "workers" not in traffic
    assert (traffic["distinct_ratio"], traffic["snapshots"], traffic["snapshot_pause_ms"]) == (0.5, 0, 0.0)
    assert (traffic["sent_bytes_per_sample"], traffic["received_bytes_per_sample"]) == (100.0, 50.0)


def test_an_answer_from_before_the_end_of_a_pass_is_not_taken_after_it(now: Now) -> None:
    run = FitStats([Label(name="y")], 2)
    with run.watching(Store(), Rows(None)):  # type: ignore[arg-type]
        run.begin_epoch(0)
        run.after_step(NONE, None, GOOD, 0)
        settled(run)
        run.end_epoch()
        assert run.progress.rows == 2
        run.begin_epoch(1)
        now.seconds += 1
        run.after_step(NONE, None, GOOD, 0)
        assert run.progress.rows == 2
        settled(run)
        run.end_epoch()
        assert run.progress.rows == 4


def test_counters_that_could_not_be_read_are_read_again_at_the_next_look(now: Now) -> None:
    """A shard that is being left does not answer; training needs no counters."""
    store = Store()
    store.failing = [ExchangeError("shard 1 takes no more requests")]
    run = FitStats([Label(name="y")], 1)
    with run.watching(store, Rows(None)):  # type: ignore[arg-type]
        run.begin_epoch(0)
        for _ in range(3):
            run.after_step(NONE, None, GOOD, 0)
            assert run._asked is not None
            wait([run._asked], 20)
            now.seconds += 1
    assert run.progress.rows == 1


def test_a_length_that_nobody_knows_is_estimated_at_looks(now: Now) -> None:
    run = FitStats([Label(name="y")], 2)
    with run.watching(Store(), Rows(None)):  # type: ignore[arg-type]
        run.begin_epoch(0)
        found = []
        for seconds, position in ((101.0, 0.25), (101.25, 0.5), (101.5, 0.5)):
            now.seconds = seconds
            run.after_step(turn_of(2, position), run.predicted(torch.zeros(2, 1)), GOOD, 0)
            found.append(run.progress.total_samples)
        assert found == [80, 80, 120]
        run.end_epoch()
        assert run._length.total == 60


def test_a_worker_that_is_not_the_first_reads_no_counters() -> None:
    workers = Workers()
    workers.rank = 1
    store = Store()
    run = FitStats([Label(name="y")], 1, workers=workers)
    with run.watching(store, Rows(None)):  # type: ignore[arg-type]
        run.begin_epoch(0)
        run.after_step(NONE, None, GOOD, 0)
        run.end_epoch()
    assert store.asked == 0


def test_a_hundred_refused_steps_in_a_row_end_the_run() -> None:
    run = FitStats([Label(name="y")])
    for steps in (99, 99):
        for _ in range(steps):
            run.after_step(NONE, None, BAD, 0)
        run.after_step(NONE, None, GOOD, 0)
    for _ in range(99):
        run.after_step(NONE, None, BAD, 0)
    with pytest.raises(TrainingError, match="100 steps in a row had a loss or gradient") as raised:
        run.after_step(NONE, None, BAD, 0)
    assert raised.value.where == "step 300"


@pytest.mark.parametrize(
    ("steps", "bad", "stopped"),
    [(None, 1, "epochs"), (4, 1, "epochs"), (3, 1, "steps"), (2, 1, "steps"), (None, 2, "patience")],
)
def test_a_run_is_done_when_steps_or_patience_are_used_up(steps: int | None, bad: int, stopped: str) -> None:
    run = FitStats([Label(name="y")])
    for _ in range(3):
        run.after_step(NONE, None, GOOD, 0)
    assert run.done(steps, PlateauControl(patience=2, bad=bad)) == (stopped != "epochs")
    assert run.stopped == stopped


def test_an_account_goes_on_where_a_snapshot_left_it(now: Now) -> None:
    before, after = FitStats([Label(name="y")], 3), FitStats([Label(name="y")], 3)
    before.begin_epoch(0)
    now.seconds = 104.0
    before.after_step(turn_of(4), before.predicted(torch.zeros(4, 1)), GOOD, 3)
    before.end_epoch()
    before.after_step(NONE, None, BAD, 0)
    before.evaluated({"auc": 0.5})
    before.best = {"auc": 0.5}
    plain, arrays = before.state()
    assert plain["progress"].pop("stage_seconds") == before.stages.seconds
    assert {name: value for name, value in plain.items() if name != "progress"} == {
        "updates": 1,
        "staleness": [(3, 1)],
        "history": [{"auc": 0.5}],
        "best": {"auc": 0.5},
        "refused_in_row": 1,
        "ratios": 0.5,
        "own_samples": 4,
        "seconds": 4.0,
        "before": 10,
    }
    plain, arrays = before.state()
    after.restore(json.loads(json.dumps(plain)), arrays)
    assert json.dumps(after.state()[0]) == json.dumps(plain)
    assert after.state()[1].keys() == arrays.keys()
    assert (after.steps, after.updates) == (2, 1)


def test_rows_that_are_waited_for_count_as_lookup() -> None:
    run, future = FitStats([Label(name="y")]), Future[Any]()
    future.set_result(["rows"])
    assert run.wait(future) == ["rows"]
    assert run.progress.lookup_wait_seconds == run.stages.seconds["lookup"] > 0


def test_all_steps_refused_is_an_error_unless_the_run_was_stopped() -> None:
    run = FitStats([Label(name="y")])
    run.after_step(NONE, None, BAD, 0)
    with pytest.raises(TrainingError, match="nothing was learnt: all 1 steps were refused"):
        run.finish()
    run.stopped = "stopped"
    assert run.finish().refused == 1
    assert FitStats([Label(name="y")]).finish().traffic == {}
