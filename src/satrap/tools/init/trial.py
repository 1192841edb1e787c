"""A trial of counts and mean labels of ids: two short trainings on a sample, compared by validation rows."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from satrap.errors import SatrapError
from satrap.id_counts import MOST_IDS
from satrap.tools.init.choose import Features
from satrap.tools.init.kinds import Decision
from satrap.tools.init.profile import Column

LEAST_ROWS = 20_000
"""Rows of the sample below which its validation rows are too few for a comparison."""
MOST_ROWS = 60_000
"""Most rows of the sample that a trial uses."""
LEAST_VALUES = 100
"""Unique values from which the frequency of an id is worth a number."""
ROWS_EACH = 2
"""Least rows per unique value."""
EPOCHS = 4
"""Most epochs of a trial."""
GAIN, GAIN_OF_PART = 0.001, 0.005
"""Share of the logloss that counts and mean labels must save on all rows, and on a part of them.

Where rows per id are few, counts help more, so the gain on a part of the rows is larger than the gain on all.
"""
RECIPE = "trial.yaml"

Compose = Callable[[dict[str, str], Features], str]
"""Makes the text of a recipe, given its data files and features."""


@dataclass(frozen=True, slots=True)
class CountsTrial:
    """The result of a trial: logloss on the validation rows, without and with counts and mean labels.

    `part` is the share of all rows that it used, `failure` the reason if a training failed.
    """

    columns: tuple[str, ...]
    without: float = 0.0
    counted: float = 0.0
    part: float = 1.0
    failure: str = ""

    @property
    def useful(self) -> bool:
        """Whether a recipe should have these features."""
        gain = GAIN if self.part >= 1 else GAIN_OF_PART
        return not self.failure and self.counted < self.without * (1 - gain)

    def __str__(self) -> str:
        if self.failure:
            return f"could not be tried: {self.failure}"
        rows = "validation rows" if self.part >= 1 else f"validation rows of {self.part:.0%} of the rows"
        return f"logloss on {rows} {self.without:.4f} without, {self.counted:.4f} with"


def candidates(columns: dict[str, Column], decisions: dict[str, Decision]) -> list[str]:
    """Return the columns of ids whose counts may be useful."""
    names = []
    for name, decision in decisions.items():
        distinct = columns[name].distinct.count
        frequent = columns[name].values >= ROWS_EACH * distinct
        if decision.kind == "category" and LEAST_VALUES <= distinct <= 0.9 * MOST_IDS and frequent:
            names.append(name)
    return names


def add_counts(features: Features, columns: Sequence[str], why: str) -> None:
    """Add counts and mean labels of columns of ids."""
    for name in columns:
        plain = {"numeric": True, "column": name}
        features.add(f"{name}_count", {**plain, "count": "log1p", "transform": "standardize"}, why)
        means = {"mean_label": {"folds": 5, "smoothing": 10}, "transform": "standardize"}
        features.add(f"{name}_mean", {**plain, **means}, "mean label of its training rows, out of fold")


def tried(
    columns: Sequence[str], compose: Compose, files: dict[str, pa.Table], plain: Features, counted: Features
) -> CountsTrial:
    """Train with and without counts and mean labels, and compare the best logloss on the validation rows.

    Args:
        columns: the columns of ids.
        compose: makes a recipe.
        files: the sample's rows by part of the data; without "validation", the recipe splits "train".
        plain, counted: features without and with the counts.
    """
    losses: list[float] = []
    with tempfile.TemporaryDirectory(prefix="satrap-init-") as made:
        folder = Path(made)
        for part, table in files.items():
            pq.write_table(table, folder / f"{part}.parquet")
        names = {part: f"{part}.parquet" for part in files}
        for number, features in enumerate((plain, counted)):
            (folder / RECIPE).write_text(compose(names, features), encoding="utf-8")
            try:
                losses.append(_logloss(folder, number))
            except SatrapError as error:  # such as numbers written in another way
                return CountsTrial(tuple(columns), failure=error.what)
    return CountsTrial(tuple(columns), losses[0], losses[1])


def _logloss(folder: Path, number: int) -> float:
    """Return the best logloss of a short training of the recipe in a folder."""
    from satrap.config import load
    from satrap.launch import train

    short = [f"training.epochs={EPOCHS}", "training.patience=1", "training.plateau=null"]
    recipe = load(folder / RECIPE, short)
    outcome = train(recipe, str(folder / str(number)), trial=True)
    return min(metrics["logloss"] for metrics in outcome.result.history)
