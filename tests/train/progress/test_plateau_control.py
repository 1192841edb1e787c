"""The rates drop with each evaluation that is no improvement; patience counts those in a row."""

from __future__ import annotations

from typing import Any

import pytest

from satrap.settings.training import TrainingOptions
from satrap.train.progress.plateau_control import PlateauControl


def test_each_evaluation_without_improvement_drops_the_rates() -> None:
    control = PlateauControl(factor=0.5)
    scales = []
    for value, better in [(0.6, True), (0.7, True), (0.7, False), (0.65, False), (0.71, True), (0.71, False)]:
        assert control.improved(value) is better
        scales.append(control.lr_scale)
    assert scales == [1.0, 1.0, 0.5, 0.25, 0.25, 0.125]
    assert control.best == 0.71
    assert not control.exhausted


def test_patience_counts_those_in_a_row() -> None:
    control = PlateauControl(patience=2)
    seen = []
    for value in (0.6, 0.5, 0.7, 0.7, 0.6):
        control.improved(value)
        seen.append((control.bad, control.exhausted))
    assert seen == [(0, False), (1, False), (0, False), (1, False), (2, True)]
    assert control.lr_scale == 1.0


def test_an_improvement_must_exceed_the_least_difference() -> None:
    control = PlateauControl(min_delta=0.25)
    assert control.improved(0.5)
    assert not control.improved(0.75)
    assert control.best == 0.5
    assert control.improved(0.75 + 2**-20)


def test_the_least_difference_is_a_millionth() -> None:
    control = PlateauControl()
    assert control.improved(-5.0)  # anything is better than nothing
    assert not control.improved(-5.0 + 0.9e-6)
    assert control.improved(-5.0 + 1.1e-6)


@pytest.mark.parametrize("evaluations", [1, 1000])
def test_without_patience_training_goes_on(evaluations: int) -> None:
    control = PlateauControl()
    for _ in range(evaluations):
        control.improved(0.5)
    assert not control.exhausted


def error(labels: Any) -> float:
    return 0.0


error.higher_is_better = False  # type: ignore[attr-defined]


def gain(labels: Any) -> float:
    return 0.0


@pytest.mark.parametrize(
    ("monitor", "criterion", "metric", "value"),
    [
        ("auc", "auc", "auc", 0.7),
        ("logloss", "auc", "logloss", -0.5),
        ("auc", "loss", "loss", -0.4),
        ("error", "loss", "error", -0.3),
        ("gain", "auc", "gain", 0.2),
        ("gain", "loss", "gain", 0.2),
    ],
)
def test_of_the_metric_it_follows_higher_is_better(
    monitor: str, criterion: str, metric: str, value: float
) -> None:
    control = PlateauControl.of(TrainingOptions(monitor=monitor, metrics=(error, gain)))
    metrics = {"auc": 0.7, "logloss": 0.5, "loss": 0.4, "error": 0.3, "gain": 0.2}
    assert control.value(metrics, criterion) == value
    assert control.metric(criterion) == (metric, value > 0)
