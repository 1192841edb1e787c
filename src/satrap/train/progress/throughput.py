"""Measures the time of a run and estimates its length."""

from __future__ import annotations

import math
import time
from typing import Any

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.train.progress.observer import Progress


class Clock:
    """A stopwatch that starts at `spent` seconds."""

    def __init__(self, spent: float = 0.0) -> None:
        self._spent = spent
        self._since: float | None = None

    def start(self) -> None:
        """Start or continue counting."""
        self._since = time.perf_counter()

    def stop(self) -> None:
        """Pause."""
        self._spent, self._since = self.seconds, None

    @property
    def seconds(self) -> float:
        """Seconds so far, at least a nanosecond."""
        running = 0.0 if self._since is None else time.perf_counter() - self._since
        return max(self._spent + running, 1e-9)


class Length:
    """The number of samples of all epochs: known, estimated from the position in the files, or None."""

    def __init__(self, epochs: int) -> None:
        self._epochs, self._data, self._exact = epochs, None, False
        self.before = 0
        self.total: int | None = None

    def of(self, data: Any, workers: Workers) -> None:
        """Use `num_rows` and `progress` of a data set, if it has them.

        Each worker passes its share of the data; the total counts all.
        """
        self._data = data
        rows = data.num_rows() if hasattr(data, "num_rows") else None
        workers.meet("length of the data")  # a barrier: counting rows may take much longer than a step
        [total] = workers.data.count([math.nan if rows is None else rows])
        self._know(None if math.isnan(total) else int(total))

    def look(self, batch: Batch, progress: Progress) -> None:
        """Estimate the total from the batch's position in the files, unless it is known."""
        if self._exact or self._data is None or not hasattr(self._data, "progress") or not batch.position:
            return
        share = self._data.progress(batch.position, progress.epoch)
        if share:
            self.total = round((progress.samples - self.before) / share * self._epochs)

    def epoch_ended(self, progress: Progress) -> None:
        """Count a whole epoch: all epochs have the same number of samples."""
        if not self._exact:
            self._know(progress.samples - self.before)
        self.before = progress.samples

    def _know(self, rows: int | None) -> None:
        if rows is not None:
            self.total, self._exact = rows * self._epochs, True
