"""Looks for new versions of a run that trains, in a thread, and has each one taken."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Self, TypeVar

from satrap.checkpoint import Series
from satrap.errors import CheckpointError, SatrapError
from satrap.serve.scorer import tried

T = TypeVar("T")

POLL_SECONDS = 0.2
"""Between two looks at the folder."""


LOOKS = 5
"""How often the newest version is tried at the start."""


def newest(series: Series, load: Callable[[str], T]) -> T:
    """Return what `load` makes of the place of the newest version, of which there is one.

    A version that is removed while it is read, as there are newer ones by then, is given up for the newest.

    Raises:
        CheckpointError: none can be read.
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
        updates: versions that took the place of an older one.
        reloads: how many of these were read as a whole.
        refused: versions that could not be used.
        rollbacks: how often an operator has chosen another version.
        seconds: time from noticing a version until it was served, of all together.
        latest: step of the newest version in the folder; -1: none was seen.
    """

    updates: int = 0
    reloads: int = 0
    refused: int = 0
    rollbacks: int = 0
    seconds: float = 0.0
    latest: int = -1


class Watcher(ABC):
    """Has each new version of a feed, or snapshot, taken while its block runs.

    A version that cannot be used is refused once, with a notice; the one before it continues to answer, and
    the next one is tried.

    Args:
        series: the versions.
        step: of the version that there is.
        notice: called with a text about each refused version.

    Attributes:
        statistics: counters, which any thread may read.
        pinned: whether later versions are left alone.
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
        """Step of the version that there is."""

    @abstractmethod
    def _take(self, step: int) -> None:
        """Read the version of a step, and put it in the place of the one that there is."""

    def _ready(self, newest: int) -> int | None:
        """Return the step to be taken next, if it is a later one; `newest` is that of the newest version."""
        return newest

    def _run(self) -> None:
        unreachable = ""
        while not self._stopping.wait(POLL_SECONDS):
            try:
                newest = self._series.latest()
                unreachable = ""
            except SatrapError as error:  # a store that does not answer may come back
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
            told = error if isinstance(error, SatrapError) else f"{type(error).__name__}: {error}"
            self._notice(
                f"warning: step {step} is not served: {told}\n"
                f"  step {self._step} continues to answer; the next version is tried"
            )
            return
        self.statistics.updates += 1
        self.statistics.seconds += monotonic() - start
