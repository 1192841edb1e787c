"""Paired tests of two models: over seeds, and over the rows that both have scored."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = Sequence[float] | npt.NDArray[np.floating]

LEVEL = 0.95
"""Probability of an interval."""


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between the second and the first model.

    Args:
        mean: the difference.
        low, high: its interval of probability `LEVEL`.
        p: probability of a difference at least as large if the models do not differ, two-sided.
    """

    mean: float
    low: float
    high: float
    p: float


def paired_t(first: Numbers, second: Numbers) -> Difference:
    """Compare two series of at least two pairs with Student's paired t test.

    Student, "The probable error of a mean", Biometrika 6, 1908. The pairs are assumed to be independent.
    """
    differences = np.asarray(second, np.float64) - np.asarray(first, np.float64)
    freedom, mean = len(differences) - 1, float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences))
    margin = t_quantile(LEVEL, freedom) * error
    p = t_tails(mean / error, freedom) if error else float(mean == 0)
    return Difference(mean, mean - margin, mean + margin, p)


def delong(labels: npt.NDArray[np.bool_], first: Numbers, second: Numbers) -> Difference:
    """Compare the AUCs of two models on the same rows, with at least two of each label.

    DeLong, DeLong, Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating
    characteristic curves", Biometrics 44, 1988; with the midranks of Sun and Xu, "Fast implementation of
    DeLong's algorithm", IEEE Signal Processing Letters 21, 2014. Rows are assumed to be independent.

    Args:
        labels: bool[n], whether a row is positive.
        first, second: scores of the models, [n].
    """
    placed = [_placements(labels, np.asarray(scores)) for scores in (first, second)]
    (above, below), (others_above, others_below) = placed
    mean = float(others_above.mean() - above.mean())
    parts = [others_above - above, others_below - below]
    error = math.sqrt(sum(part.var(ddof=1) / len(part) for part in parts))
    quantile = _normal_quantile(LEVEL)
    p = math.erfc(abs(mean) / error / math.sqrt(2)) if error else float(mean == 0)
    return Difference(mean, mean - quantile * error, mean + quantile * error, p)


def _placements(
    labels: npt.NDArray[np.bool_], scores: npt.NDArray[np.floating]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the share of negatives below each positive, and of positives above each negative."""
    ranks, positives = midranks(scores), int(labels.sum())
    above = (ranks[labels] - midranks(scores[labels])) / (len(labels) - positives)
    below = 1 - (ranks[~labels] - midranks(scores[~labels])) / positives
    return above, below


def midranks(values: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """Return the ranks of values from 1; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: npt.NDArray[np.float64] = np.cumsum(counts) - (counts - 1) / 2
    return ranks[inverse]


def t_tails(t: float, freedom: int) -> float:
    """Return the probability that Student's t is at least |t| from 0.

    It is the regularized incomplete beta function I(freedom / 2, 1 / 2) at freedom / (freedom + t^2): NIST
    Digital Library of Mathematical Functions, 8.17, by its continued fraction 8.17.22.
    """
    whole = freedom + t * t
    return _beta(freedom / 2, 0.5, freedom / whole, t * t / whole)


def t_quantile(level: float, freedom: int) -> float:
    """Return the distance from 0 within which Student's t is with this probability."""
    return _solved(lambda t: t_tails(t, freedom), 1 - level)


def _normal_quantile(level: float) -> float:
    return _solved(lambda z: math.erfc(z / math.sqrt(2)), 1 - level)


def _solved(falling: Callable[[float], float], value: float) -> float:
    """Return where a function that falls from 1 has a value, by bisection."""
    low, high = 0.0, 1.0
    while falling(high) > value:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > value else (low, middle)
    return high


def _beta(a: float, b: float, x: float, rest: float) -> float:
    """Return I(a, b) at x; `rest` is 1 - x without its rounding error."""
    if x > (a + 1) / (a + b + 2):  # there only the fraction of the complement converges fast
        return 1 - _beta(b, a, rest, x)
    if x == 0:
        return 0.0
    logarithm = (
        a * math.log(x) + b * math.log1p(-x) if x < 0.5 else a * math.log1p(-rest) + b * math.log(rest)
    )
    factor = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + logarithm)
    return factor / a / _fraction(a, b, x)


def _fraction(a: float, b: float, x: float) -> float:
    """Return 1 + d1 / (1 + d2 / (1 + ...)) by the modified method of Lentz (Thompson and Barnett, 1986)."""
    tiny = 1e-300
    value, upper, lower = 1.0, 1.0, 0.0
    for step in range(1, 10_000):
        m = step // 2
        if step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        lower = 1 / (1 + term * lower or tiny)
        upper = 1 + term / upper or tiny
        value *= upper * lower
        if abs(upper * lower - 1) < 1e-15:
            break
    return value
