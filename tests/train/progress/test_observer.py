"""Progress survives a passage through JSON; observers may leave everything out."""

from __future__ import annotations

import json
from dataclasses import asdict

from satrap.train.progress.observer import Observer, Progress, Result


def test_progress_survives_a_passage_through_json() -> None:
    told = Progress(
        step=3,
        total_samples=None,
        loss=0.5,
        auc=0.75,
        accuracy=0.5,
        rmse=2.0,
        distinct_ratio=0.25,
        event_time=1.7e9,
        shard_rows=(4, 5),
        shard_busy=(0.5, 0.25),
        shard_requests=(1.5,),
        shard_queued=(),
        stage_seconds={"read": 1.0},
    )
    found = Progress.of(json.loads(json.dumps(asdict(told))))
    assert found == told
    assert isinstance(found.shard_rows, tuple)


def test_nothing_is_known_before_the_first_step() -> None:
    before = Progress()
    values = asdict(before)
    unknown = {name for name, value in values.items() if value != value}
    assert unknown == {"loss", "auc", "accuracy", "rmse", "distinct_ratio", "event_time"}
    numbers = {name: value for name, value in values.items() if isinstance(value, (int, float))}
    assert numbers.keys() - unknown == {name for name, value in numbers.items() if value == 0}
    assert {name: value for name, value in values.items() if name not in numbers} == {
        "total_samples": None,
        "eta_seconds": None,
        "shard_rows": (),
        "shard_busy": (),
        "shard_requests": (),
        "shard_queued": (),
        "stage_seconds": {},
    }


def test_two_runs_do_not_share_what_they_count() -> None:
    one, two = Progress(), Progress()
    one.stage_seconds["read"] = 1.0
    assert two.stage_seconds == {}


def test_an_observer_may_leave_everything_out() -> None:
    observer, result = Observer(), Result({}, (), 1, 2, 3.0, 4.0, 0, "steps")
    assert observer.started(Progress()) is None
    assert observer.step(Progress()) is None
    assert observer.evaluated({}, Progress()) is None
    assert observer.finished(result) is None
    assert (result.staleness, result.traffic) == ({}, {})


def test_a_result_in_a_notebook_is_its_steps_and_metrics() -> None:
    result = Result({"auc": 0.75, "samples": 9}, (), 1000, 2000, 3.0, 4.0, 0, "steps")
    shown = result._repr_html_()
    assert "<td>1,000</td>" in shown
    assert "<td>AUC</td><td>0.7500</td>" in shown
