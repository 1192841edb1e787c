"""Follows a run that trains: reads each new version aside, then scores with it."""

from __future__ import annotations

from collections.abc import Callable

from satrap.checkpoint import Series
from satrap.checkpoint.chain import deltas_since
from satrap.errors import ConfigError
from satrap.serve.errors import RequestError
from satrap.serve.model import ServedModel
from satrap.serve.scorer import Scorer
from satrap.serve.update import Update
from satrap.serve.watch import Watcher

FOLD_SECONDS = 0.005
"""Between two looks whether the rows of the update before have been written."""


class Follower(Watcher):
    """Has new versions, of a feed or snapshots, served; steps never fall.

    Of deltas that follow the served version, only the rows that changed are read. Else all of the version is
    loaded aside, and both are in memory meanwhile.

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
    """

    def __init__(
        self,
        series: Series,
        load: Callable[[int], ServedModel],
        scorer: Scorer,
        *,
        notice: Callable[[str], object],
    ) -> None:
        super().__init__(series, scorer.model.step, notice)
        self._load, self._scorer = load, scorer

    @property
    def _step(self) -> int:
        return self._scorer.model.step

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

    def _take(self, step: int) -> None:
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
