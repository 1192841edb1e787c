"""Test AUC of the models of a history, beside the same models with empty histories.

`python -m benchmarks.histories.rankers DATA [--sets lastfm ...] [--models din ...] [--seeds 1 2 3]`, where
DATA holds the folders movielens_latest_small, lastfm_hetrec and book_crossing.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

import satrap
from benchmarks.histories.data_sets import LENGTH, book_crossing, lastfm, movielens, parts_of
from benchmarks.histories.training import trained
from benchmarks.record import write
from satrap.schema import Feature

EPOCHS = 4


def past(of: str, column: str) -> satrap.Categorical:
    """A feature of the history with the table of a target."""
    return satrap.Categorical(
        dim=16, column=column, table=of, multi=True, pooling="none", sequence="past",
        max_values=LENGTH, keep="last",
    )  # fmt: skip


STARS = satrap.Numeric(sequence="past", transform="standardize")


@dataclass(frozen=True, slots=True)
class DataSet:
    """Rows, their split (see `parts_of`), their label, features without and of the history."""

    folder: str
    load: Callable[[Path], pa.Table]
    split: str
    label: satrap.Label
    features: Mapping[str, Feature]
    history: Mapping[str, Feature]


def one(column: str) -> satrap.Categorical:
    """A feature of one id."""
    return satrap.Categorical(dim=16, column=column)


BOOKS = DataSet(
    "book_crossing",
    book_crossing,
    "time",
    satrap.Label(name="liked", column="rating", threshold=9),
    {"user": one("user"), "book": one("item"), "author": one("author"), "year": one("year")},
    {
        "seen": past("book", "seen"),
        "seen_author": past("author", "seen_author"),
        "seen_year": past("year", "seen_year"),
        "seen_rating": STARS,
    },
)
SETS = {
    "movielens": DataSet(
        "movielens_latest_small",
        movielens,
        "time",
        satrap.Label(name="liked", column="rating", threshold=4),
        {
            "user": one("userId"),
            "movie": one("movieId"),
            "genres": satrap.Categorical(dim=16, multi=True, separator="|", pooling="mean"),
        },
        {
            "seen": past("movie", "seen"),
            "seen_rating": STARS,
            "seen_hours": satrap.Numeric(sequence="past", transform=["log1p", "standardize"]),
        },
    ),
    "lastfm": DataSet(
        "lastfm_hetrec",
        lastfm,
        "time",
        satrap.Label(name="assigned"),
        {"user": one("userID"), "artist": one("artistID"), "tag": one("tagID")},
        {"seen": past("artist", "seen"), "tagged": past("tag", "tagged")},
    ),
    "book_crossing": BOOKS,
    "book_crossing, known readers": replace(BOOKS, load=partial(book_crossing, split="rows"), split="rows"),
}
COMMON: dict[str, Any] = {"hidden": [64, 32], "dropout": 0.2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "din": ("din", {"attention": [32]}),
    "dien": ("dien", {"attention": [32]}),
    "bst": ("bst", {"width": 32}),
}


def emptied(
    parts: list[pa.Table], history: Mapping[str, Feature]
) -> tuple[list[pa.Table], dict[str, Feature]]:
    """Return the rows with empty lists, and features without the transforms of absent numbers."""
    names, made = [getattr(f, "column", None) or name for name, f in history.items()], []
    for part in parts:
        for name in names:
            kind = part.schema.field(name).type
            part = part.set_column(part.schema.get_field_index(name), name, pa.array([[]] * len(part), kind))
        made.append(part)
    plain = {
        n: replace(f, transform=None) if isinstance(f, satrap.Numeric) else f for n, f in history.items()
    }
    return made, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=[*SETS])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    a = parser.parse_args()
    torch.set_num_threads(1)
    results, path = dict[str, Any](), None
    for name in a.sets:
        data = SETS[name]
        whole = parts_of(data.load(a.folder / data.folder), data.split)
        ways = {"": (whole, data.history), ", empty histories": emptied(whole, data.history)}
        for key in a.models:
            model, options = MODELS[key]
            for way, (parts, history) in ways.items():
                start, features = time.process_time(), {**data.features, **history}
                scores = [
                    trained(data.label, model, features, COMMON | options, parts, seed=seed, epochs=EPOCHS)
                    for seed in a.seeds
                ]
                figures: dict[str, Any] = {
                    part: statistics.mean(score[part] for score in scores) for part in ("validation", "test")
                }
                figures |= {"by_seed": scores, "cpu_seconds": round(time.process_time() - start)}
                results.setdefault(name, {})[key + way] = figures
                print(f"{name}: {key}{way}: {figures}", flush=True)
                parameters = {**vars(a), "folder": a.folder.name, "epochs": EPOCHS}
                path = write(Path(__file__).parent / "results", parameters, results, path)
    print(path)


if __name__ == "__main__":
    main()
