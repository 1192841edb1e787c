"""Sums, samples and histogram of one label's predictions, and the metrics computed from them."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.metrics.auc import (
    Bools,
    Doubles,
    Floats,
    Ids,
    add_to_histogram,
    binned_auc,
    blocks,
    exact_auc,
    grouped_auc,
    new_histogram,
)
from satrap.metrics.reservoir import KeyReservoir


class Samples(NamedTuple):
    """Samples of one label, arrays `[n]`; `groups` is empty without grouped AUC."""

    predictions: Floats
    labels: Bools
    weights: Floats
    groups: Ids


NO_SAMPLES = Samples(
    np.empty(0, np.float32), np.empty(0, np.bool_), np.empty(0, np.float32), np.empty(0, np.uint64)
)

EPSILON = float(np.finfo(np.float32).eps)
"""Logloss clips probabilities to [EPSILON, 1 - EPSILON], as scikit-learn does for float32."""

SAMPLES, POSITIVES, WEIGHT, POSITIVE_WEIGHT, PREDICTED, LOSS = range(6)
"""Positions in `totals`: two counts, then sums of w, w * y, w * p and w * loss."""


class LabelMetrics:
    """Sums, samples and histogram of one label.

    Keeps up to `limit` samples. With more, AUC comes from the histogram, and only grouped AUC uses kept
    samples, see `KeyReservoir`. The order of updates and merges does not matter.
    """

    def __init__(self, limit: int, bins: int, grouped: bool) -> None:
        self.limit, self.bins, self.grouped = limit, bins, grouped
        self.totals: Doubles = np.zeros(6)
        self.histogram: Doubles | None = None
        self._kept = KeyReservoir(NO_SAMPLES._asdict(), "groups", limit)

    def add(self, samples: Samples) -> None:
        """Add samples; the arrays must not change afterwards."""
        for block in blocks(*samples[:3]):
            self.totals += _sums(*block)
        self._remember(samples)

    def merge(self, other: LabelMetrics) -> None:
        """Add all samples of `other`, which does not change."""
        self.totals += other.totals
        if other.histogram is None:
            self._remember(other.samples())
            return
        if self.histogram is None:
            self._fold()
        assert self.histogram is not None
        self.histogram += other.histogram
        self._kept.merge(other._kept)

    def samples(self) -> Samples:
        """Return the kept samples."""
        return Samples(**self._kept.rows())

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the state as arrays; `histogram` is empty while all samples are kept."""
        return {
            "totals": self.totals.copy(),
            "histogram": np.empty((2, 0)) if self.histogram is None else self.histogram.copy(),
            **self._kept.state(),
        }

    def restore(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        self.totals = np.array(state["totals"], np.float64)
        histogram = np.array(state["histogram"], np.float64)
        self.histogram = histogram if histogram.size else None
        self._kept.restore(state)

    def compute(self) -> dict[str, float]:
        """Return the metrics; NaN if undefined."""
        samples, positives, weight, positive, predicted, loss = self.totals.tolist()
        auc, bound = self._auc()
        base = positive / weight if weight > 0 else math.nan
        logloss = loss / weight if weight > 0 else math.nan
        entropy = -base * math.log(base) - (1 - base) * math.log1p(-base) if 0 < base < 1 else math.nan
        values = {
            "auc": auc,
            "logloss": logloss,
            "ne": logloss / entropy,
            "calibration": predicted / positive if positive > 0 else math.nan,
            "auc_error_bound": bound,
            "samples": int(samples),
            "positives": int(positives),
        }
        return values | (self._grouped() if self.grouped else {})

    def _auc(self) -> tuple[float, float]:
        if math.isnan(self.totals[LOSS]):
            return math.nan, math.nan
        if self.histogram is not None:
            return binned_auc(self.histogram)
        auc = exact_auc(*self.samples()[:3])
        return auc, math.nan if math.isnan(auc) else 0.0

    def _grouped(self) -> dict[str, float]:
        predictions, labels, weights, groups = self.samples()
        result = grouped_auc(groups, predictions, labels, weights)
        return {
            "gauc": math.nan if math.isnan(self.totals[LOSS]) else result.value,
            "gauc_groups": result.groups,
            "gauc_skipped": result.skipped,
            "gauc_share": self._kept.share,
        }

    def _remember(self, samples: Samples) -> None:
        if self.histogram is None and len(self._kept) + len(samples[0]) > self.limit:
            self._fold()
        if self.histogram is not None:
            add_to_histogram(self.histogram, *samples[:3])
        if self.histogram is None or self.grouped:
            self._kept.add(dict(zip(Samples._fields, samples, strict=True)))

    def _fold(self) -> None:
        """Move the samples into a histogram; keep them only for grouped AUC."""
        self.histogram = new_histogram(self.bins)
        add_to_histogram(self.histogram, *self.samples()[:3])
        if not self.grouped:
            self._kept.clear()


def _sums(predictions: Floats, labels: Bools, weights: Floats) -> Doubles:
    # Probability of the outcome: p for a positive, 1 - p for a negative.
    right = np.abs(np.subtract(~labels, predictions, dtype=np.float32))
    loss = -np.log(np.clip(right, EPSILON, 1 - EPSILON))
    weighted = (weights, weights * labels, weights * predictions, weights * loss)
    sums = [values.sum(dtype=np.float64) for values in weighted]
    return np.array([len(labels), np.count_nonzero(labels), *sums])
