"""Follows a training run: loads each new version in the background, then serves it."""

from __future__ import annotations

from collections.abc import Callable

from satrap.checkpoint import Series
from satrap.checkpoint.chain import deltas_since
from satrap.errors import ConfigError
from satrap.serve.http.errors import RequestError
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import Scorer
from satrap.serve.versions.update import Update
from satrap.serve.versions.watch import Watcher

FOLD_SECONDS = 0.005
"""Interval between two checks whether the rows of the previous update have been written."""


class Follower(Watcher):
    """Serves each new version of a feed or of snapshots; the served step never decreases.

    If deltas connect the served version to the new one, only the changed rows are read. Otherwise the whole
    version is loaded in the background, and both versions are in memory until the swap.

    `pin` keeps the served version, `rollback` returns to an older version and pins it, `release` follows the
    run again. The versions just before the served one stay in memory, see `History`, so a rollback to them is
    a swap. Any thread may call these methods.

    ```python
    with Follower(series, load, scorer, notice=print):
        server.run()
    ```

    Args:
        series: the versions.
        load: returns the model of a step.
        scorer: serves the model.
        notice: called with a text about each rejected version.
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
        """Return the steps of the available versions, ascending; raises the errors of `Series.steps`."""
        return self._series.steps()

    def pin(self) -> int:
        """Keep the served version until `release`; return its step."""
        with self._changing:
            self.pinned = True
            return self._scorer.model.step

    def release(self) -> int:
        """Follow the run again; return the step that is served until a later version appears."""
        with self._changing:
            self.pinned = False
            self._tried = self._scorer.model.step
            return self._tried

    def rollback(self, step: int) -> int:
        """Serve the version of an earlier or later step until `release`; return its step.

        A version that is not in memory is loaded in the background, while the served version continues to
        answer.

        Raises:
            RequestError: no version has this step.
            CheckpointError: the version cannot be read; the served version is unchanged.
        """
        with self._changing:
            if step in self._scorer.model.history.steps:
                self._go_back(step)
                self.statistics.rollbacks += 1
            elif step != self._scorer.model.step:
                if step not in (steps := self._series.steps()):
                    raise RequestError(
                        404,
                        f"no version has step {step}",
                        where=self._series.url,
                        fix=f"use one of these steps: {_listed(steps)}",
                    )
                self._reload(step)
                self.statistics.rollbacks += 1
            self.pinned = True
            return step

    def _go_back(self, step: int) -> None:
        served = self._scorer.model
        if served.went_back:  # history lacks the rows of that rollback until they are written back
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
    """Return the newest steps as text, newest first."""
    shown = ", ".join(map(str, steps[: -most - 1 : -1]))
    return f"{shown}, ..." if len(steps) > most else shown or "none"
