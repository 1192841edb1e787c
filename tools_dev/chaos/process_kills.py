"""A run in one process, killed at a random instant or at one of the calls that a save makes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests import faults

from satrap import launch
from satrap.config import load

HITS = 600
"""About how many fault points a run passes."""

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tools_dev.chaos.process_kills"])
WAIT = 1500.0
"""Seconds in which a run ends, also where a hundred processes share two cores; beyond that it hangs."""


def child(recipe: str, output: str, resume: bool, kill_at: int | None) -> None:
    """Train, in a process of its own; die at a fault point if told so."""
    log = os.open(f"{output}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if kill_at is not None:
        with faults.armed("*", faults.kill, at=kill_at):
            launch.train(load(recipe), output, resume=resume)
    else:
        launch.train(load(recipe), output, resume=resume)


class ProcessRun:
    """Starts a run of one process and kills it.

    Args:
        source: of what is random.

    Attributes:
        kills: by what was killed.
        inside: how many of these were inside a save.
    """

    def __init__(self, source: random.Random) -> None:
        self._random, self._seconds = source, 3.0
        self.kills: dict[str, int] = {}
        self.inside = 0

    def attempt(self, recipe: Path, run: Path, resume: bool, kills: int) -> bool:
        """Start the run or go on with it; return whether it got to its end.

        Args:
            recipe, run, resume: of the run.
            kills: 0: let it end.
        """
        inside = kills > 0 and self._random.random() < 0.5
        at = self._random.randint(1, HITS if self._random.random() < 0.3 else 120) if inside else None
        process = CONTEXT.Process(target=child, args=(str(recipe), str(run), resume, at))
        begun = time.monotonic()
        process.start()
        if kills > 0 and not inside:
            process.join(self._random.uniform(0, 1.2 * self._seconds))
            kill(process)
        process.join(WAIT)
        if process.exitcode == 0:
            self._seconds = 0.5 * self._seconds + 0.5 * (time.monotonic() - begun)
            return True
        assert process.exitcode == -signal.SIGKILL, (
            f"the run failed by itself: exit code {process.exitcode}\n{tail(run)}"
        )
        self.kills["process"] = self.kills.get("process", 0) + 1
        self.inside += inside
        return False


def tail(run: Path) -> str:
    """Return the end of what a run printed."""
    return run.with_suffix(".log").read_text(encoding="utf-8", errors="replace")[-3000:]


def kill(process: BaseProcess) -> None:
    if process.is_alive():
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
