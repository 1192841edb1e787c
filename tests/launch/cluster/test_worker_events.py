from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from satrap.launch.cluster import worker_events
from satrap.launch.cluster.worker_events import Forward, tell
from satrap.runtime.events import Event, decode, encode
from satrap.train import Observer, Progress, Result


class Seen(Observer):
    def __init__(self) -> None:
        self.calls: list[Any] = []

    def started(self, progress: Progress) -> None:
        self.calls.append(("started", progress))

    def step(self, progress: Progress) -> None:
        self.calls.append(("step", progress))

    def evaluated(self, metrics: Any, progress: Progress) -> None:
        self.calls.append(("evaluated", dict(metrics), progress))

    def event_hour(self, hour: str, metrics: Any, progress: Progress) -> None:
        self.calls.append(("event_hour", hour, dict(metrics), progress))

    def finished(self, result: Result) -> None:
        self.calls.append(("finished", result))


def test_an_observer_hears_through_the_pipe_what_it_would_hear_here() -> None:
    seen = Seen()

    def send(event: Event) -> None:
        event_there = decode(encode(event))
        assert event_there is not None
        tell(seen, event_there)

    numbers = {
        "auc": 0.6,
        "accuracy": 0.5,
        "rmse": 2.0,
        "distinct_ratio": 0.1,
        "event_time": 1.7e9,
    }  # no NaN, which equals nothing
    progress = Progress(step=3, epoch=1, loss=0.5, shard_rows=(4, 5), **numbers)
    result = Result(
        {"auc": 0.7}, ({"auc": 0.7},), 3, 30, 1.0, 30.0, 0, "epochs", {0: 1, 4: 2}, {"waiting": 1}
    )
    forward = Forward(send)
    forward.started(progress)
    forward.step(progress)
    forward.step(progress)  # too soon after the first
    forward.evaluated({"auc": 0.7}, progress)
    forward.event_hour("2026-11-28T10:00Z", {"auc": 0.6}, progress)
    forward.finished(result)
    assert seen.calls == [
        ("started", progress),
        ("step", progress),
        ("evaluated", {"auc": 0.7}, progress),
        ("event_hour", "2026-11-28T10:00Z", {"auc": 0.6}, progress),
        ("finished", result),
    ]


def test_the_first_step_of_each_epoch_is_told_and_then_one_every_fifth_of_a_second(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also on a machine that has just been started, whose clock is near 0."""
    now, told = 0.0, list[Event]()
    monkeypatch.setattr(worker_events, "time", SimpleNamespace(monotonic=lambda: now))
    forward = Forward(told.append)
    steps = [(0.0, 0), (0.1, 0), (0.2, 0), (0.3, 0), (0.35, 1), (0.5, 1), (0.55, 1), (0.55, 2)]
    for number, (now, epoch) in enumerate(steps):  # noqa: B007 - the clock reads `now`
        forward.step(Progress(step=number, epoch=epoch, loss=0.5))
    assert [event.progress.step for event in told if isinstance(event, worker_events.StepTaken)] == [
        0,
        2,
        4,
        6,
        7,
    ]
