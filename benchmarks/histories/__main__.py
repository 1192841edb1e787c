"""Test AUC of a film's rating, by models with and without the films that a viewer rated before.

`python -m benchmarks.histories FOLDER [--seeds 1 2 3]`, where FOLDER holds ratings.csv and movies.csv of
MovieLens latest-small (or .csv.gz). The label is a rating of four stars or more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from sklearn.metrics import roc_auc_score

import satrap
from benchmarks.histories.data_sets import LENGTH, movielens, parts_of
from benchmarks.histories.training import trained
from benchmarks.record import write
from satrap.schema import Feature

EPOCHS = 2
LIKED = satrap.Label(name="liked", column="rating", threshold=4)
ITEM = satrap.Categorical(dim=16, column="movieId", table="movie")
PLAIN: dict[str, Feature] = {
    "user": satrap.Categorical(dim=16, column="userId"),
    "movie": ITEM,
    "genres": satrap.Categorical(dim=16, multi=True, separator="|", pooling="mean"),
}
BAG = replace(ITEM, column="seen", multi=True, pooling="mean")
PAST: dict[str, Feature] = {
    "seen": replace(BAG, pooling="none", sequence="past", max_values=LENGTH, keep="last"),
    "seen_rating": satrap.Numeric(sequence="past", transform="standardize"),
    "seen_hours": satrap.Numeric(sequence="past", transform=["log1p", "standardize"]),
}
WAYS: dict[str, tuple[str, dict[str, Feature], dict[str, Any]]] = {
    "deepfm": ("deepfm", PLAIN, {"hidden": [64, 32], "dropout": 0.2}),
    "deepfm, the films as a bag": ("deepfm", {**PLAIN, "seen": BAG}, {"hidden": [64, 32], "dropout": 0.2}),
    "hstu": ("hstu", {**PLAIN, **PAST}, {"width": 32, "hidden": [64, 32], "dropout": 0.2}),
}


MEAN = "mean of the history's ratings"
"""No model; three average ratings are added, so that a single rating does not decide."""


def auc(way: str, parts: list[pa.Table], seed: int) -> float:
    """Return the test AUC of the epoch that is best on the validation rows."""
    if way == MEAN:
        usual = np.mean(parts[0]["rating"].to_numpy())
        past = [[usual] * 3 + stars for stars in parts[2]["seen_rating"].to_pylist()]
        return float(roc_auc_score(parts[2]["rating"].to_numpy() >= 4, [np.mean(stars) for stars in past]))
    name, features, options = WAYS[way]
    return trained(LIKED, name, features, options, parts, seed=seed, epochs=EPOCHS)["test"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--splits", nargs="+", choices=["rows", "time"], default=["rows", "time"])
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, MEAN], default=[*WAYS, MEAN])
    a = parser.parse_args()
    table, results, kept = movielens(a.folder), dict[str, Any](), None
    for split in a.splits:
        parts = parts_of(table, split)
        for way in a.ways:
            start = time.monotonic()
            scores = [auc(way, parts, seed) for seed in a.seeds]
            seconds = round(time.monotonic() - start)
            results.setdefault(split, {})[way] = {
                "auc": statistics.mean(scores),
                "by_seed": scores,
                "seconds": seconds,
            }
            print(f"{split}: {way}: AUC {statistics.mean(scores):.4f} ({seconds} s)", flush=True)
            kept = write(
                Path(__file__).parent / "results", {**vars(a), "folder": a.folder.name}, results, kept
            )
    print(kept)


if __name__ == "__main__":
    main()
