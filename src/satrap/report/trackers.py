"""Observers that send a run to an experiment tracker; satrap does not need the tracker's package."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from satrap.runtime.formatting import quality
from satrap.train.progress.observer import Observer, Progress, Result
from satrap.train.progress.progress_line import window


class Tracker(Observer, ABC):
    """Base of the observers below: sends numbers by name and step.

    Every `every` steps, default 20, it sends `train/loss`, `train/auc`, `samples_per_second` and `rows`; for
    each evaluation `validation/auc` and the other metrics; at the end the totals. Non-finite numbers are
    skipped.
    """

    def __init__(self, *, every: int = 20) -> None:
        self.every = every

    @abstractmethod
    def send(self, values: dict[str, float], step: int) -> None:
        """Send some numbers of one step."""

    def step(self, progress: Progress) -> None:
        """Send training figures every `every` steps."""
        if progress.step % self.every == 0:
            names = ("samples_per_second", "rows")
            training = window(progress)
            figures = {"train/loss": progress.loss, **{f"train/{name}": training[name] for name in training}}
            self._send(figures | {name: getattr(progress, name) for name in names}, progress.step)

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
        run: result of `wandb.init`; its `log(values, step=...)` is called.
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
        client: the module `mlflow`, or any object with `log_metrics(values, step=...)`.
        every: see `Tracker`.
    """

    def __init__(self, client: Any, *, every: int = 20) -> None:
        super().__init__(every=every)
        self._client = client

    def send(self, values: dict[str, float], step: int) -> None:
        """Send some numbers of one step."""
        self._client.log_metrics(values, step=step)
