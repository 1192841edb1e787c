"""Runs of one recipe with several seeds: their folders, and the mean and spread of their metrics."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from satrap.config import Recipe
from satrap.errors import ConfigError
from satrap.launch.folder.run_folder import RUNS, RunFolder, no_run

PREFIX = "seed-"
"""Start of the name of the folder of a seed."""


def seed_folders(recipe: Recipe, output: str | None, count: int) -> dict[str, Recipe]:
    """Return folder -> recipe of runs with `count` seeds, from `training.seed` on.

    Args:
        recipe: the recipe.
        output: the folder above; default the first unused `runs/<name>-<n>`.
        count: number of seeds, at least 2.

    Raises:
        ConfigError: the folder holds a run, or runs with seeds.
    """
    if output is None:
        numbered = (Path(RUNS) / f"{recipe.name}-{number}" for number in itertools.count(1))
        folder = next(path for path in numbered if not path.exists())
    else:
        folder = Path(output)
        if RunFolder(folder).recipe_file.exists() or any(folder.glob(f"{PREFIX}*")):
            raise ConfigError(
                "the output folder already holds a run",
                where=str(folder),
                fix="choose another --output DIR, or remove it",
            )
    first = recipe.sections.training.seed
    return {
        str(folder / f"{PREFIX}{seed}"): recipe.changed({("training", "seed"): seed})
        for seed in range(first, first + count)
    }


def runs_of(path: str, most: int | None = None) -> dict[int, RunFolder]:
    """Return seed -> run of a folder that `satrap train --seeds` wrote, or of the folder of one run.

    Args:
        path: the folder.
        most: number of seeds, from the lowest; default all.

    Raises:
        ConfigError: the folder holds no run, or fewer seeds than `most`.
    """
    runs = [RunFolder(inside) for inside in Path(path).glob(f"{PREFIX}*")]
    runs = [run for run in runs or [RunFolder(Path(path))] if run.recipe_file.exists()]
    if not runs:
        raise no_run(path)
    by_seed = {run.recipe().sections.training.seed: run for run in runs}
    if most is not None and len(by_seed) < most:
        raise ConfigError(
            f"the folder has {len(by_seed)} seeds, not {most}",
            where=path,
            fix=f"give a smaller --seeds, or train more: satrap train RECIPE --seeds {most}",
        )
    return dict(sorted(by_seed.items())[:most])


def mean_and_spread(every: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return metric -> its mean and sample standard deviation over runs; NaN for the spread of one run.

    Metrics that a run lacks are left out.
    """
    shared = [key for key in every[0] if all(key in metrics for metrics in every)]
    values = {key: [metrics[key] for metrics in every] for key in shared}
    return {
        key: (statistics.fmean(of_key), statistics.stdev(of_key) if len(of_key) > 1 else math.nan)
        for key, of_key in values.items()
    }
