"""Paired tests against scipy, scikit-learn and the bootstrap."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from satrap.tools.compare.significance import delong, midranks, paired_t, t_quantile, t_tails


@pytest.mark.parametrize("freedom", [1, 2, 4, 30, 1000, 100_000])
@pytest.mark.parametrize("t", [0.0, 1e-6, 0.3, 1.0, 2.5, 12.0, 300.0])
def test_tails_of_students_t_are_those_of_scipy(t: float, freedom: int) -> None:
    assert t_tails(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9)
    assert t_tails(-t, freedom) == t_tails(t, freedom)


@pytest.mark.parametrize("freedom", [1, 4, 29, 10_000])
def test_quantiles_of_students_t_are_those_of_scipy(freedom: int) -> None:
    assert t_quantile(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


@pytest.mark.parametrize("count", [2, 5, 2000])
def test_the_paired_t_test_is_that_of_scipy(count: int) -> None:
    random = np.random.default_rng(count)
    first = random.normal(size=count)
    second = first + random.normal(0.1, 0.2, size=count)
    found, expected = paired_t(first, second), stats.ttest_rel(second, first)
    interval = expected.confidence_interval(0.95)
    assert found.mean == pytest.approx(np.mean(second - first))
    assert found.p == pytest.approx(expected.pvalue, rel=1e-8)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high))


def test_equal_runs_do_not_differ_and_a_constant_difference_is_certain() -> None:
    assert paired_t([0.1, 0.2], [0.1, 0.2]).p == 1
    assert paired_t([1.0, 2.0], [2.0, 3.0]).p == 0


def test_midranks_are_those_of_scipy() -> None:
    values = np.random.default_rng(0).integers(0, 20, 200).astype(np.float64)
    np.testing.assert_array_equal(midranks(values), stats.rankdata(values))


def scored(rows: int, seed: int, gain: float, digits: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, and scores of two models that share most of their noise; with ties."""
    random = np.random.default_rng(seed)
    labels = random.random(rows) < 0.3
    shared = labels + random.normal(size=rows)
    first, second = (shared + by * labels + 0.5 * random.normal(size=rows) for by in (0.0, gain))
    return labels, first.round(digits), second.round(digits)


def test_the_difference_is_that_of_the_aucs_of_scikit_learn() -> None:
    labels, first, second = scored(500, 1, 0.3)
    expected = roc_auc_score(labels, second) - roc_auc_score(labels, first)
    assert delong(labels, first, second).mean == pytest.approx(expected, abs=1e-12)


def test_the_variance_is_that_of_the_definition() -> None:
    """DeLong's structural components by all pairs, with the covariance of both models."""
    labels, first, second = scored(80, 2, 0.2, digits=1)
    components = []
    for scores in (first, second):
        positive, negative = scores[labels], scores[~labels]
        wins = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
        components.append((wins.mean(axis=1), wins.mean(axis=0)))
    above, below = (np.cov([one[i] for one in components]) for i in (0, 1))
    contrast = np.array([-1.0, 1.0])
    error = math.sqrt(contrast @ (above / labels.sum() + below / (~labels).sum()) @ contrast)
    found = delong(labels, first, second)
    assert (found.high - found.low) / 2 == pytest.approx(stats.norm.ppf(0.975) * error, rel=1e-9)
    assert found.p == pytest.approx(2 * stats.norm.sf(abs(found.mean) / error), rel=1e-9)


def test_the_interval_is_about_that_of_a_bootstrap_of_rows() -> None:
    labels, first, second = scored(400, 3, 0.3)
    random, differences = np.random.default_rng(0), []
    for _ in range(400):
        rows = random.integers(0, 400, 400)
        aucs = [roc_auc_score(labels[rows], scores[rows]) for scores in (first, second)]
        differences.append(aucs[1] - aucs[0])
    found = delong(labels, first, second)
    assert (found.high - found.low) / 2 / 1.96 == pytest.approx(np.std(differences), rel=0.15)


def test_equal_models_rarely_differ() -> None:
    """Of models that differ by noise alone, about one in twenty has p < 0.05."""
    below = [delong(*scored(300, seed, 0.0)).p < 0.05 for seed in range(200)]
    assert 2 <= sum(below) <= 22
    labels, scores, _ = scored(100, 1, 0.0)
    assert delong(labels, scores, scores).p == 1
