"""Measured runs of a recipe; `satrap plan --simulate` derives the cost of each operation from them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from satrap.config import load
from satrap.launch.folder.run_folder import write_whole
from satrap.launch.placement import check_tables
from satrap.runtime.formatting import duration
from satrap.tools.plan.probe import probe
from satrap.tools.plan.simulate.costs import Calibration, MeasuredRun
from satrap.tools.plan.simulate.measured import Measured

ROUNDS, STEPS = 1, 80
"""Rounds over all runs, and measured steps of each run."""
PROCESS_SECONDS = 2.5
"""First estimate: CPU seconds per process of a small recipe, mostly for imports."""


@dataclass(frozen=True, slots=True)
class Case:
    """A run to measure; batch size and dims are the recipe's values times a factor, default 1.

    Args:
        exchange, mode, ahead, copies, delay: as of `MeasuredRun`.
        workers, shards: their numbers.
    """

    exchange: str
    mode: str = "sync"
    ahead: int = 0
    workers: int = 1
    shards: int = 1
    batch: float = 1.0
    dim: float = 1.0
    copies: int = 1
    delay: float = 0.0

    def overrides(self, recipe: str | Path, others: Sequence[str]) -> list[str]:
        """Return the `--set` values that change a recipe into this case."""
        loaded = load(recipe, others)
        values = dict(override.split("=", 1) for override in others)
        values |= {
            "cluster.exchange": self.exchange,
            "cluster.placement": "row_wise",
            "cluster.workers": str(self.workers),
            "cluster.shards": str(self.shards),
            "cluster.embedding_workers": "0",
            "cluster.loaders": "0",
            "training.mode": self.mode,
            "training.staleness": str(self.ahead),
            "training.staleness_warmup": "0",
            "training.lookahead": "0",
            "data.batch_size": str(max(1, round(loaded.sections.data.batch_size * self.batch))),
            "data.shuffle": "false",
            "data.balance": "null",
            "data.global_batch": "false",
        }
        values |= {
            f"features.{name}.dim": str(max(1, round(feature.dim * self.dim)))
            for name, feature in loaded.schema().categorical.items()
        }
        return [f"{key}={value}" for key, value in values.items()]


def cases(cores: int) -> list[Case]:
    """Return the runs of a calibration.

    Only the runs in one process have the recipe's own batch size and dims: they show how much processes on
    all cores slow each other down.
    """
    return [
        Case("local"),
        Case("local", copies=max(cores, 1)),
        *(Case("servers", "hybrid", 2, batch=b, dim=d) for b in (0.5, 2.0) for d in (0.5, 2.0)),
        Case("servers", batch=0.5, dim=2.0),
        Case("servers", batch=2.0, dim=0.5),
        Case("servers", workers=2, shards=2, batch=0.5, dim=0.5),
        Case("servers", workers=2, shards=2, batch=2.0, dim=2.0),
        Case("servers", "hybrid", 2, workers=2, batch=0.5, dim=2.0),
        Case("collective", workers=2, batch=0.5, dim=0.5),
        Case("collective", workers=2, batch=2.0, dim=0.5),
        Case("collective", workers=2, batch=0.5, dim=2.0),
    ]


def measure(
    recipe: str | Path,
    others: Sequence[str],
    case: Case,
    steps: int = STEPS,
    *,
    way: Callable[[str], str] = lambda to: to,
) -> Measured:
    """Run a case; for several simultaneous copies, return the mean.

    Args:
        recipe: the recipe to train.
        others: other KEY=VALUE overrides.
        case: the processes and sizes.
        steps: number of measured steps, default 80.
        way: see `probe`.
    """
    overrides = case.overrides(recipe, others)
    with ThreadPoolExecutor(case.copies) as pool:
        runs = [pool.submit(probe, recipe, overrides, steps, way=way) for _ in range(case.copies)]
        return Measured.mean([run.result() for run in runs])


def calibrate(
    recipe: str | Path,
    others: Sequence[str] = (),
    *,
    rounds: int = ROUNDS,
    steps: int = STEPS,
    kept: Path | None = None,
    notice: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure the cost of a recipe's operations on this machine, which should be idle otherwise.

    All runs take turns for several rounds, so that temporary load on the machine affects all of them. Each
    number is the median over the rounds.

    Args:
        recipe: the recipe to train.
        others: other KEY=VALUE overrides.
        rounds: number of rounds, default 1.
        steps: number of measured steps per run, default 80.
        kept: file for completed runs, so that an interrupted calibration can resume; removed at the end.
            Default: none.
        notice: called with a line of text before each run.

    Raises:
        ConfigError, ExchangeError: see `probe`; or the recipe has no tables.
    """
    check_tables(load(recipe, others).schema())
    cores = len(os.sched_getaffinity(0))
    all_cases = cases(cores)
    todo = all_cases * rounds
    of = [Path(recipe).read_text(encoding="utf-8"), list(others), steps, cores, version("satrap")]
    done = _done(kept, of)[: len(todo)]
    guess = PROCESS_SECONDS * sum(map(_processes, todo[len(done) :])) / min(cores, 2)
    notice(
        f"calibrating: {len(todo)} short runs"
        + (f", {len(done)} already done" if done else "")
        + f"; at least {duration(guess)}, more if the steps or the machine are slow"
        + ("; Ctrl-C keeps completed runs" if kept else "")
    )
    begun, before = time.monotonic(), len(done)
    for number, case in enumerate(todo[before:], before + 1):
        spent = time.monotonic() - begun
        remaining = spent / (number - 1 - before) * (len(todo) - number + 1) if number - 1 > before else guess
        notice(f"calibrating, {number} of {len(todo)}, about {duration(remaining)} left: {_words(case)}")
        done.append(measure(recipe, others, case, steps))
        if kept is not None:
            write_whole(kept, json.dumps({"of": of, "runs": [asdict(run) for run in done]}))
    runs = [
        MeasuredRun(
            case.exchange, case.mode, case.ahead, Measured.median(done[i :: len(all_cases)]), case.copies
        )
        for i, case in enumerate(all_cases)
    ]
    if kept is not None:
        kept.unlink(missing_ok=True)
    return Calibration(runs, cores, Path(recipe).name, f"{datetime.now(UTC):%Y-%m-%d}")


def _done(kept: Path | None, of: list[Any]) -> list[Measured]:
    """Return the completed runs of an interrupted calibration of the same recipe."""
    try:
        plain = {} if kept is None else json.loads(kept.read_text(encoding="utf-8"))
        return [Measured(**run) for run in plain["runs"]] if plain.get("of") == of else []
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []


def _processes(case: Case) -> int:
    return case.copies * (case.workers + (case.shards if case.exchange == "servers" else 0))


def _words(case: Case) -> str:
    at = f"{case.exchange}, {case.mode}, {case.workers} workers, {case.shards} shards"
    return f"{at}, {case.batch:g} x batch, {case.dim:g} x dim, {case.copies} at once"
