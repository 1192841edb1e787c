"""Models of two labels on Census-Income (KDD), beside published figures. See README.md here."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import pandas as pd
import torch

from benchmarks.record import write
from satrap import launch
from satrap.config import load
from satrap.schema import Categorical

RECIPE = Path(satrap.__file__).parents[2] / "examples" / "recipes" / "census_income.yaml"
INCOME = {"name": "income", "column": "income_50k", "positive": ["50000+."]}
SINGLE = {"name": "never_married", "column": "marital_stat", "positive": ["Never married"]}
EVER = {"name": "ever_married", "column": "unmarried", "positive": ["no"]}
BOTH = {"name": "income_and_ever_married", "column": "both", "positive": ["yes"]}
"""ESMM needs a second label that implies the first."""
Model = tuple[dict[str, Any], list[list[dict[str, Any]]]]
MODELS: dict[str, Model] = {
    "single task": ({"name": "dnn", "hidden": [256, 128, 64]}, [[INCOME], [SINGLE]]),
    "shared bottom": ({"name": "mmoe", "experts": 1}, [[INCOME, SINGLE]]),
    "mmoe": ({"name": "mmoe"}, [[INCOME, SINGLE]]),
    "ple": ({"name": "ple"}, [[INCOME, SINGLE]]),
    "esmm": ({"name": "esmm"}, [[EVER, BOTH]]),
}
"""Name -> its arguments, and the labels of each of its trainings."""
PUBLISHED = {  # test AUC of income and of marital status, doi 10.2478/ijanmc-2024-0005
    "single task": "0.9198, 0.9748",
    "shared bottom": "0.9148, 0.9754",
    "mmoe": "0.9152, 0.9756",
    "ple": "0.9161, 0.9764",
}
THEIR_DIM, THEIR_BATCH, THEIR_WIDTHS = 4, 256, [512, 256]


def prepared(data: Path, folder: Path) -> list[str]:
    """Write the parts of UCI's split, with the labels of ESMM; return the settings that name them."""
    for part in ("train", "test"):
        rows = pd.read_csv(data / "census_income_kdd" / f"{part}.csv.gz", dtype=str)
        single, income = rows["marital_stat"] == "Never married", rows["income_50k"] == "50000+."
        words = {True: "yes", False: "no"}
        more = {"unmarried": single.map(words), "both": (income & ~single).map(words)}
        rows.assign(**more).to_csv(folder / f"{part}.csv", index=False)
    return [f"data.{part}={folder / part}.csv" for part in ("train", "test")]


def like_the_published() -> list[str]:
    """Return settings with the published dim of rows, batch size and optimizers."""
    features = load(RECIPE).schema().features.items()
    dims = [f"features.{k}.dim={THEIR_DIM}" for k, one in features if isinstance(one, Categorical)]
    return [*dims, f"data.batch_size={THEIR_BATCH}", "embedding.optimizer={name: adam, lr: 0.001}"]


def test_aucs(name: str, settings: list[str], seed: int, *, theirs: bool) -> dict[str, float]:
    """Train a model of `MODELS`; return the test AUC of each label."""
    found: dict[str, float] = {}
    model, trainings = MODELS[name]
    if theirs:
        layers = "hidden" if name in ("single task", "esmm") else "expert_hidden"
        model = model | {layers: THEIR_WIDTHS, "batch_norm": True}
    else:
        model = model | {"dropout": 0.1}
    for labels in trainings:
        recipe = load(RECIPE, [*settings, f"labels={labels}", f"model={model}", f"training.seed={seed}"])
        with tempfile.TemporaryDirectory() as folder:
            metrics = launch.train(recipe, str(Path(folder) / "run"), notice=lambda _: None).metrics
        for label in labels:
            found[label["name"]] = metrics[f"{label['name']}/auc" if len(labels) > 1 else "auc"]
    return found


def main() -> None:
    """Train, print a table, and record after each model."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality.multitask", description=__doc__)
    parser.add_argument("data", type=Path, help="folder with a folder census_income_kdd")
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument(
        "--theirs", action="store_true", help="the published dim, batch, widths and optimizers"
    )
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    a = parser.parse_args()
    torch.set_num_threads(1)
    settings = like_the_published() if a.theirs else []
    results: dict[str, Any] = {}
    path = None
    print("| model | test AUC, mean (range) | published |\n| --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        settings += [*prepared(a.data, Path(folder)), *a.overrides]
        for name in a.models:
            start = time.process_time()
            runs = [test_aucs(name, settings, seed, theirs=a.theirs) for seed in a.seeds]
            each = {label: [run[label] for run in runs] for label in runs[0]}
            shown = [
                f"{label} {statistics.mean(values):.4f} ({min(values):.4f} to {max(values):.4f})"
                for label, values in each.items()
            ]
            print(f"| {name} | {', '.join(shown)} | {PUBLISHED.get(name, '')} |", flush=True)
            results[name] = {"auc": each, "cpu_seconds": round(time.process_time() - start)}
            parameters = {"models": a.models, "seeds": a.seeds, "theirs": a.theirs, "set": a.overrides}
            path = write(Path(__file__).parent / "results", parameters, results, path)


if __name__ == "__main__":
    main()
