"""Follows the snapshots of a run that trains: loads each new one aside, then scores with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from satrap.checkpoint import Series
from satrap.errors import ConfigError, SatrapError
from satrap.serve.model import ServedModel
from satrap.serve.scorer import Scorer

POLL_SECONDS = 0.5
"""Between two looks at the folder."""


@dataclass(slots=True)
class FollowerStatistics:
    """Counters of a `Follower`.

    Attributes:
        updates: snapshots that took the place of an older one.
        refused: snapshots that could not be used.
        seconds: time from noticing a snapshot until it was served, of all together.
        latest: step of the newest snapshot in the folder; -1: none was seen.
    """

    updates: int = 0
    refused: int = 0
    seconds: float = 0.0
    latest: int = -1


class Follower:
    """Looks for new snapshots in a thread, and swaps them in, so that steps never fall.

    A snapshot that cannot be used is refused once, with a notice; the model before it continues to answer,
    and the next snapshot is tried. While one is loaded, both are in memory.

    ```python
    with Follower(series, load, scorer, notice=print):
        server.run()
    ```

    Args:
        series: the snapshots.
        load: returns the model of a step.
        scorer: to swap models of.
        notice: called with a text about each refused snapshot.

    Attributes:
        statistics: counters, which any thread may read.
    """

    def __init__(
        self,
        series: Series,
        load: Callable[[int], ServedModel],
        scorer: Scorer,
        *,
        notice: Callable[[str], object],
    ) -> None:
        self.statistics = FollowerStatistics()
        self._series, self._load, self._scorer, self._notice = series, load, scorer, notice
        self._tried = scorer.model.step
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="satrap-follower", daemon=True)

    def __enter__(self) -> Follower:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        unreachable = ""
        while not self._stopping.wait(POLL_SECONDS):
            try:
                step = self._series.latest()
                unreachable = ""
            except SatrapError as error:  # a store that does not answer may come back
                if unreachable != str(error):
                    unreachable = str(error)
                    self._notice(f"warning: {error}")
                continue
            if step is not None:
                self.statistics.latest = step
                if step > self._tried:
                    self._tried = step
                    self._update(step)

    def _update(self, step: int) -> None:
        start = monotonic()
        try:
            model = self._load(step)
            try:
                self._scorer.swap(model)
            except ConfigError:
                model.close()
                raise
        except SatrapError as error:
            self.statistics.refused += 1
            self._notice(
                f"warning: step {step} is not served: {error}\n"
                f"  step {self._scorer.model.step} continues to answer; the next snapshot is tried"
            )
            return
        self.statistics.updates += 1
        self.statistics.seconds += monotonic() - start
