"""Small real files and a recipe for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

RECIPE = """\
data:
  train: rows.csv
  split: {modulo: 10, validation: [8], test: [9]}
  batch_size: 100
labels: [clicked]
features:
  user:  {dim: 4}
  item:  {dim: 4}
  price: {numeric: true, transform: [log1p, standardize]}
model: {name: dnn, hidden: [8]}
embedding: {optimizer: {name: adagrad, lr: 0.1}}
dense: {optimizer: {name: adam, lr: 0.01}}
training: {mode: hybrid, staleness: 2, staleness_warmup: 0, epochs: 2}
"""


UNBOUNDED = "embedding: {optimizer: {name: adagrad, lr: 0.1}}\n"


def bounded(text: str, memory: str) -> str:
    """Return a recipe whose rows have so much memory, with admission and eviction."""
    return text.replace(
        UNBOUNDED,
        f"""\
embedding:
  optimizer: {{name: adagrad, lr: 0.1}}
  memory: {memory}
  admission: {{min_count: 2, memory: 4096}}
  eviction: {{policy: lru}}
""",
    )


def frame(count: int = 2000, seed: int = 0, sorts: int = 1) -> pd.DataFrame:
    """Clicks that depend on user and item, so that there is something to learn; `sorts` users for each."""
    random = np.random.default_rng(seed)
    users, items = random.integers(0, 30, count), random.integers(0, 20, count)
    taste = np.random.default_rng(1).normal(size=(30, 20)) * 2 + np.arange(30)[:, None] / 10 - 1.5
    chance = 1 / (1 + np.exp(-taste[users, items]))
    return pd.DataFrame(
        {
            "user": [f"u{user}" if sorts == 1 else f"u{user}.{i % sorts}" for i, user in enumerate(users)],
            "item": items,
            "price": random.exponential(10, count).round(2),
            "clicked": (random.random(count) < chance).astype(int),
        }
    )


def make_recipe(folder: Path, text: str = RECIPE, rows: pd.DataFrame | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (frame() if rows is None else rows).to_csv(folder / "rows.csv", index=False)
    path = folder / "clicks.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
