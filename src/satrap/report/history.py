"""`metrics.jsonl`: the history of a run, one JSON object per line."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from satrap.train.progress.observer import Observer, Progress


def finite(value: Any) -> Any:
    """Return plain data with None instead of NaN and infinity, which JSON lacks."""
    if isinstance(value, Mapping):
        return {str(key): finite(inner) for key, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


class History(Observer):
    """Appends to `metrics.jsonl`: lines with "event": "step", "validation" and "event_hour".

    Each line is written at once, so the file, which is created with the first line, can be read during the
    run. A line is written every `every` steps. If writing fails, `notice` is called with a warning, once
    until writing succeeds again; training continues.
    """

    def __init__(
        self, path: Path, *, every: int = 50, notice: Callable[[str], None] = lambda _: None
    ) -> None:
        self.path, self.every = path, every
        self._notice, self._failing = notice, False
        self.steps = 0
        self.validation: Mapping[str, float] = {}

    def step(self, progress: Progress) -> None:
        """Write a line every `every` steps."""
        self.steps = progress.step
        if progress.step % self.every == 0:
            self.write("step", asdict(progress))

    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        """Write the metrics of a validation."""
        self.validation = metrics
        self.write("validation", {"step": progress.step, "epoch": progress.epoch, **metrics})

    def event_hour(self, hour: str, metrics: Mapping[str, float], progress: Progress) -> None:
        """Write the metrics of an hour of events."""
        self.write("event_hour", {"step": progress.step, "hour": hour, **metrics})

    def write(self, event: str, values: Mapping[str, Any]) -> None:
        """Append one line, or nothing if the disk lacks space for the whole line."""
        line = (json.dumps({"event": event, **finite(values)}) + "\n").encode()
        before = self.path.stat().st_size if self.path.exists() else 0
        try:
            with self.path.open("ab", buffering=0) as file:
                if file.write(line) < len(line):
                    os.truncate(self.path, before)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            if not self._failing:
                self._notice(
                    f"warning: the history of metrics has gaps, because it cannot be written: {error}"
                )
            self._failing = True
        else:
            self._failing = False
