"""The AUC of each full window against scikit-learn's, and what a checkpoint keeps of it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from satrap.batch import Batch
from satrap.schema import Label
from satrap.train.progress import running_metrics
from satrap.train.progress.running_metrics import WINDOW_SAMPLES, RunningMetrics
from satrap.train.step.loss import predictions


def drawn(size: int, seed: int) -> tuple[Batch, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, (size, 1)).astype(np.float32)
    logits = torch.from_numpy((labels + rng.normal(0, 1 + seed, (size, 1))).astype(np.float32))
    return Batch(size, {}, labels=labels), logits.sigmoid().numpy()


def test_the_value_is_that_of_the_last_full_window() -> None:
    made, half = RunningMetrics([Label(name="y")]), WINDOW_SAMPLES // 2
    values, expected = [], []
    for seed in range(5):
        batch, scores = drawn(half, seed)
        values.append(made.add(batch, scores).get("auc", math.nan))
        expected.append((batch.labels, scores))
    assert math.isnan(values[0])
    assert values[1] == values[2] != values[3]
    assert values[3] == values[4] == made.values["auc"]
    for last in (1, 3):
        labels, scored = (np.concatenate(parts) for parts in zip(*expected[last - 1 : last + 1], strict=True))
        assert values[last] == pytest.approx(roc_auc_score(labels, scored), abs=2e-3)


def test_masks_and_weights_count() -> None:
    batch, scores = drawn(WINDOW_SAMPLES, 1)
    assert batch.labels is not None
    rng = np.random.default_rng(5)
    mask, weights = rng.random((batch.size, 1)) < 0.5, rng.uniform(0, 9, batch.size).astype(np.float32)
    wrong = np.where(mask, batch.labels, 1 - batch.labels)
    found = RunningMetrics([Label(name="y")]).add(
        Batch(batch.size, {}, labels=wrong, label_mask=mask, weights=weights), scores
    )
    known = mask[:, 0]
    expected = roc_auc_score(batch.labels[known], scores[known], sample_weight=weights[known])
    assert found["auc"] == pytest.approx(expected, abs=2e-3)


def test_a_restored_window_goes_on_where_it_was() -> None:
    first, second = RunningMetrics([Label(name="y")]), RunningMetrics([Label(name="y")])
    first.add(*drawn(WINDOW_SAMPLES, 0))
    first.add(*drawn(WINDOW_SAMPLES - 1, 1))
    second.restore(first.state())
    assert second.values == first.values
    last = drawn(1, 2)
    before = first.values
    assert second.add(*last) == first.add(*last) != before


@pytest.mark.parametrize(
    ("label", "name", "logits", "expected"),
    [
        (Label(name="y", kind="regression", mean=1.0, std=2.0), "rmse", [[1.0]], 3.0),
        (Label(name="y", kind="multiclass", classes=2), "accuracy", [[0.0, 1.0]], 0.0),
    ],
)
def test_labels_of_other_kinds_have_other_metrics(
    label: Label, name: str, logits: list[list[float]], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_metrics, "WINDOW_SAMPLES", 4)
    found = RunningMetrics([label])
    batch = Batch(2, {}, labels=np.zeros((2, 1), np.float32))
    predicted = predictions(torch.tensor(logits * 2), [label]).numpy()
    assert found.add(batch, predicted) == {}
    assert found.add(batch, predicted) == {name: pytest.approx(expected)}
    again = RunningMetrics([label])
    again.restore(found.state())
    assert again.values == found.values


def test_an_older_snapshot_has_the_auc_only() -> None:
    first, second = RunningMetrics([Label(name="y")]), RunningMetrics([Label(name="y")])
    first.add(*drawn(WINDOW_SAMPLES, 0))
    first.add(*drawn(5, 1))
    state = first.state()
    second.restore(state | {"counts": state["counts"][:2]})
    assert second.values == {"auc": first.values["auc"]}
    assert second.state()["counts"][0] == 5
    assert WINDOW_SAMPLES == 50_000
