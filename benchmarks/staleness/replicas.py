"""Test AUC of short runs with several workers: sync, hybrid with all rows at shards, hybrid with replicas."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from benchmarks.first_try.data_sets import DATA_SETS
from benchmarks.record import write
from satrap import launch
from satrap.config import load

SETS = {
    "adult": "adult",
    "census_income_kdd": "census_income",
    "movielens_latest_small": "movielens_latest_small",
    "goodbooks": "goodbooks",
}
"""Data set -> recipe of `examples/recipes`."""
RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
STEPS, ROWS, TEST_ROWS = 80, 90_000, 40_000
"""Steps of a run, and most rows, a tenth of which are for validation."""
SHARDS, AT_ONCE = "cluster.placement=row_wise", ("training.staleness=16", "training.staleness_warmup=0")
KINDS = {
    "sync": ["training.mode=sync"],
    "shards": ["training.mode=hybrid", SHARDS],
    "replicas": ["training.mode=hybrid"],
    "shards, 16": ["training.mode=hybrid", SHARDS, *AT_ONCE],
    "replicas, 16": ["training.mode=hybrid", *AT_ONCE],
}
"""Name -> settings; 16: staleness is 16, and full from the first step."""


def make(folder: Path, data: Path, name: str) -> Path:
    """Write the rows and the recipe of a data set into a folder; return the recipe."""
    chosen = DATA_SETS[name]
    train, test = (
        frame.sample(min(most, len(frame)), random_state=1)
        for frame, most in zip(chosen.load(data, 1), (ROWS, TEST_ROWS), strict=True)
    )
    train.to_csv(folder / "train.csv", index=False)
    test.to_csv(folder / "test.csv", index=False)
    yaml = YAML(typ="safe", pure=True)
    recipe = yaml.load(RECIPES / f"{SETS[name]}.yaml")
    recipe["labels"] = recipe["labels"][:1]
    recipe["data"] = {
        "train": "train.csv",
        "test": "test.csv",
        "format": "csv",
        "missing": "?",
        "split": {"modulo": 10, "validation": [9]},
        "batch_size": len(train) * 9 // 10 // STEPS // 4 * 4,
        "global_batch": True,
        "buffer_rows": ROWS,
    }
    for key in ("about", "cluster", "checkpoint"):
        recipe.pop(key, None)
    path = folder / "recipe.yaml"
    yaml.dump(recipe, path)
    return path


def one(recipe: Path, workers: int, kind: str, seed: int) -> dict[str, Any]:
    """Train a recipe for one epoch; return its test AUC, and what the run says about its tables."""
    settings = [
        "training.epochs=1",
        f"training.seed={seed}",
        "cluster.exchange=servers",
        "cluster.shards=2",
        f"cluster.workers={workers}",
        *KINDS[kind],
    ]
    said: list[str] = []
    with tempfile.TemporaryDirectory() as run:
        start = time.monotonic()
        outcome = launch.train(load(recipe, settings), f"{run}/run", notice=said.append)
        seconds = time.monotonic() - start
    placed = [line.partition(": ")[2] for line in said if line.startswith("placement of tables")]
    about = {"workers": workers, "kind": kind, "seed": seed, "auc": round(outcome.test["auc"], 5)}
    return about | {"steps": outcome.result.steps, "seconds": round(seconds, 1), "placed": placed}


def table(runs: Sequence[dict[str, Any]], kinds: Sequence[str]) -> list[str]:
    """Return the mean AUC by data set, workers and kind, over the seeds that all kinds have, as Markdown."""
    lines = [f"| data | workers | seeds | {' | '.join(kinds)} |", "| --- " * (3 + len(kinds)) + "|"]
    for name, workers in dict.fromkeys((run["set"], run["workers"]) for run in runs):
        these = [run for run in runs if (run["set"], run["workers"]) == (name, workers)]
        by_kind = {kind: {r["seed"]: r["auc"] for r in these if r["kind"] == kind} for kind in kinds}
        seeds = sorted(set.intersection(*map(set, by_kind.values())))
        if seeds:
            means = [statistics.mean(by_kind[kind][seed] for seed in seeds) for kind in kinds]
            shown = [f"{means[0]:.4f}", *(f"{mean:.4f} ({mean - means[0]:+.4f})" for mean in means[1:])]
            lines.append(f"| {name} | {workers} | {len(seeds)} | {' | '.join(shown)} |")
    return lines


def main() -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staleness.replicas", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with a folder per data set")
    parser.add_argument("--sets", nargs="+", choices=list(SETS), default=list(SETS))
    parser.add_argument("--workers", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    a = parser.parse_args()
    runs: list[dict[str, Any]] = []
    path: Path | None = None
    with tempfile.TemporaryDirectory() as made:
        recipes = {}
        for name in a.sets:
            (Path(made) / name).mkdir()
            recipes[name] = make(Path(made) / name, a.data, name)
        for seed in a.seeds:
            for name in a.sets:
                for workers in a.workers:
                    for kind in a.kinds:
                        runs.append({"set": name} | one(recipes[name], workers, kind, seed))
                        print(json.dumps(runs[-1]), flush=True)
                        path = write(
                            Path(__file__).parent / "results", {"sets": a.sets}, {"replicas": runs}, path
                        )
    print("\n".join(table(runs, a.kinds)))
    print(f"raw figures: {path}")


if __name__ == "__main__":
    main()
