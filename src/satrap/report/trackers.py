"""Observers that send a run to an experiment tracker; the tracker's package is not needed by satrap."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from satrap.train.observer import Observer, Progress, Result
from satrap.train.progress_line import window
from satrap.words import quality


class Tracker(Observer, ABC):
    """Base of the observers below: sends numbers by name and step.

    Every `every` steps, default 20, it sends `train/loss`, `train/auc`, `samples_per_second` and `rows`; of
    each evaluation `validation/auc` and the other metrics; at the end the totals. Numbers that are not finite
    are left out.
    """

    def __init__(self, *, every: int = 20) -> None:
        self.every = every

    @abstractmethod
    def send(self, values: dict[str, float], step: int) -> None:
        """Send some numbers of one step."""

    def step(self, progress: Progress) -> None:
        """Send training figures in every `every`-th step."""
        if progress.step % self.every == 0:
            names = ("samples_per_second", "rows")
            known = window(progress)
            own = {"train/loss": progress.loss, **{f"train/{name}": known[name] for name in known}}
            self._send(own | {name: getattr(progress, name) for name in names}, progress.step)

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Send the metrics of an evaluation."""
        self._send({f"validation/{name}": value for name, value in quality(metrics).items()}, progress.step)

    def event_hour(self, hour: str, metrics: Mapping[str, float], progress: Progress) -> None:
        """Send the metrics of an hour of events."""
        self._send({f"event_hour/{name}": value for name, value in quality(metrics).items()}, progress.step)

    def finished(self, result: Result) -> None:
        """Send the totals."""
        totals = {"seconds": result.seconds, "samples": result.samples, "refused": result.refused}
        self._send({f"total/{name}": value for name, value in totals.items()}, result.steps)

    def _send(self, values: Mapping[str, float], step: int) -> None:
        self.send({name: float(value) for name, value in values.items() if math.isfinite(value)}, step)


class WandbTracker(Tracker):
    """Sends to a run of Weights & Biases.

    ```python
    run = wandb.init(project="clicks")
    trainer.fit(train, validation=validation, observers=[WandbTracker(run)])
    ```

    Args:
        run: what `wandb.init` returned; its `log(values, step=...)` is called.
        every: see `Tracker`.
    """

    def __init__(self, run: Any, *, every: int = 20) -> None:
        super().__init__(every=every)
        self._run = run

    def send(self, values: dict[str, float], step: int) -> None:
        """Send some numbers of one step."""
        self._run.log(values, step=step)


class MLflowTracker(Tracker):
    """Sends to the active run of MLflow.

    ```python
    with mlflow.start_run():
        trainer.fit(train, validation=validation, observers=[MLflowTracker(mlflow)])
    ```

    Args:
        client: the module `mlflow`, or anything with its `log_metrics(values, step=...)`.
        every: see `Tracker`.
    """

    def __init__(self, client: Any, *, every: int = 20) -> None:
        super().__init__(every=every)
        self._client = client

    def send(self, values: dict[str, float], step: int) -> None:
        """Send some numbers of one step."""
        self._client.log_metrics(values, step=step)
