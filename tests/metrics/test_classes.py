"""`ClassMetrics` against scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, log_loss

from satrap.metrics import ClassMetrics


def drawn(size: int = 2000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 4, size)
    logits = rng.normal(0, 1, (size, 4)) + 2 * np.eye(4)[truth]
    exponents = np.exp(logits)
    probabilities = (exponents / exponents.sum(1, keepdims=True)).astype(np.float32)
    return truth.astype(np.float32), probabilities, rng.integers(0, 4, size).astype(np.float32)


def test_accuracy_and_logloss_equal_scikit_learn_also_when_merged() -> None:
    truth, probabilities, weights = drawn()
    exact = probabilities.astype(np.float64)
    exact /= exact.sum(1, keepdims=True)
    whole, merged = ClassMetrics(), ClassMetrics()
    whole.update(truth, probabilities, weights)
    for part in range(3):
        own, other = ClassMetrics(), ClassMetrics()
        own.update(truth[part::3], probabilities[part::3], weights[part::3])
        other.restore(own.state())
        merged.merge(other)
    for metrics in (whole, merged):
        found = metrics.compute()
        assert found["accuracy"] == pytest.approx(
            accuracy_score(truth, probabilities.argmax(1), sample_weight=weights), rel=1e-12
        )
        assert found["logloss"] == pytest.approx(log_loss(truth, exact, sample_weight=weights), rel=1e-6)
        assert found["samples"] == 2000


def test_a_class_that_was_ruled_out_costs_a_finite_loss() -> None:
    metrics = ClassMetrics()
    assert math.isnan(metrics.compute()["accuracy"])
    metrics.update(np.array([1.0]), np.array([[1.0, 0.0]], np.float32), np.ones(1))
    assert metrics.compute()["logloss"] == pytest.approx(-math.log(np.finfo(np.float32).eps))
