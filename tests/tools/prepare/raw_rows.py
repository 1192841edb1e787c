"""A recipe with rows to prepare, and the files that were prepared."""

from __future__ import annotations

import numpy as np
import pandas as pd

from satrap.config import load


def make(folder, count=20_000, text="", seed=0):
    """Write a recipe and 18 bytes or so for each row; the last bits of their mean depend on the order."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "y": random.integers(0, 2, count),
            "n": random.normal(1e6, 3, count).round(3),
            "a": random.integers(0, 1000, count),
        }
    )
    frame.to_csv(folder / "rows.csv", index=False)
    (folder / "raw.yaml").write_text(
        "data: {train: rows.csv, shuffle: false, split: {modulo: 10, validation: [8], test: [9]}}\n"
        "labels: [y]\nfeatures:\n  n: {numeric: true, transform: standardize}\n  a: {dim: 4}\n"
        "model: {name: dnn, hidden: [8]}\n" + text
    )
    return load(folder / "raw.yaml")


def contents(folder):
    return {p.relative_to(folder): p.read_bytes() for p in sorted(folder.glob("*/*.parquet"))}
