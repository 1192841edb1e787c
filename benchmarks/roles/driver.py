"""Trains a recipe and records when each role was requested, ran, was ready and took its first step."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from satrap import launch
from satrap.config import load
from satrap.launch.cluster import driver
from satrap.launch.cluster.worker_events import StepTaken
from satrap.launch.launchers.launcher import Launcher, Role
from satrap.launch.launchers.ray_launcher import RayLauncher
from satrap.runtime.events import Event, MetricsServed


class Noted:
    """A launcher that records its events with their times; otherwise unchanged."""

    def __init__(self, launcher: Launcher, file: TextIO) -> None:
        self._launcher, self._file = launcher, file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._launcher, name)

    def start(self, role: Role) -> None:
        """See `Launcher.start`."""
        note(self._file, "asked", role.name)
        self._launcher.start(role)

    def events(self, seconds: float) -> Sequence[tuple[str, Event]]:
        """See `Launcher.events`."""
        heard = self._launcher.events(seconds)
        for name, event in heard:
            if isinstance(event, StepTaken) and event.progress.step == 0:
                continue
            address = event.address if isinstance(event, MetricsServed) else ""
            note(self._file, type(event).__name__, name, address)
        return heard


def note(file: TextIO, what: str, name: str = "", value: str = "") -> None:
    """Write one line: the time on the machine's monotonic clock, event, role, a value."""
    file.write(json.dumps([time.monotonic(), what, name, value]) + "\n")
    file.flush()


def main() -> None:
    """Train `argv[1]` into the folder `argv[2]`, with settings; record events in the file `argv[3]`."""
    recipe, folder, notes, *settings = sys.argv[1:]
    with Path(notes).open("w") as file:
        make, place = driver._launcher, RayLauncher._place

        def noted(*arguments: Any) -> Any:
            note(file, "launcher")
            made = make(*arguments)
            note(file, "reserved")
            return Noted(made, file)

        def placed(*arguments: Any) -> None:
            note(file, "connected")
            place(*arguments)

        vars(driver)["_launcher"] = noted
        RayLauncher._place = placed  # type: ignore[method-assign]
        launch.train(load(recipe, settings), folder, notice=lambda line: print(line, flush=True))


if __name__ == "__main__":
    main()
