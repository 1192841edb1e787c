"""ROC curve and calibration of predictions, from histograms of fixed size."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from satrap.metrics.auc import Bools, Doubles, Floats, add_to_histogram, binned_auc, new_histogram

BINS = 1 << 18
"""Number of bins over [0, 1], logarithmic towards both ends, see `add_to_histogram`."""


class CalibrationBins(NamedTuple):
    """Groups of samples by rising prediction: mean prediction, share of positives and weight of each."""

    predicted: Doubles
    observed: Doubles
    weight: Doubles


class ScoreCurves:
    """ROC curve and calibration of one label over any number of samples, in 8 MiB.

    ```python
    curves = ScoreCurves()
    curves.add(predictions, labels, weights)
    false_positive_rate, true_positive_rate = curves.roc()
    ```

    Samples are counted in bins by their prediction. The points of the curves lie between bins, so they are
    exact.
    """

    def __init__(self) -> None:
        self._counts = new_histogram(BINS)  # weight of negatives, weight of positives
        self._predicted = new_histogram(BINS)  # the same, multiplied by the prediction

    def add(self, predictions: Floats, labels: Bools, weights: Floats) -> None:
        """Add samples: float32[n] probabilities in [0, 1], bool[n], float32[n] weights >= 0."""
        add_to_histogram(self._counts, predictions, labels, weights)
        add_to_histogram(self._predicted, predictions, labels, weights * predictions)

    def auc(self) -> tuple[float, float]:
        """Return the area under the ROC curve and a bound on its error; NaN with only one class."""
        return binned_auc(self._counts)

    def roc(self, points: int = 200) -> tuple[Doubles, Doubles]:
        """Return (false positive rates, true positive rates), float64[m] each, m <= points.

        Both rise from 0 to 1, at about equal distances along the curve. Empty with only one class.
        """
        negative, positive = self._counts[:, ::-1]
        if not negative.sum() or not positive.sum():
            return np.empty(0), np.empty(0)
        rates = [np.append(0.0, np.cumsum(side) / side.sum()) for side in (negative, positive)]
        chosen = np.unique(np.searchsorted(rates[0] + rates[1], np.linspace(0, 2, points)).clip(max=BINS))
        return rates[0][chosen], rates[1][chosen]

    def calibration(self, groups: int = 20) -> CalibrationBins:
        """Return groups of about equal weight, sorted by prediction, without empty ones; float64[<= groups].

        Like the quantiles of scikit-learn's `calibration_curve`, but equal predictions stay together.
        """
        weight = self._counts.sum(axis=0)
        used = np.flatnonzero(weight)
        below = np.cumsum(weight[used]) - weight[used]
        group = np.minimum(below * groups // max(weight.sum(), 1e-300), groups - 1).astype(np.int64)
        sums = [
            np.bincount(group, values[used], groups)
            for values in (self._predicted.sum(axis=0), self._counts[1], weight)
        ]
        predicted, observed, total = (np.asarray(values[sums[2] > 0], np.float64) for values in sums)
        return CalibrationBins(predicted / total, observed / total, total)
