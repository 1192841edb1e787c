"""The kill loop: a training process is killed again and again, at random instants and inside its saves.

`python -m tests.chaos.kills --kills 200 --seed 1` prints what was found; `run` is the same for a test. Half
of the kills are of one process alone, here; the others are of `cluster_kills`.

After each kill every committed snapshot is read whole and compared, tensor by tensor and row by row, with the
one that an undisturbed run has at that step; the newest one may not be older than before; and whenever a run
gets to its end, its model must be that of the undisturbed run.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from satrap import faults, launch
from satrap.checkpoint import Background, Series
from satrap.config import load
from tests.chaos.cluster_kills import CLUSTERS, ClusterLoop, evicts, rows_of
from tests.chaos.cluster_kills import Found as ClusterFound
from tests.chaos.digests import differences, digest
from tests.launch.runs import RECIPE, bounded, make_recipe

MODES = {
    "hybrid": "mode: hybrid, staleness: 3",
    "sync": "mode: sync",
    "hybrid that evicts": "mode: hybrid, staleness: 3",
}
POINTS = "*"
HITS = 600
"""About how many fault points a run passes."""


@dataclass
class Found:
    """What the loop did and saw."""

    kills: int = 0
    inside_saves: int = 0
    finished: int = 0
    snapshots_checked: int = 0
    kills_before_any_snapshot: int = 0


def recipe_text(mode: str, every: int, keep: int) -> str:
    text = RECIPE.replace(
        "mode: hybrid, staleness: 2, epochs: 2", f"{MODES[mode]}, epochs: 6, patience: null"
    )
    text = text.replace("hidden: [8]", "hidden: [8], dropout: 0.2")
    if evicts(mode):
        text = bounded(text, "128KiB")
    return text + f"checkpoint: {{every_steps: {every}, keep: {keep}}}\n"


def child(recipe: str, output: str, resume: bool, kill_at: int | None) -> None:
    """Train, in a process of its own; die at a fault point if told so."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    if kill_at is not None:
        with faults.armed(POINTS, faults.kill, at=kill_at):
            launch.train(load(recipe), output, resume=resume)
    else:
        launch.train(load(recipe), output, resume=resume)


class Loop:
    def __init__(self, place: Path, seed: int) -> None:
        self.place, self.random = place, random.Random(seed)
        self.found = Found()
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.chaos.kills"])
        self.expected: dict[str, dict[int, dict[str, str]]] = {}
        self.models: dict[str, dict[str, str]] = {}
        self._number = 0
        self._seconds = 3.0
        for mode in MODES:
            self._reference(mode)

    def _reference(self, mode: str) -> None:
        """Run undisturbed, with a snapshot at every step."""
        folder = self.place / f"reference-{mode}"
        recipe = make_recipe(folder, recipe_text(mode, 1, 10**6), rows_of(mode, 2000))
        start, Background.start = Background.start, lambda self, job: job()  # type: ignore[method-assign]
        try:
            launch.train(load(recipe), str(folder / "run"))
        finally:
            Background.start = start  # type: ignore[method-assign]
        series = Series(str(folder / "run" / "checkpoints"))
        self.expected[mode] = {step: digest(series.place(step)) for step in series.steps()}
        self.models[mode] = digest(str(folder / "run" / "model"))
        assert len(series.steps()) == 96
        shutil.rmtree(folder)

    def kill_until(self, kills: int, seconds: float | None = None) -> Found:
        """Kill that often, or until the time is up."""
        until = None if seconds is None else time.monotonic() + seconds
        while self.found.kills < kills and (until is None or time.monotonic() < until):
            self._one_run(kills, until)
        return self.found

    def _one_run(self, kills: int, until: float | None) -> None:
        """Train one run to its end, however often it is killed on the way."""
        mode = self.random.choice(list(MODES))
        self._number += 1
        folder = self.place / f"run-{self._number}"
        recipe = make_recipe(
            folder, recipe_text(mode, self.random.choice([3, 7, 16]), 2), rows_of(mode, 2000)
        )
        newest = None
        while True:
            more = self.found.kills < kills and (until is None or time.monotonic() < until)
            if newest is None and (folder / "run").exists():
                shutil.rmtree(folder / "run")
            if self._attempt(recipe, folder / "run", newest is not None, more):
                break
            newest = self._check(mode, folder / "run", newest)
        wrong = differences(digest(str(folder / "run" / "model")), self.models[mode])
        assert not wrong, f"another result: {wrong}"
        self._check(mode, folder / "run", newest)
        self.found.finished += 1
        shutil.rmtree(folder)

    def _attempt(self, recipe: Path, output: Path, resume: bool, kill: bool) -> bool:
        """Start the run or go on with it; return whether it got to its end."""
        inside = kill and self.random.random() < 0.5
        at = self.random.randint(1, HITS if self.random.random() < 0.3 else 120) if inside else None
        process = self._context.Process(target=child, args=(str(recipe), str(output), resume, at))
        begun = time.monotonic()
        process.start()
        if kill and not inside:
            process.join(self.random.uniform(0, 1.2 * self._seconds))
            if process.is_alive():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
        process.join(120)
        code = process.exitcode
        if code == 0:
            self._seconds = 0.5 * self._seconds + 0.5 * (time.monotonic() - begun)
            return True
        assert code == -signal.SIGKILL, f"the run failed by itself: exit code {code}"
        self.found.kills += 1
        self.found.inside_saves += inside
        return False

    def _check(self, mode: str, run: Path, before: int | None) -> int | None:
        """Every snapshot that a reader finds is right; return the newest."""
        series = Series(str(run / "checkpoints"))
        steps = series.steps()
        for step in steps:
            series.verify(step)
            wrong = differences(digest(series.place(step)), self.expected[mode][step])
            assert not wrong, f"{mode}, step {step}: {wrong}"
            self.found.snapshots_checked += 1
        newest = max(steps, default=None)
        assert before is None or (newest is not None and newest >= before), f"{before} was lost"
        self.found.kills_before_any_snapshot += newest is None
        return newest


def run(kills: int, *, seed: int, seconds: float | None = None) -> Found:
    """Kill that often (or for so long) and check; an AssertionError says what is wrong."""
    with tempfile.TemporaryDirectory(prefix="satrap-kills-") as place:
        return Loop(Path(place), seed).kill_until(kills, seconds)


def run_cluster(kills: int, *, seed: int, kinds: Sequence[str] = tuple(CLUSTERS)) -> ClusterFound:
    """Do the same to runs with shards and workers."""
    with tempfile.TemporaryDirectory(prefix="satrap-kills-") as place:
        return ClusterLoop(Path(place), seed, kinds).kill_until(kills)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill training processes and check what they left.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=["process", "cluster"], default=None)
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    own = {"process": given.kills, "cluster": 0, None: given.kills // 2}[given.only]
    if own:
        print("one process:", json.dumps(asdict(run(own, seed=seed))), flush=True)
    if given.kills > own:
        print("shards and workers:", json.dumps(asdict(run_cluster(given.kills - own, seed=seed))))


if __name__ == "__main__":
    main()
