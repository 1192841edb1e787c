"""The kill loop of runs with shards and workers: one of their processes is killed again and again.

Half of the kills come at random instants, half while a snapshot is being written. A killed worker or shard
makes the launcher start all workers again; after a killed launcher the run is gone on with by `--resume`.
Then every committed snapshot is read whole; two snapshots of one step, whatever was killed before them, must
be equal, tensor by tensor and row by row; and a run that gets to its end must leave the model of an
undisturbed run.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from satrap.checkpoint import Series
from tests.chaos.digests import differences, digest
from tests.cli.command import SATRAP
from tests.cluster.runs import alive, children
from tests.launch.runs import RECIPE, bounded, frame, make_recipe

CLUSTERS = {
    "sync": ("mode: sync", "{exchange: servers, workers: 2, shards: 2"),
    "hybrid": ("mode: hybrid, staleness: 3", "{exchange: servers, workers: 1, shards: 2"),
    "sync that evicts": ("mode: sync", "{exchange: servers, workers: 2, shards: 2"),
}
"""Those whose runs are exact."""

EPOCHS, EVERY = 12, 11
WAIT = 300.0
PATIENCE = 120.0
"""Seconds in which a save begins, also on a busy machine that takes half a minute to start a run."""


@dataclass
class Found:
    """What the loop did and saw."""

    kills: dict[str, int] = field(default_factory=dict)
    inside_saves: int = 0
    finished: int = 0
    snapshots_checked: int = 0


def recipe_text(kind: str) -> str:
    mode, cluster = CLUSTERS[kind]
    wire = "wire: {forward: float32, backward: float32}, restarts: 1000}"
    text = RECIPE.replace(
        "mode: hybrid, staleness: 2, epochs: 2", f"{mode}, epochs: {EPOCHS}, patience: null"
    )
    text = text.replace("hidden: [8]", "hidden: [8], dropout: 0.2")
    if evicts(kind):
        text = bounded(text, "256KiB")
    return text + f"cluster: {cluster}, {wire}\ncheckpoint: {{every_steps: {EVERY}, keep: 2}}\n"


def evicts(kind: str) -> bool:
    return kind.endswith("evicts")


def rows_of(kind: str, count: int = 8000) -> pd.DataFrame:
    return frame(count, sorts=40 if evicts(kind) else 1)


class ClusterLoop:
    """Kills until told to stop.

    Args:
        place: an empty folder.
        seed: of what is killed and when.
        kinds: of `CLUSTERS`; default all.
    """

    def __init__(self, place: Path, seed: int, kinds: Sequence[str] = tuple(CLUSTERS)) -> None:
        self.place, self.random, self.found = place, random.Random(seed), Found()
        self._kinds = kinds
        self._models: dict[str, dict[str, str]] = {}
        self._snapshots: dict[tuple[str, int], dict[str, str]] = {}
        self._number = 0

    def kill_until(self, kills: int, seconds: float | None = None) -> Found:
        """Kill that often, or until the time is up; the run under way is finished."""
        until = None if seconds is None else time.monotonic() + seconds
        while sum(self.found.kills.values()) < kills and (until is None or time.monotonic() < until):
            self._one_run(kills, until)
        return self.found

    def _one_run(self, kills: int, until: float | None) -> None:
        kind = self.random.choice(self._kinds)
        if kind not in self._models:
            self._models[kind] = self._undisturbed(kind)
        self._number += 1
        folder = self.place / f"run-{self._number}"
        recipe = make_recipe(folder, recipe_text(kind), rows_of(kind))
        run, resume = folder / "run", False
        while True:
            more = sum(self.found.kills.values()) < kills and (until is None or time.monotonic() < until)
            ended = self._attempt(kind, recipe, run, resume, more)
            self._check(kind, run)
            if ended:
                break
            resume = Series(str(run / "checkpoints")).latest() is not None
            if not resume:
                shutil.rmtree(run, ignore_errors=True)
        wrong = differences(digest(str(run / "model")), self._models[kind])
        assert not wrong, f"{kind}: another result: {wrong}"
        self.found.finished += 1
        shutil.rmtree(folder)

    def _undisturbed(self, kind: str) -> dict[str, str]:
        folder = self.place / f"reference-{kind}"
        recipe = make_recipe(folder, recipe_text(kind), rows_of(kind))
        process = start(recipe, folder / "run", False)
        assert process.wait(WAIT) == 0
        self._check(kind, folder / "run")
        return digest(str(folder / "run" / "model"))

    def _attempt(self, kind: str, recipe: Path, run: Path, resume: bool, kill: bool) -> bool:
        """Start the run or go on with it, and kill until it ends; return whether it got to its end."""
        process, killed = start(recipe, run, resume), ""
        roles: dict[str, int] = {}
        while kill and killed not in ("shard", "launcher"):
            inside = self._wait_for_an_instant(process, run)
            if process.poll() is not None:
                break
            roles = children(process.pid)
            victims = {**roles, "launcher": process.pid}
            name = self.random.choice(sorted(victims))
            with contextlib.suppress(ProcessLookupError):
                os.kill(victims[name], signal.SIGKILL)
                killed = name.split()[0]
                self.found.kills[killed] = self.found.kills.get(killed, 0) + 1
                self.found.inside_saves += inside
            if killed == "worker" and self.random.random() < 0.5:
                break  # this time let it get to the end, or further
        code = process.wait(WAIT)
        limit = time.monotonic() + 20
        while any(map(alive, roles.values())):
            assert time.monotonic() < limit, "a process is left"
            time.sleep(0.02)
        assert code in (0, 1, -signal.SIGKILL), code
        assert code == 0 or killed in ("shard", "launcher"), (
            f"the run failed by itself after a killed {killed!r}"
        )
        return code == 0

    def _wait_for_an_instant(self, process: subprocess.Popen[bytes], run: Path) -> bool:
        """Return at a random instant, or as soon as a save is under way; whether it is the latter."""
        until = time.monotonic() + self.random.uniform(0.0, 8.0)
        inside = self.random.random() < 0.5
        late = until + PATIENCE if inside else until
        while time.monotonic() < late and process.poll() is None:
            if inside and time.monotonic() > until and saving(run):
                time.sleep(self.random.uniform(0.0, 0.01))
                return True
            time.sleep(0.001)
        return False

    def _check(self, kind: str, run: Path) -> None:
        """Every snapshot that a reader finds is whole, and equal to any other of its step."""
        series = Series(str(run / "checkpoints"))
        for step in series.steps():
            series.verify(step)
            found = digest(series.place(step))
            wrong = differences(found, self._snapshots.setdefault((kind, step), found))
            assert not wrong, f"{kind}, step {step}: {wrong}"
            self.found.snapshots_checked += 1


def start(recipe: Path, run: Path, resume: bool) -> subprocess.Popen[bytes]:
    command = [SATRAP, "train", recipe, "--output", run, *(["--resume"] if resume else [])]
    log = run.with_suffix(".log").open("ab")
    with log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def saving(run: Path) -> bool:
    """Whether a snapshot has begun to be written and is not complete."""
    try:
        steps = list((run / "checkpoints").glob("step-*"))
        return any(not (step / "manifest.json").exists() and any(step.iterdir()) for step in steps)
    except OSError:
        return False
