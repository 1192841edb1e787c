"""Rows whose label the history decides, and a recipe for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

RECIPE = """\
data:
  train: rows.csv
  split: {modulo: 10, validation: [8], test: [9]}
  batch_size: 64
labels: [clicked]
features:
  user: {dim: 8}
  genre: {dim: 8}
  seen: {dim: 8, multi: true, pooling: none, separator: "|", sequence: past, max_values: 12, keep: last}
  seen_genre:
    {dim: 8, multi: true, pooling: none, separator: "|", sequence: past, table: genre}
  seen_rating: {numeric: true, separator: "|", sequence: past, transform: standardize}
model: {name: hstu, width: 32, hidden: [32]}
embedding: {optimizer: {name: adagrad, lr: 0.1}}
dense: {optimizer: {name: adam, lr: 0.003}}
training: {mode: sync, epochs: 4, plateau: null, patience: null}
"""


def frame(count: int = 4000, seed: int = 0, sorts: int = 6) -> pd.DataFrame:
    """Clicks on a genre if the ratings of its events so far, of the last twelve, add up to more than 0.

    `sorts`: of genres.
    """
    random = np.random.default_rng(seed)
    table = []
    for _ in range(count):
        events = int(random.integers(0, 16))
        genres, ratings = random.integers(0, sorts, events), random.choice([-1.0, 1.0], events)
        genre = int(random.integers(0, sorts))
        liked = ratings[-12:][genres[-12:] == genre].sum() if events else 0.0
        past = (random.integers(0, 300, events), genres, ratings)
        table.append(
            [int(random.integers(0, 200)), genre, *("|".join(map(str, p)) for p in past), int(liked > 0)]
        )
    return pd.DataFrame(table, columns=["user", "genre", "seen", "seen_genre", "seen_rating", "clicked"])


def make_recipe(folder: Path, rows: pd.DataFrame | None = None) -> Path:
    """Write the rows and the recipe."""
    (frame() if rows is None else rows).to_csv(folder / "rows.csv", index=False)
    path = folder / "clicks.yaml"
    path.write_text(RECIPE, encoding="utf-8")
    return path
