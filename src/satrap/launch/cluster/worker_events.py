"""Events of a worker's training, and their delivery to observers in another process."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from satrap.errors import error_of, error_values
from satrap.exchange.shard_map import ShardMap
from satrap.runtime.events import Event, Report
from satrap.train import Observer, Progress, Result
from satrap.train.resharding.requests import ReshardResult

STEP_SECONDS = 0.2
"""Seconds between two reported steps; the first step of each epoch is always reported."""


class TrainingEvent(Event):
    """Base of events with a `Progress` or a `Result`."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the event with values that were decoded from JSON."""
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
class StepTaken(TrainingEvent):
    """A step was taken."""

    progress: Progress


@dataclass(frozen=True)
class Evaluated(TrainingEvent):
    """The validation rows were scored."""

    metrics: Mapping[str, float]
    progress: Progress


@dataclass(frozen=True)
class EventHour(TrainingEvent):
    """An hour of events of a stream was trained on."""

    hour: str
    metrics: Mapping[str, float]
    progress: Progress


@dataclass(frozen=True)
class Finished(TrainingEvent):
    """`fit` has returned."""

    result: Result


@dataclass(frozen=True)
class RowsMoved(Event):
    """An order for the shards was carried out or failed."""

    moved: ReshardResult

    def values(self) -> dict[str, Any]:
        """Return the event as plain data."""
        plain = {field.name: getattr(self.moved, field.name) for field in fields(ReshardResult)}
        error = None if self.moved.error is None else error_values(self.moved.error)
        return {"moved": {**plain, "map": self.moved.map.to_dict(), "error": error}}

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Return the event from plain data."""
        plain = values["moved"]
        for name in ("rows", "bytes", "traffic"):
            plain[name] = {int(shard): count for shard, count in plain[name].items()}
        error = None if plain["error"] is None else error_of(plain["error"])
        return cls(ReshardResult(**{**plain, "map": ShardMap.from_dict(plain["map"]), "error": error}))


@dataclass(frozen=True)
class Trained(TrainingEvent):
    """The model is saved and the test rows, if any, are scored."""

    result: Result
    test: Mapping[str, float]


class Forward(Observer):
    """Observer that reports a trainer's calls as events."""

    def __init__(self, report: Report) -> None:
        self._report, self._sent_at, self._epoch = report, 0.0, -1

    def started(self, progress: Progress) -> None:
        """Report the start."""
        self._report(Started(progress))

    def step(self, progress: Progress) -> None:
        """Report a step, at most every `STEP_SECONDS`."""
        now = time.monotonic()
        if now - self._sent_at >= STEP_SECONDS or progress.epoch != self._epoch:
            self._sent_at, self._epoch = now, progress.epoch
            self._report(StepTaken(progress))

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Report the metrics."""
        self._report(Evaluated(metrics, progress))

    def event_hour(self, hour: str, metrics: Mapping[str, float], progress: Progress) -> None:
        """Report the metrics of an hour of events."""
        self._report(EventHour(hour, metrics, progress))

    def finished(self, result: Result) -> None:
        """Report the totals."""
        self._report(Finished(result))


def tell(observer: Observer, event: Event) -> None:
    """Call the observer's method for an event of `Forward`; ignore other events."""
    match event:
        case Started(progress):
            observer.started(progress)
        case StepTaken(progress):
            observer.step(progress)
        case Evaluated(metrics, progress):
            observer.evaluated(metrics, progress)
        case EventHour(hour, metrics, progress):
            observer.event_hour(hour, metrics, progress)
        case Finished(result):
            observer.finished(result)
