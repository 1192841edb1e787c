"""Follows a run that trains: reads each new version aside, then scores with it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic

from satrap.checkpoint import Series
from satrap.checkpoint.chain import deltas_since
from satrap.errors import ConfigError, SatrapError
from satrap.serve.errors import RequestError
from satrap.serve.model import ServedModel
from satrap.serve.scorer import Scorer, tried
from satrap.serve.update import Update

POLL_SECONDS = 0.2
"""Between two looks at the folder."""
FOLD_SECONDS = 0.005
"""Between two looks whether the rows of the update before have been written."""


@dataclass(slots=True)
class FollowerStatistics:
    """Counters of a `Follower`.

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


class Follower:
    """Looks for new versions, of a feed or snapshots, in a thread, and has them served; steps never fall.

    Of deltas that follow the served version, only the rows that changed are read. Else all of the version is
    loaded aside, and both are in memory meanwhile. A version that cannot be used is refused once, with a
    notice; the one before it continues to answer, and the next one is tried.

    `pin` keeps the served version, `rollback` goes back to an older one and keeps that, `release` follows
    again. The versions just before the served one are kept in memory, see `History`: going back to them is a
    swap. Any thread may call them.

    ```python
    with Follower(series, load, scorer, notice=print):
        server.run()
    ```

    Args:
        series: the versions.
        load: returns the model of a step.
        scorer: to swap models of.
        notice: called with a text about each refused version.

    Attributes:
        statistics: counters, which any thread may read.
        pinned: whether the served version is kept.
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
        self.pinned = False
        self._changing = threading.Lock()
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
            if step is None:
                continue
            self.statistics.latest = step
            with self._changing:
                if step > self._tried and not self.pinned:
                    self._tried = step
                    self._update(step)

    def steps(self) -> list[int]:
        """Return the steps of the versions that there are, ascending; raises as `Series.steps` does."""
        return self._series.steps()

    def pin(self) -> int:
        """Keep the served version until `release`; return its step."""
        with self._changing:
            self.pinned = True
            return self._scorer.model.step

    def release(self) -> int:
        """Follow again; return the step that is served until a later one is there."""
        with self._changing:
            self.pinned = False
            self._tried = self._scorer.model.step
            return self._tried

    def rollback(self, step: int) -> int:
        """Serve a version of an earlier or later step, and keep it until `release`; return its step.

        If it is not in memory, it is loaded aside; the served version continues to answer meanwhile.

        Raises:
            RequestError: there is no version of that step.
            CheckpointError: it cannot be read; nothing has changed.
        """
        with self._changing:
            if step in self._scorer.model.history.steps:
                self._go_back(step)
                self.statistics.rollbacks += 1
            elif step != self._scorer.model.step:
                if step not in (steps := self._series.steps()):
                    raise RequestError(
                        404,
                        f"there is no version of step {step}",
                        where=self._series.url,
                        fix=f"those there are: {_listed(steps)}",
                    )
                self._reload(step)
                self.statistics.rollbacks += 1
            self.pinned = True
            return step

    def _go_back(self, step: int) -> None:
        served = self._scorer.model
        if served.went_back:  # what that version changed is written back first: history does not have it now
            while not served.settled and not self._stopping.wait(FOLD_SECONDS):
                pass
        self._scorer.do(lambda: setattr(served, "held", True)).result()
        try:
            update = served.back_to(step)
            self._scorer.do(lambda: served.apply(update)).result()
        finally:
            self._scorer.do(lambda: setattr(served, "held", False)).result()

    def _update(self, step: int) -> None:
        start = monotonic()
        _, error = tried(lambda: self._serve(step))
        if error is not None:
            self.statistics.refused += 1
            told = error if isinstance(error, SatrapError) else f"{type(error).__name__}: {error}"
            self._notice(
                f"warning: step {step} is not served: {told}\n"
                f"  step {self._scorer.model.step} continues to answer; the next version is tried"
            )
            return
        self.statistics.updates += 1
        self.statistics.seconds += monotonic() - start

    def _serve(self, step: int) -> None:
        served = self._scorer.model
        deltas = deltas_since(self._series.place(step), served.version) if served.version else None
        if deltas is None:
            self._reload(step)
        else:
            self._apply(served, served.prepare(deltas))

    def _reload(self, step: int) -> None:
        model = self._load(step)
        try:
            self._scorer.swap(model).result()
        except ConfigError:
            model.close()
            raise
        self.statistics.reloads += 1

    def _apply(self, served: ServedModel, update: Update) -> None:
        while not served.settled:
            if self._stopping.wait(FOLD_SECONDS):
                update.overlay.close()
                return
        self._scorer.do(lambda: served.apply(update)).result()


def _listed(steps: list[int], most: int = 8) -> str:
    """Return some of the steps, the newest first, for people."""
    shown = ", ".join(map(str, steps[: -most - 1 : -1]))
    return f"{shown}, ..." if len(steps) > most else shown or "none"
