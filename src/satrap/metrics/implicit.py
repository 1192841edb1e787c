"""Metrics of an implicit label: none but the number of samples, because the label is 1 in all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class ImplicitMetrics:
    """Counts samples; see `RankingMetrics` for the quality of a model of an implicit label."""

    def __init__(self) -> None:
        self.totals = np.zeros(1, np.float64)

    def update(self, labels: Array, predictions: Array, weights: Array) -> None:
        """Add n samples, arrays [n, ...]."""
        self.totals[0] += len(labels)

    def reset(self) -> None:
        """Remove all samples."""
        self.totals[0] = 0

    def merge(self, other: ImplicitMetrics) -> None:
        """Add the samples of `other`."""
        self.totals += other.totals

    def compute(self) -> dict[str, float]:
        """Return `samples`, their number."""
        return {"samples": int(self.totals[0])}

    def state(self) -> dict[str, Array]:
        """Return the state as plain arrays."""
        return {"totals": self.totals.copy()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the state."""
        self.totals = state["totals"].astype(np.float64)
