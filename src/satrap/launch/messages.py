"""What workers tell the launcher: one JSON object per line."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from satrap.train import Observer, Progress, Result

STEP_SECONDS = 0.2
"""Between two steps the launcher is told about; also the first of each epoch."""

Send = Callable[..., None]


class Forward(Observer):
    """Sends what a worker's trainer tells its observers.

    Args:
        send: sends one message: a kind, and its values by name.
    """

    def __init__(self, send: Send) -> None:
        self._send, self._sent_at, self._epoch = send, 0.0, -1

    def started(self, progress: Progress) -> None:
        """Send the beginning."""
        self._send("started", progress=asdict(progress))

    def step(self, progress: Progress) -> None:
        """Send a step when it is time."""
        now = time.monotonic()
        if now - self._sent_at >= STEP_SECONDS or progress.epoch != self._epoch:
            self._sent_at, self._epoch = now, progress.epoch
            self._send("step", progress=asdict(progress))

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Send the metrics."""
        self._send("evaluated", metrics=metrics, progress=asdict(progress))

    def finished(self, result: Result) -> None:
        """Send the totals."""
        self._send("finished", result=asdict(result))


def tell(observer: Observer, message: Mapping[str, Any]) -> None:
    """Give an observer what a `Forward` sent."""
    match message["kind"]:
        case "started":
            observer.started(_progress(message))
        case "step":
            observer.step(_progress(message))
        case "evaluated":
            observer.evaluated(message["metrics"], _progress(message))
        case "finished":
            observer.finished(result_of(message["result"]))


def _progress(message: Mapping[str, Any]) -> Progress:
    return Progress.of(message["progress"])


def result_of(values: Mapping[str, Any]) -> Result:
    """Return a result from its values as plain data, as JSON changes them."""
    staleness = {int(missed): lookups for missed, lookups in values["staleness"].items()}
    return Result(**{**values, "staleness": staleness, "history": tuple(values["history"])})


def parse(line: str) -> dict[str, Any] | None:
    """Return a message, or None if a line is none."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) and "kind" in message else None
