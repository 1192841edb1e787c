"""A cheap measure of the latest training samples, for the progress line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch
from satrap.metrics import Metrics
from satrap.schema import Label

WINDOW_SAMPLES = 50_000
"""Samples per window: the AUC of this many has a standard error of about 0.003."""

SHOWN = ("auc", "accuracy", "rmse")
"""Metrics of a window; with several labels, the metrics that have a mean over labels."""


class RunningMetrics:
    """Metrics of each full window of training samples, scored before training on them.

    `values` holds the metrics in `SHOWN` that the last full window has.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self._metrics = Metrics(labels, exact_limit=0, bins=4096)
        self._samples = 0
        self.values: dict[str, float] = {}

    def add(self, batch: Batch, predicted: npt.NDArray[Any]) -> dict[str, float]:
        """Add a batch and its predictions [size, outputs]; return the values of the last full window."""
        assert batch.labels is not None
        self._metrics.update(batch.labels, predicted, mask=batch.label_mask, weights=batch.weights)
        self._samples += batch.size
        if self._samples >= WINDOW_SAMPLES:
            metrics = self._metrics.compute()
            self.values = {name: metrics[name] for name in SHOWN if name in metrics}
            self._metrics.reset()
            self._samples = 0
        return self.values

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all state as plain arrays, for a checkpoint."""
        values = [self.values.get(name, math.nan) for name in SHOWN]
        counts = np.array([self._samples, *values], np.float64)
        return {"counts": counts, **{f"metrics/{k}": v for k, v in self._metrics.state().items()}}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace all state by the arrays from `state`."""
        samples, *values = state["counts"].tolist()
        self._samples = int(samples)
        pairs = zip(SHOWN, values, strict=False)  # older snapshots have the AUC only
        self.values = {name: value for name, value in pairs if not math.isnan(value)}
        self._metrics.restore({k.removeprefix("metrics/"): v for k, v in state.items() if k != "counts"})
