"""One short epoch with staleness that is full at once or begins small, and with sync: validation AUC."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.first_try.__main__ import satrap
from benchmarks.first_try.data_sets import DATA_SETS
from benchmarks.record import write

BATCH_SIZES = {"book_crossing": 1024, "movielens_latest_small": 2048, "adult": 512, "lastfm_hetrec": 8192}
"""Four times the choice of `satrap init`, so that an epoch has about 50 steps."""

OPTIMIZERS = {
    "init": [],
    "rowwise_adagrad": ["embedding.optimizer={name: rowwise_adagrad, lr: 0.05}"],
}
STALENESS = {4: (0, 10, 20, 40), 16: (0, 20)}
"""Staleness, and the steps after which it grows by one."""


def validation(folder: Path, *settings: str) -> dict[str, float]:
    """Train the recipe for one epoch; return the metrics of its validation rows."""
    fixed = ("data.test=null", "training.epochs=1")
    options = [part for setting in (*fixed, *settings) for part in ("--set", setting)]
    with tempfile.TemporaryDirectory() as run:
        satrap(folder, "train", "recipe.yaml", "--output", f"{run}/run", *options)
        figures = json.loads((Path(run) / "run" / "metrics.json").read_text())["validation"]
    return {name: round(figures[name], 5) for name in ("auc", "logloss")}


def one(folder: Path, name: str, optimizer: str) -> list[dict[str, Any]]:
    """Return the metrics of each schedule on a data set whose recipe is in a folder."""
    common = [f"data.batch_size={BATCH_SIZES[name]}", *OPTIMIZERS[optimizer]]
    about = {"set": name, "optimizer": optimizer}
    figures = [about | {"staleness": 0} | validation(folder, "training.mode=sync", *common)]
    for staleness, all_steps in STALENESS.items():
        for steps in all_steps:
            schedule = {"mode": "hybrid", "staleness": staleness, "staleness_warmup": steps * staleness}
            settings = [f"training.{key}={value}" for key, value in schedule.items()]
            shown = {"staleness": staleness, "steps_for_each": steps}
            figures.append(about | shown | validation(folder, *settings, *common))
    for run in figures:
        print(json.dumps(run), flush=True)
    return figures


def main() -> None:
    """Run, print and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.staleness.short_runs", description=__doc__)
    parser.add_argument(
        "data", type=Path, help="folder with a folder per data set, as for benchmarks.first_try"
    )
    parser.add_argument("--sets", nargs="+", choices=list(BATCH_SIZES), default=list(BATCH_SIZES))
    a = parser.parse_args()
    runs: list[dict[str, Any]] = []
    path: Path | None = None
    for name in a.sets:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            rows, _ = DATA_SETS[name].load(a.data, 1)
            rows.to_csv(folder / "train.csv", index=False)
            satrap(folder, "init", "train.csv", "--label", DATA_SETS[name].label)
            for optimizer in OPTIMIZERS:
                runs += one(folder, name, optimizer)
                path = write(Path(__file__).parent / "results", {"sets": a.sets}, {"short_runs": runs}, path)
    print(f"raw figures: {path}")


if __name__ == "__main__":
    main()
