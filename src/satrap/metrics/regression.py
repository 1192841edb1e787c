"""Sums of one regression label's errors, and the metrics computed from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.runtime.arguments import checked
from satrap.schema import Label

Array = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

SAMPLES, WEIGHT, TARGET, TARGET_SQUARED, SQUARED, ABSOLUTE, LOSS = range(7)
"""Positions in `totals`: a count, then sums of w, w * t, w * t^2, w * e^2, w * |e| and w * loss, where t is
the label minus its `mean`, and e the error."""


@checked()
class RegressionMetrics:
    """Metrics of one regression label.

    - `rmse`: root of the mean squared error; `mae`: mean absolute error; both in the label's units.
    - `r2`: 1 - mean squared error / variance of the label; 0 for predicting the mean, 1 is perfect.
    - `loss`: mean of the label's training loss, see `satrap.train.step.loss.errors`.
    - `samples`: count; weights are ignored.

    All means are weighted by sample weights; NaN if undefined. Memory does not grow.
    """

    def __init__(self, label: Label) -> None:
        self.label = label
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        self.totals: Doubles = np.zeros(7)

    def update(self, truth: Array, predictions: Array, weights: Array) -> None:
        """Add n samples: labels [n], predictions [n, 1] in the label's units, weights [n]."""
        y, p, w = (np.asarray(a, np.float64).reshape(-1) for a in (truth, predictions, weights))
        t, e = y - self.label.scale[0], p - y
        values = (w, w * t, w * t**2, w * e**2, w * np.abs(e), w * self._losses(y, p))
        self.totals += [len(y), *(float(v.sum()) for v in values)]

    def _losses(self, y: Doubles, p: Doubles) -> Doubles:
        mean, std = self.label.scale
        e = np.abs(p - y) / std
        if self.label.loss == "poisson":
            # At least the smallest float32: a prediction rounded to 0 has no logarithm.
            rate = np.maximum(p / mean, np.finfo(np.float32).tiny)
            return rate - y / mean * np.log(rate)
        if self.label.loss == "absolute":
            return e
        if self.label.loss == "huber":
            delta = self.label.delta or 1.0
            return np.where(e < delta, e**2 / 2, delta * (e - delta / 2))
        return e**2

    def merge(self, other: RegressionMetrics) -> None:
        """Add all samples of `other`, which does not change."""
        self.totals += other.totals

    def compute(self) -> dict[str, float]:
        """Return the metrics by name."""
        samples, weight, target, target_squared, squared, absolute, loss = self.totals.tolist()
        if weight == 0:
            return dict.fromkeys(("rmse", "mae", "r2", "loss"), math.nan) | {"samples": int(samples)}
        variance = target_squared / weight - (target / weight) ** 2
        return {
            "rmse": math.sqrt(squared / weight),
            "mae": absolute / weight,
            "r2": 1 - squared / weight / variance if variance > 0 else math.nan,
            "loss": loss / weight,
            "samples": int(samples),
        }

    def state(self) -> dict[str, Array]:
        """Return the state as arrays."""
        return {"totals": self.totals.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Restore the result of `state`."""
        self.totals = np.array(state["totals"], np.float64)
