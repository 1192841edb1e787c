"""Test AUC of every model by satrap and by the same model in plain PyTorch. See README.md here."""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch
from tests.models.plain import FORMULAS

from benchmarks.quality.plain import plain_auc
from benchmarks.record import write
from satrap import launch, models
from satrap.config import load

BUNDLED = Path(satrap.__file__).parent / "quickstart" / "goodbooks.yaml"


def by_satrap(recipe: str, name: str, options: dict[str, Any], overrides: list[str], seed: int) -> float:
    """Return the test AUC of a run of satrap."""
    loaded = load(recipe, [*overrides, f"model={ {'name': name, **options} }", f"training.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        outcome = launch.train(loaded, str(Path(folder) / "run"), notice=lambda _: None)
    return float(outcome.metrics["auc"])


def row(name: str, ours: list[float], plain: list[float]) -> str:
    """Return a line of the table."""
    cells = [f"{statistics.mean(x):.4f} ({min(x):.4f} to {max(x):.4f})" for x in (ours, plain)]
    return f"| {name} | {' | '.join(cells)} | {statistics.mean(ours) - statistics.mean(plain):+.4f} |"


def main() -> None:
    """Train, print a table for each recipe, and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("recipes", nargs="*", default=[str(BUNDLED)], help="default: the bundled goodbooks")
    parser.add_argument("--models", nargs="+", choices=list(FORMULAS), default=list(FORMULAS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--hidden", nargs="*", type=int, default=[64, 32], help="of all models that have it")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    a = parser.parse_args()
    torch.set_num_threads(1)
    parameters = {**vars(a), "recipes": [Path(recipe).name for recipe in a.recipes]}
    results: dict[str, dict[str, Any]] = {}
    path = None
    for recipe in a.recipes:
        name_of_set = Path(recipe).stem
        print(f"\n{name_of_set}: test AUC, mean (range) of {len(a.seeds)} seeds\n")
        print("| model | satrap | plain PyTorch | difference |\n| --- | --- | --- | --- |")
        for name in a.models:
            options = {"hidden": a.hidden} if "hidden" in models.arguments(name) else {}
            start = time.monotonic()
            ours = [by_satrap(recipe, name, options, a.overrides, seed) for seed in a.seeds]
            plain = [plain_auc(load(recipe, a.overrides), name, options, seed) for seed in a.seeds]
            print(row(name, ours, plain), flush=True)
            seconds = round(time.monotonic() - start)
            results.setdefault(name_of_set, {})[name] = {"satrap": ours, "pytorch": plain, "seconds": seconds}
            path = write(Path(__file__).parent / "results", parameters, results, path)


if __name__ == "__main__":
    main()
