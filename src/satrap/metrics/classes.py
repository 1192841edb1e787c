"""Sums of one multiclass label's predictions, and the metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.metrics.label import EPSILON
from satrap.runtime.arguments import checked

Array = npt.NDArray[Any]


@checked()
class ClassMetrics:
    """Metrics of one multiclass label.

    - `accuracy`: share of samples whose class has the largest probability; on ties, the first class counts.
    - `logloss`: mean cross-entropy in nats, probabilities clipped to at least 1.2e-7.
    - `samples`: count; weights are ignored.

    Both means are weighted by sample weights; NaN without samples. Memory does not grow.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        self.totals = np.zeros(4)  # count, then sums of w, w * right and w * loss

    def update(self, truth: Array, predictions: Array, weights: Array) -> None:
        """Add n samples: classes [n] from 0, probabilities [n, classes], weights [n]."""
        index, w = truth.astype(np.intp), np.asarray(weights, np.float64)
        right = predictions.argmax(axis=1) == index
        chosen = predictions[np.arange(len(index)), index].astype(np.float64)
        loss = -np.log(np.clip(chosen, EPSILON, 1.0))
        self.totals += [len(index), float(w.sum()), float((w * right).sum()), float((w * loss).sum())]

    def merge(self, other: ClassMetrics) -> None:
        """Add all samples of `other`, which does not change."""
        self.totals += other.totals

    def compute(self) -> dict[str, float]:
        """Return the metrics by name."""
        samples, weight, right, loss = self.totals.tolist()
        share = 1 / weight if weight > 0 else math.nan
        return {"accuracy": right * share, "logloss": loss * share, "samples": int(samples)}

    def state(self) -> dict[str, Array]:
        """Return the state as arrays."""
        return {"totals": self.totals.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the result of `state`."""
        self.totals = np.array(state["totals"], np.float64)
