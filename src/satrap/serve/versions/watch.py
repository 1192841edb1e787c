"""A thread that polls a training run for new versions and loads each one."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Self, TypeVar

from satrap.checkpoint import Series
from satrap.errors import CheckpointError, SatrapError
from satrap.serve.scoring.scorer import tried

T = TypeVar("T")

POLL_SECONDS = 0.2
"""Interval between two polls of the folder."""


LOOKS = 5
"""Attempts to load the newest version at startup."""


def newest(series: Series, load: Callable[[str], T]) -> T:
    """Load the newest version of a series that is not empty; return the result of `load` for its place.

    If a version is removed during loading because newer ones exist, load the newest one instead.

    Raises:
        CheckpointError: no version can be read.
    """
    for _ in range(LOOKS - 1):
        step = series.latest() or 0
        try:
            return load(series.place(step))
        except CheckpointError:
            if series.latest() == step:
                raise
    return load(series.place(series.latest() or 0))


@dataclass(slots=True)
class FollowerStatistics:
    """Counters of a `Watcher`.

    Attributes:
        updates: versions that replaced an older one.
        reloads: updates that read a whole version.
        refused: versions that could not be used.
        rollbacks: how often an operator chose another version.
        seconds: total time from noticing a version until it was served.
        latest: step of the newest version in the folder; -1: none yet.
    """

    updates: int = 0
    reloads: int = 0
    refused: int = 0
    rollbacks: int = 0
    seconds: float = 0.0
    latest: int = -1


class Watcher(ABC):
    """Loads each new version of a feed, or each new snapshot, while its `with` block runs.

    A version that cannot be used is rejected once, with a notice. The previous version continues to answer,
    and the next one is tried.

    Args:
        series: the versions.
        step: step of the current version.
        notice: called with a text about each rejected version.

    Attributes:
        statistics: counters, which any thread may read.
        pinned: whether later versions are ignored.
    """

    def __init__(self, series: Series, step: int, notice: Callable[[str], object]) -> None:
        self.statistics = FollowerStatistics()
        self.pinned = False
        self._series, self._tried, self._notice = series, step, notice
        self._changing = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="satrap-follower", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    @property
    @abstractmethod
    def _step(self) -> int:
        """Step of the current version."""

    @abstractmethod
    def _take(self, step: int) -> None:
        """Load the version of a step, and replace the current version."""

    def _ready(self, newest: int) -> int | None:
        """Return the step to load next, if it is a later one; `newest` is the step of the newest version."""
        return newest

    def _run(self) -> None:
        unreachable = ""
        while not self._stopping.wait(POLL_SECONDS):
            try:
                newest = self._series.latest()
                unreachable = ""
            except SatrapError as error:  # an object store may be unreachable for a while
                if unreachable != str(error):
                    unreachable = str(error)
                    self._notice(f"warning: {error}")
                continue
            if newest is None:
                continue
            self.statistics.latest = newest
            with self._changing:
                step = self._ready(newest)
                if step is not None and step > self._tried and not self.pinned:
                    self._tried = step
                    self._update(step)

    def _update(self, step: int) -> None:
        start = monotonic()
        _, error = tried(lambda: self._take(step))
        if error is not None:
            self.statistics.refused += 1
            reason = error if isinstance(error, SatrapError) else f"{type(error).__name__}: {error}"
            self._notice(
                f"warning: step {step} is not served: {reason}\n"
                f"  step {self._step} remains in service; the next version will be tried"
            )
            return
        self.statistics.updates += 1
        self.statistics.seconds += monotonic() - start
