"""Test AUC of every model by satrap and by the same model in plain PyTorch. See README.md here."""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch
from tests.models.plain import FORMULAS

from benchmarks.first_try.__main__ import satrap as command
from benchmarks.first_try.data_sets import DATA_SETS, write_files
from benchmarks.quality.plain import plain_auc
from benchmarks.record import write
from satrap import launch, models
from satrap.config import load

BUNDLED = Path(satrap.__file__).parent / "quickstart" / "goodbooks.yaml"

EARLY_STOP = re.compile(r"^  (split|patience|plateau|monitor): .*\n", re.MULTILINE)
"""Lines of a recipe of `satrap init` for validation rows, which plain PyTorch does not use."""


def made(data: Path, name: str, folder: Path) -> str:
    """Return the recipe of `satrap init` for a data set of first_try, without counts and early stop."""
    (folder / name).mkdir()
    write_files(data, name, 1, folder / name)
    label = DATA_SETS[name].label
    command(folder / name, "init", "train.csv", "--test", "test.csv", "--label", label, "--no-trial")
    recipe = folder / name / f"{name}.yaml"
    recipe.write_text(EARLY_STOP.sub("", (folder / name / "recipe.yaml").read_text()))
    return str(recipe)


def by_satrap(recipe: str, name: str, options: dict[str, Any], overrides: list[str], seed: int) -> float:
    """Return the test AUC of a run of satrap."""
    loaded = load(recipe, [*overrides, f"model={ {'name': name, **options} }", f"training.seed={seed}"])
    with tempfile.TemporaryDirectory() as folder:
        outcome = launch.train(loaded, str(Path(folder) / "run"), notice=lambda _: None)
    return float(outcome.metrics["auc"])


def row(name_of_set: str, name: str, ours: list[float], plain: list[float]) -> str:
    """Return a line of the table."""
    cells = [f"{statistics.mean(x):.4f} ({min(x):.4f} to {max(x):.4f})" for x in (ours, plain)]
    difference = statistics.mean(ours) - statistics.mean(plain)
    return f"| {name_of_set} | {name} | {' | '.join(cells)} | {difference:+.4f} |"


def main() -> None:
    """Train, print a table, and record."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__)
    parser.add_argument("recipes", nargs="*", help="default: the bundled goodbooks, unless --sets")
    parser.add_argument("--data", type=Path, help="folder with a folder per data set, for --sets")
    parser.add_argument("--sets", nargs="+", choices=list(DATA_SETS), default=[], help="of first_try")
    parser.add_argument("--models", nargs="+", choices=list(FORMULAS), default=list(FORMULAS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--hidden", nargs="*", type=int, default=[64, 32], help="of all models that have it")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    a = parser.parse_args()
    if a.sets and a.data is None:
        parser.error("--sets needs --data")
    torch.set_num_threads(1)
    recipes = a.recipes or ([] if a.sets else [str(BUNDLED)])
    parameters = {**vars(a), "data": None, "recipes": [Path(recipe).name for recipe in recipes]}
    results: dict[str, dict[str, Any]] = {}
    path = None
    print(f"test AUC, mean (range) of {len(a.seeds)} seeds\n")
    print("| data | model | satrap | plain PyTorch | difference |\n| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for recipe in [*recipes, *(made(a.data, name, Path(folder)) for name in a.sets)]:
            name_of_set = Path(recipe).stem
            for name in a.models:
                options = {"hidden": a.hidden} if "hidden" in models.arguments(name) else {}
                start = time.process_time()
                ours = [by_satrap(recipe, name, options, a.overrides, seed) for seed in a.seeds]
                plain = [plain_auc(load(recipe, a.overrides), name, options, seed) for seed in a.seeds]
                print(row(name_of_set, name, ours, plain), flush=True)
                seconds = round(time.process_time() - start)
                found = {"satrap": ours, "pytorch": plain, "cpu_seconds": seconds}
                results.setdefault(name_of_set, {})[name] = found
                path = write(Path(__file__).parent / "results", parameters, results, path)


if __name__ == "__main__":
    main()
