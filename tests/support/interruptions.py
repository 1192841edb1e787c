"""Observers that kill a run, stop it or press Ctrl-C at a given step."""

from __future__ import annotations

from satrap.train import Observer, Progress, Trainer


class KilledError(Exception):
    """Stands for SIGKILL: nothing is cleaned up or saved."""


class KillAt(Observer):
    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            raise KilledError


class StopAt(Observer):
    def __init__(self, trainer: Trainer, step: int) -> None:
        self.trainer, self.at = trainer, step

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            self.trainer.request_stop()


class Stop(Observer):
    """Presses Ctrl-C at a step."""

    def __init__(self, step: int) -> None:
        self.at = step

    def step(self, progress: Progress) -> None:
        if progress.step == self.at:
            raise KeyboardInterrupt
