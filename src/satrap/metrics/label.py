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
    samples: the ones of groups whose hash is in the first 2^-level of the range, for the smallest level that
    fits. The order of updates and merges does not matter.
    """

    def __init__(self, limit: int, bins: int, grouped: bool) -> None:
        self.limit, self.bins, self.grouped = limit, bins, grouped
        self.totals: Doubles = np.zeros(6)
        self.histogram: Doubles | None = None
        self.level = 0
        self._chunks: list[Samples] = []
        self._kept = 0

    def add(self, samples: Samples) -> None:
        """Add samples; the arrays must not change afterwards."""
        for block in blocks(*samples[:3]):
            self.totals += _sums(*block)
        self._remember(samples)

    def merge(self, other: LabelMetrics) -> None:
        """Add all samples of `other`, which does not change."""
        self.totals += other.totals
        if other.histogram is not None:
            self._fold()
            assert self.histogram is not None
            self.histogram += other.histogram
            self._narrow(max(self.level, other.level))
            self._keep(other.samples())
        else:
            self._remember(other.samples())

    def samples(self) -> Samples:
        """Return the kept samples."""
        if len(self._chunks) != 1:
            self._chunks = [Samples(*map(np.concatenate, zip(NO_SAMPLES, *self._chunks, strict=True)))]
        return self._chunks[0]

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the state as arrays; `histogram` is empty while all samples are kept."""
        return {
            "totals": self.totals.copy(),
            "histogram": np.empty((2, 0)) if self.histogram is None else self.histogram.copy(),
            "level": np.array(self.level),
            **self.samples()._asdict(),
        }

    def restore(self, state: dict[str, npt.NDArray[np.generic]]) -> None:
        """Restore the result of `state`."""
        self.totals = np.array(state["totals"], np.float64)
        histogram = np.array(state["histogram"], np.float64)
        self.histogram = histogram if histogram.size else None
        self.level = int(state["level"])
        arrays = (np.array(state[name], empty.dtype) for name, empty in NO_SAMPLES._asdict().items())
        self._chunks, self._kept = [], 0
        self._append(Samples(*arrays))

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
            "gauc_share": 0.5**self.level,
        }

    def _remember(self, samples: Samples) -> None:
        if self.histogram is not None:
            add_to_histogram(self.histogram, *samples[:3])
            self._keep(samples)
        else:
            self._append(samples)
            if self._kept > self.limit:
                self._fold()

    def _fold(self) -> None:
        """Move the samples into a histogram; keep the samples that grouped AUC needs."""
        if self.histogram is None:
            samples = self.samples()
            self.histogram = new_histogram(self.bins)
            self._chunks, self._kept = [], 0
            self._remember(samples)

    def _keep(self, samples: Samples) -> None:
        """Keep the samples of a share of the groups; halve the share while too many are kept."""
        if not self.grouped:
            return
        self._append(_of_level(samples, self.level))
        while self._kept > self.limit and self.level < 64:
            self._narrow(self.level + 1)

    def _narrow(self, level: int) -> None:
        samples = _of_level(self.samples(), level)
        self.level, self._chunks, self._kept = level, [], 0
        self._append(samples)

    def _append(self, samples: Samples) -> None:
        self._chunks.append(samples)
        self._kept += len(samples[0])


def _sums(predictions: Floats, labels: Bools, weights: Floats) -> Doubles:
    # Probability of the outcome: p for a positive, 1 - p for a negative.
    right = np.abs(np.subtract(~labels, predictions, dtype=np.float32))
    loss = -np.log(np.clip(right, EPSILON, 1 - EPSILON))
    weighted = (weights, weights * labels, weights * predictions, weights * loss)
    sums = [values.sum(dtype=np.float64) for values in weighted]
    return np.array([len(labels), np.count_nonzero(labels), *sums])


def _of_level(samples: Samples, level: int) -> Samples:
    """Return the samples whose group's hash is below 2^(64 - level)."""
    if level == 0:
        return samples
    keep = mix(samples[3]) >> np.uint64(64 - level) == 0
    return Samples(*(column[keep] for column in samples))


def mix(values: Ids) -> Ids:
    """Return well-mixed 64-bit hashes: SplitMix64, Steele et al., OOPSLA 2014."""
    # Without the increment, id 0 (a missing value) would hash to 0 and never be dropped.
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
