"""`RegressionMetrics` against scikit-learn, and its loss against PyTorch's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, mean_poisson_deviance, mean_squared_error, r2_score

from satrap.metrics import RegressionMetrics
from satrap.schema import Label

PRICE = Label(name="price", kind="regression", mean=1000.0, std=300.0)


def drawn(size: int = 3000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of large mean, predictions and weights."""
    rng = np.random.default_rng(0)
    truth = rng.normal(1000, 300, size).astype(np.float32)
    predicted = (truth + rng.normal(20, 100, size)).astype(np.float32)
    return truth, predicted, rng.integers(0, 4, size).astype(np.float32)


def seen(label: Label, truth: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> RegressionMetrics:
    metrics = RegressionMetrics(label)
    for at in range(0, len(truth), 256):
        rows = slice(at, at + 256)
        metrics.update(truth[rows], predicted[rows, None], weights[rows])
    return metrics


def test_weighted_errors_equal_scikit_learn() -> None:
    truth, predicted, weights = drawn()
    found = seen(PRICE, truth, predicted, weights).compute()
    exact = truth.astype(np.float64), predicted.astype(np.float64)
    assert found["rmse"] ** 2 == pytest.approx(mean_squared_error(*exact, sample_weight=weights), rel=1e-12)
    assert found["mae"] == pytest.approx(mean_absolute_error(*exact, sample_weight=weights), rel=1e-12)
    assert found["r2"] == pytest.approx(r2_score(*exact, sample_weight=weights), rel=1e-9)
    assert found["samples"] == 3000


@pytest.mark.parametrize("parts", [2, 5])
def test_shares_merged_are_the_whole(parts: int) -> None:
    arrays = drawn()
    whole = seen(PRICE, *arrays).compute()
    merged = RegressionMetrics(PRICE)
    for part in range(parts):
        other = RegressionMetrics(PRICE)
        other.restore(seen(PRICE, *(array[part::parts] for array in arrays)).state())
        merged.merge(other)
    assert merged.compute() == pytest.approx(whole, rel=1e-12)
    merged.reset()
    assert merged.compute()["samples"] == 0


@pytest.mark.parametrize(
    ("loss", "delta", "torch_loss"),
    [
        (None, None, torch.nn.MSELoss()),
        ("absolute", None, torch.nn.L1Loss()),
        ("huber", 0.25, torch.nn.HuberLoss(delta=0.25)),
        ("huber", None, torch.nn.HuberLoss(delta=1.0)),
    ],
)
def test_the_loss_is_that_of_scaled_labels(loss, delta, torch_loss) -> None:
    truth, predicted, weights = drawn()
    label = Label(name="price", kind="regression", mean=1000.0, std=300.0, loss=loss, delta=delta)
    scaled = [torch.from_numpy((array.astype(np.float64) - 1000) / 300) for array in (predicted, truth)]
    found = seen(label, truth, predicted, np.ones_like(weights)).compute()
    assert found["loss"] == pytest.approx(float(torch_loss(*scaled)), rel=1e-12)


def test_poisson_loss_differs_from_half_the_deviance_by_what_no_prediction_changes() -> None:
    rng = np.random.default_rng(0)
    truth = rng.poisson(3, 2000).astype(np.float64) + 1
    label = Label(name="n", kind="regression", loss="poisson", mean=3.0)
    differences = []
    for scale in (0.5, 2.0):
        predicted = scale * rng.uniform(1, 5, 2000)
        found = seen(label, truth, predicted, np.ones(2000)).compute()
        differences.append(3 * found["loss"] - mean_poisson_deviance(truth, predicted) / 2)
    assert differences[0] == pytest.approx(differences[1], rel=1e-9)
    assert math.isfinite(seen(label, truth, np.zeros(2000), np.ones(2000)).compute()["loss"])


def test_what_is_not_defined_is_no_number() -> None:
    assert math.isnan(RegressionMetrics(PRICE).compute()["rmse"])
    constant = seen(PRICE, np.full(5, 7.0), np.zeros(5), np.ones(5)).compute()
    assert math.isnan(constant["r2"])
    assert constant["rmse"] == 7
