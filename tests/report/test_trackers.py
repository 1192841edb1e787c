"""Trackers get the figures of a run; wandb and mlflow themselves are played by a recorder."""

from __future__ import annotations

import math
from typing import Any

import pytest

from satrap.report import MLflowTracker, Tracker, WandbTracker
from satrap.train.progress.observer import Progress, Result


class Recorder:
    """Has the one method of `wandb.Run` and of `mlflow` that is used, with its signature."""

    def __init__(self) -> None:
        self.sent: list[tuple[int | None, dict[str, float]]] = []

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.sent.append((step, data))

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.sent.append((step, metrics))


@pytest.mark.parametrize("kind", [WandbTracker, MLflowTracker])
def test_a_tracker_gets_training_validation_and_totals(kind: Any) -> None:
    recorder = Recorder()
    assert kind(recorder).every == 20
    tracker: Tracker = kind(recorder, every=2)
    progress = Progress()
    tracker.started(progress)
    for step in range(1, 5):
        progress.step, progress.loss, progress.rows, progress.samples_per_second = (
            step,
            1 / step,
            10 * step,
            50.0,
        )
        progress.auc, progress.rmse = (math.nan, math.nan) if step < 4 else (0.75, 2.0)
        tracker.step(progress)
    tracker.evaluated({"auc": 0.8, "logloss": 0.5, "samples": 100, "ne": math.nan}, progress)
    tracker.finished(
        Result({}, (), steps=4, samples=400, seconds=2.0, samples_per_second=200.0, refused=1, stopped="")
    )
    assert recorder.sent == [
        (2, {"train/loss": 0.5, "samples_per_second": 50.0, "rows": 20.0}),
        (
            4,
            {
                "train/loss": 0.25,
                "train/auc": 0.75,
                "train/rmse": 2.0,
                "samples_per_second": 50.0,
                "rows": 40.0,
            },
        ),
        (4, {"validation/auc": 0.8, "validation/logloss": 0.5}),
        (4, {"total/seconds": 2.0, "total/samples": 400.0, "total/refused": 1.0}),
    ]
