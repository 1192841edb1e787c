"""Metrics of each hour of events, scored before training on them: progressive validation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Batch
from satrap.metrics import Metrics
from satrap.schema import Label

HOUR = 3600.0
OPEN = 2
"""Most hours that accept events at the same time; a later event closes the oldest one."""


class EventHours:
    """Metrics of the training samples of each hour of event time, for a stream with times.

    A sample is scored by the forward pass of its own step, by a model that has not been trained on it. With
    several workers these are the samples of this worker. The AUC is binned, see
    `satrap.metrics.BinaryMetrics`.

    Attributes:
        latest: time of the latest event, seconds since 1970; NaN without any.
        late: samples whose hour was closed already; they are in no metric.
    """

    def __init__(self, labels: Sequence[Label]) -> None:
        self._labels, self._hours = labels, dict[int, Metrics]()
        self.latest, self.late = float("nan"), 0

    def add(self, batch: Batch, predicted: npt.NDArray[Any]) -> Iterator[tuple[str, dict[str, float]]]:
        """Add a batch and its predictions, [size, outputs]; yield (hour, metrics) of each closed hour."""
        assert batch.times is not None
        assert batch.labels is not None
        valid = ~np.isnan(batch.times)
        if not valid.any():
            return
        self.latest = float(np.fmax(self.latest, batch.times[valid].max()))
        hours = np.floor(np.where(valid, batch.times, -HOUR) / HOUR).astype(np.int64)
        for hour in np.unique(hours[valid]).tolist():
            rows = np.flatnonzero(valid & (hours == hour))
            if hour not in self._hours:
                if len(self._hours) == OPEN and hour < min(self._hours):
                    self.late += len(rows)
                    continue
                self._hours[hour] = Metrics(self._labels, exact_limit=0, bins=4096)
                if len(self._hours) > OPEN:
                    yield self._ended(min(self._hours))
            mask, weights = batch.label_mask, batch.weights
            self._hours[hour].update(
                batch.labels[rows],
                predicted[rows],
                mask=None if mask is None else mask[rows],
                weights=None if weights is None else weights[rows],
            )

    def end(self) -> Iterator[tuple[str, dict[str, float]]]:
        """Yield the metrics of the open hours, at the end of the log."""
        for hour in sorted(self._hours):
            yield self._ended(hour)

    def _ended(self, hour: int) -> tuple[str, dict[str, float]]:
        began = datetime.fromtimestamp(hour * HOUR, UTC)
        return began.strftime("%Y-%m-%dT%H:00Z"), self._hours.pop(hour).compute()

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """Return all state as plain arrays, for a checkpoint."""
        arrays = {"counts": np.array([self.latest, self.late], np.float64)}
        for hour, metrics in self._hours.items():
            arrays |= {f"{hour}/{key}": value for key, value in metrics.state().items()}
        return arrays

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Replace all state by the arrays from `state`."""
        self.latest, late = state["counts"].tolist()
        self.late, self._hours = int(late), {}
        parts: dict[int, dict[str, npt.NDArray[Any]]] = {}
        for key, value in state.items():
            hour, slash, name = key.partition("/")
            if slash:
                parts.setdefault(int(hour), {})[name] = value
        for number, arrays in parts.items():
            self._hours[number] = Metrics(self._labels, exact_limit=0, bins=4096)
            self._hours[number].restore(arrays)
