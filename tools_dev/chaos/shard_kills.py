"""Shards are killed at random moments of a run, again and again; training goes on, and ends right.

`python -m tools_dev.chaos.shard_kills --kills 20 --train TRAIN.csv.gz --test TEST.csv.gz` runs Census-Income
and prints the test metrics beside those of an undisturbed run; `run` is the same for a test.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.runs import alive, children

from satrap import launch
from satrap.config import load
from satrap.train import Observer, Progress

CENSUS = Path(__file__).parents[2] / "examples" / "recipes" / "census_income.yaml"
BASE = ["cluster.exchange=servers", "cluster.shards=2", "cluster.placement=row_wise"]


@dataclass
class Found:
    """What was done and seen."""

    kills: int = 0
    test: dict[str, float] = field(default_factory=dict)
    undisturbed: dict[str, float] = field(default_factory=dict)
    largest_difference: float = 0.0
    same_bytes: bool = False
    notices: list[str] = field(default_factory=list)


class Killer(Observer):
    """Kills a shard of this process's run at each of some steps, a random moment after it.

    Args:
        steps: of the run, about.
        kills: how many.
        seed: of everything random.
    """

    def __init__(self, steps: int, kills: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.due = sorted(self.random.randrange(1, max(2, int(steps * 0.8))) for _ in range(kills))
        self.kills, self._busy = 0, threading.Lock()

    def step(self, progress: Progress) -> None:
        if self.due and progress.step >= self.due[0] and self._busy.acquire(blocking=False):
            self.due.pop(0)
            threading.Timer(self.random.uniform(0, 0.3), self._kill).start()

    def _kill(self) -> None:
        try:
            shards = [p for name, p in children(os.getpid()).items() if name.startswith("shard") and alive(p)]
            if shards:
                os.kill(self.random.choice(shards), signal.SIGKILL)
                self.kills += 1
        finally:
            self._busy.release()


def content(folder: Path) -> dict[str, bytes]:
    """Every file of the saved model."""
    (data,) = (folder / "model").glob("data-*")
    return {path.name: path.read_bytes() for path in sorted(data.iterdir())}


def train(
    recipe: Path, output: Path, settings: Sequence[str], observers: Sequence[Observer], said: Any
) -> Any:
    return launch.train(load(recipe, [*BASE, *settings]), str(output), observers=observers, notice=said)


def run(recipe: Path, place: Path, settings: Sequence[str], *, kills: int, seed: int) -> Found:
    """Train undisturbed and killed, and compare."""
    found = Found()
    quiet = train(recipe, place / "undisturbed", settings, [], lambda _: None)
    killer = Killer(quiet.result.steps, kills, seed)
    extra = [f"cluster.restarts={kills}", "cluster.deadline=60"]
    disturbed = train(recipe, place / "killed", [*settings, *extra], [killer], found.notices.append)
    found.kills, found.test, found.undisturbed = killer.kills, dict(disturbed.test), dict(quiet.test)
    names = [name for name in quiet.test if name.startswith("auc")]
    found.largest_difference = max(abs(disturbed.test[n] - quiet.test[n]) for n in names)
    found.same_bytes = content(place / "killed") == content(place / "undisturbed")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the shards of a run on Census-Income.")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--output", type=Path, default=None, help="JSON file for what was found")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    settings = [f"data.train={given.train}", f"data.test={given.test}", *given.set]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="satrap-kills-") as place:
        found = run(CENSUS, Path(place), settings, kills=given.kills, seed=seed)
    plain = {**asdict(found), "seed": seed, "settings": given.set, "seconds": time.monotonic() - begun}
    print(json.dumps(plain, indent=1))
    if given.output:
        given.output.write_text(json.dumps(plain, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
