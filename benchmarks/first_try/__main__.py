"""`satrap init` and `satrap train` with unedited recipes, compared with other libraries. See README.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning

from benchmarks.first_try.baselines import (
    Columns,
    Scores,
    boosted_trees,
    catboost,
    installed,
    lightgbm,
    logistic_regression,
    xgboost,
)
from benchmarks.first_try.data_sets import DATA_SETS, write_files
from benchmarks.record import write
from satrap.config import load

KINDS = ("satrap", "hybrid", "cluster_sync", "trees", "linear", "lightgbm", "xgboost", "catboost")
TREES = {"lightgbm": lightgbm, "xgboost": xgboost, "catboost": catboost}
"""Kinds that run only if their library is installed."""
RESULTS = Path(__file__).parent / "results"
CLUSTER = ("cluster.exchange=servers", "cluster.workers=2", "cluster.shards=2")
FORK = multiprocessing.get_context("fork")
MODES = {"hybrid": "hybrid", "cluster_sync": "sync"}


def satrap(folder: Path, *arguments: str) -> float:
    """Run a command as a user does; return its processor seconds."""
    start = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "satrap.cli", *arguments], cwd=folder, capture_output=True)
    if done.returncode:
        raise SystemExit(f"satrap {' '.join(arguments)} failed:\n{done.stderr.decode()}")
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    return end.ru_utime + end.ru_stime - start.ru_utime - start.ru_stime


def trained(folder: Path, seed: int, run: str, settings: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train the recipe in a folder; return the test metrics, the epochs and the processor seconds."""
    options = [part for setting in (*settings, f"training.seed={seed}") for part in ("--set", setting)]
    seconds = satrap(folder, "train", "recipe.yaml", "--output", run, *options)
    history = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    metrics = json.loads((folder / run / "metrics.json").read_text())
    return {
        "auc": metrics["test"]["auc"],
        "logloss": metrics["test"]["logloss"],
        "validation_auc": metrics["validation"]["auc"],
        "passes": sum(line["event"] == "validation" for line in history),
        "cpu_seconds": round(seconds, 1),
    }


def one(data: Path, name: str, seed: int, kinds: Sequence[str], most: int) -> dict[str, Any]:
    """Run everything on a data set with a seed; return the test AUC of each kind of model."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_files(data, name, seed, folder)
        trial = () if {"satrap", *MODES} & set(kinds) else ("--no-trial",)  # the columns are the same
        asked = ("train.csv", "--test", "test.csv", "--label", DATA_SETS[name].label)
        init = satrap(folder, "init", *asked, *trial)
        figures: dict[str, Any] = {"set": name, "seed": seed, "init_cpu_seconds": round(init, 1)}
        if "satrap" in kinds:
            figures["satrap"] = trained(folder, seed, "run")
        for kind, mode in MODES.items():
            if kind in kinds:
                figures[kind] = trained(folder, seed, kind, (*CLUSTER, f"training.mode={mode}"))
        columns = Columns(load(folder / "recipe.yaml"))
        files = [folder / "train.csv", folder / "test.csv"]
        train, test = (pd.read_csv(file, dtype=str, keep_default_na=False) for file in files)
    if "trees" in kinds:
        figures["trees"] = timed(lambda: boosted_trees(columns, train, test, seed), most)
    held = np.arange(len(train)) % 10 == 9  # the recipe's validation rows
    for kind in (name for name in TREES if name in kinds):
        if installed(kind):
            score = partial(TREES[kind], columns, train[~held], train[held], test, seed)
            figures[kind] = timed(score, most)
    if "linear" in kinds:
        figures["linear"] = timed(lambda: logistic_regression(columns, train[~held], train[held], test), most)
    return figures


def timed(score: Callable[[], Scores], most: int) -> dict[str, Any]:
    """Compute scores in a process of its own; AUC None if it needs more than `most` processor seconds."""
    receiver, sender = FORK.Pipe(duplex=False)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (most, most))
        sender.send({**score(), "cpu_seconds": round(time.process_time(), 1)})

    process = FORK.Process(target=work)
    process.start()
    sender.close()
    with contextlib.suppress(EOFError):
        return dict(receiver.recv())
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise SystemExit("a library failed; its error is above")
    return {"auc": None, "cpu_seconds": most}


def means(runs: list[dict[str, Any]]) -> dict[str, dict[str, float | None]]:
    """Return, per data set, the mean test AUC of each kind of model, and the published floor."""
    figures: dict[str, dict[str, float | None]] = {}
    for name in dict.fromkeys(run["set"] for run in runs):
        figures[name] = {"floor": DATA_SETS[name].floor}
        for kind in KINDS:
            values = [run[kind]["auc"] for run in runs if run["set"] == name and kind in run]
            if values and None not in values:
                figures[name][kind] = round(statistics.mean(values), 5)
    return figures


def main() -> None:
    """Run, print and record after each run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_try", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with a folder per data set")
    parser.add_argument("--sets", nargs="+", choices=list(DATA_SETS), default=list(DATA_SETS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--kinds", nargs="+", choices=KINDS, default=KINDS, help="what to run; satrap is one process"
    )
    parser.add_argument("--limit", type=int, default=3600, help="processor seconds of a library")
    a = parser.parse_args()
    warnings.simplefilter("ignore", ConvergenceWarning)
    runs: list[dict[str, Any]] = []
    path: Path | None = None
    for seed in a.seeds:
        for name in a.sets:
            again = seed not in a.seeds[: DATA_SETS[name].parts]  # the same rows give the same weights
            run = one(
                a.data, name, seed, [kind for kind in a.kinds if not (again and kind == "linear")], a.limit
            )
            runs.append(run)
            shown = "  ".join(f"{k} {v['auc'] or 0:.4f}" for k, v in run.items() if isinstance(v, dict))
            print(f"seed {seed}  {name:24} {shown}", flush=True)
            path = write(RESULTS, {"seeds": a.seeds}, {"mean_test_auc": means(runs), "runs": runs}, path)
    print(json.dumps(means(runs), indent=2), f"\nraw figures: {path}")


if __name__ == "__main__":
    main()
