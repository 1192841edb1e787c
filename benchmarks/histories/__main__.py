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
import numpy.typing as npt
import pyarrow as pa
import torch
from pyarrow import csv
from sklearn.metrics import roc_auc_score

import satrap
from benchmarks.record import write
from satrap.schema import Feature
from satrap.train import TrainingOptions

LENGTH, BATCH, EPOCHS = 20, 512, 2
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


def read(folder: Path, name: str) -> pa.Table:
    """Read name.csv or name.csv.gz."""
    plain = folder / f"{name}.csv"
    return csv.read_csv(plain if plain.exists() else folder / f"{name}.csv.gz")


def with_histories(folder: Path, length: int = LENGTH) -> pa.Table:
    """Return the ratings by time, with the viewer's last `length` earlier films, ratings and hours since.

    A rating of the same second is not earlier.
    """
    ratings, movies = read(folder, "ratings"), read(folder, "movies")
    place = {movie: row for row, movie in enumerate(movies["movieId"].to_pylist())}
    rows = pa.array([place[movie] for movie in ratings["movieId"].to_pylist()])
    ratings = ratings.append_column("genres", movies["genres"].take(rows))
    times = np.array([int(str(text).split()[0]) for text in ratings["timestamp"].to_pylist()])
    order = np.argsort(times, kind="stable")  # as numbers: some copies have text in this column
    ratings, times = ratings.take(order), times[order]
    users, films, stars = (ratings[name].to_numpy() for name in ("userId", "movieId", "rating"))
    past: dict[int, npt.NDArray[np.int64]] = {}
    before = []
    for row, user in enumerate(users):
        earlier = past.get(user, np.empty(0, np.int64))
        before.append(earlier[times[earlier] < times[row]][-length:])
        past[user] = np.append(earlier, row)
    offsets = pa.array(np.append(0, np.cumsum([len(earlier) for earlier in before])), pa.int32())
    events, ask = (
        np.concatenate(before),
        np.repeat(np.arange(len(users)), [len(earlier) for earlier in before]),
    )
    for name, values in (
        ("seen", films[events]),
        ("seen_rating", stars[events]),
        ("seen_hours", (times[ask] - times[events]) / 3600),
    ):
        ratings = ratings.append_column(name, pa.ListArray.from_arrays(offsets, pa.array(values)))
    return ratings


def parts_of(table: pa.Table, split: str) -> list[pa.Table]:
    """Return rows for training, validation and test: 8, 1 and 1 of each ten, or of the time."""
    count = len(table)
    part = np.arange(count) % 10 if split == "rows" else np.arange(count) * 10 // count
    members = [part < 8, part == 8, part == 9]
    return [table.filter(pa.array(chosen)) for chosen in members]


def auc(way: str, parts: list[pa.Table], seed: int) -> float:
    """Return the test AUC of the epoch that is best on the validation rows."""
    if way == MEAN:
        usual = np.mean(parts[0]["rating"].to_numpy())
        past = [[usual] * 3 + stars for stars in parts[2]["seen_rating"].to_pylist()]
        return float(roc_auc_score(parts[2]["rating"].to_numpy() >= 4, [np.mean(stars) for stars in past]))
    name, features, options = WAYS[way]
    label = satrap.Label(name="liked", column="rating", threshold=4)
    schema = satrap.Schema([label], features)
    data = [satrap.data.read(part, schema, batch_size=BATCH) for part in parts]
    train = data[0].with_options(shuffle=True, seed=seed, buffer_rows=100_000)
    schema = satrap.data.measure(schema, train)
    torch.manual_seed(seed)
    trainer = satrap.Trainer(
        satrap.models.create(name, schema, **options),
        schema,
        embedding_optimizer=satrap.optim.Adagrad(lr=0.05),
        dense_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
        mode="sync",
        store=satrap.store.StoreConfig(seed=seed),
        training=TrainingOptions(plateau=0.1, patience=2),
    )
    train, validation, test = (one.with_options(schema=schema) for one in (train, *data[1:]))
    trainer.fit(train, validation=validation, epochs=EPOCHS)
    score: float = trainer.evaluate(test)["auc"]
    trainer.close()
    return score


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--splits", nargs="+", choices=["rows", "time"], default=["rows", "time"])
    parser.add_argument("--ways", nargs="+", choices=[*WAYS, MEAN], default=[*WAYS, MEAN])
    a = parser.parse_args()
    table, results, kept = with_histories(a.folder), dict[str, Any](), None
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
