"""What a worker reports about its training, and how observers in another process follow it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from satrap.events import Event, Report
from satrap.train import Observer, Progress, Result

STEP_SECONDS = 0.2
"""Seconds between two reported steps; the first step of each epoch is always reported."""


class TrainingEvent(Event):
    """Base of the events with a `Progress` or a `Result`."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the event with these values, which have passed through JSON."""
        if "progress" in values:
            values["progress"] = Progress.of(values["progress"])
        if "result" in values:
            values["result"] = _result(values["result"])
        return cls(**values)


def _result(values: Mapping[str, Any]) -> Result:
    staleness = {int(missed): lookups for missed, lookups in values["staleness"].items()}
    return Result(**{**values, "staleness": staleness, "history": tuple(values["history"])})


@dataclass(frozen=True)
class Started(TrainingEvent):
    """Training begins."""

    progress: Progress


@dataclass(frozen=True)
class Stepped(TrainingEvent):
    """A step was taken."""

    progress: Progress


@dataclass(frozen=True)
class Evaluated(TrainingEvent):
    """The validation rows were scored."""

    metrics: Mapping[str, float]
    progress: Progress


@dataclass(frozen=True)
class Finished(TrainingEvent):
    """`fit` has returned."""

    result: Result


@dataclass(frozen=True)
class Trained(TrainingEvent):
    """The model is saved and the test rows, if any, are scored."""

    result: Result
    test: Mapping[str, float]


class Forward(Observer):
    """Reports what a trainer sends to its observers."""

    def __init__(self, report: Report) -> None:
        self._report, self._sent_at, self._epoch = report, 0.0, -1

    def started(self, progress: Progress) -> None:
        """Report the beginning."""
        self._report(Started(progress))

    def step(self, progress: Progress) -> None:
        """Report a step when it is time."""
        now = time.monotonic()
        if now - self._sent_at >= STEP_SECONDS or progress.epoch != self._epoch:
            self._sent_at, self._epoch = now, progress.epoch
            self._report(Stepped(progress))

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Report the metrics."""
        self._report(Evaluated(metrics, progress))

    def finished(self, result: Result) -> None:
        """Report the totals."""
        self._report(Finished(result))


def tell(observer: Observer, event: Event) -> None:
    """Call the method of an observer that a `Forward` reported; ignore other events."""
    match event:
        case Started(progress):
            observer.started(progress)
        case Stepped(progress):
            observer.step(progress)
        case Evaluated(metrics, progress):
            observer.evaluated(metrics, progress)
        case Finished(result):
            observer.finished(result)
