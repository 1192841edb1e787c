"""Rows with a history: what the same user did before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyarrow import csv

Whole = npt.NDArray[np.int64]

LENGTH = 20
"""Most events of a history."""


def earlier(
    users: npt.NDArray[Any], times: Whole, length: int, known: npt.NDArray[np.bool_] | None = None
) -> tuple[Whole, Whole]:
    """Return, for rows by time, the last `length` rows of the same user with an earlier time.

    Args:
        users: [rows].
        times: int64[rows], ascending.
        length: most events.
        known: bool[rows], rows that may be events; None: all.

    Returns:
        int64[rows + 1] offsets, and int64[events] rows.
    """
    past: dict[Any, Whole] = {}
    before = []
    for row, user in enumerate(users):
        so_far = past.get(user, np.empty(0, np.int64))
        before.append(so_far[times[so_far] < times[row]][-length:])
        if known is None or known[row]:
            past[user] = np.append(so_far, row)
    return np.append(0, np.cumsum([len(one) for one in before])), np.concatenate(before)


def with_lists(rows: pa.Table, offsets: Whole, columns: dict[str, npt.NDArray[Any]]) -> pa.Table:
    """Return the rows with columns of lists."""
    for name, values in columns.items():
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))
        rows = rows.append_column(name, lists)
    return rows


def read(folder: Path, name: str) -> pa.Table:
    """Read name.csv or name.csv.gz."""
    plain = folder / f"{name}.csv"
    return csv.read_csv(plain if plain.exists() else folder / f"{name}.csv.gz")


def movielens(folder: Path, length: int = LENGTH) -> pa.Table:
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
    offsets, events = earlier(users, times, length)
    ask = np.repeat(np.arange(len(users)), np.diff(offsets))
    hours = (times[ask] - times[events]) / 3600
    past = {"seen": films[events], "seen_rating": stars[events], "seen_hours": hours}
    return with_lists(ratings, offsets, past)


def parts_of(table: pa.Table, split: str) -> list[pa.Table]:
    """Return rows for training, validation and test: 8, 1 and 1 of each ten, or of the time."""
    count = len(table)
    part = np.arange(count) % 10 if split == "rows" else np.arange(count) * 10 // count
    members = [part < 8, part == 8, part == 9]
    return [table.filter(pa.array(chosen)) for chosen in members]


def lastfm(folder: Path, length: int = LENGTH) -> pa.Table:
    """Return a quarter of the tags that listeners gave to artists, by date, each with a tag drawn instead.

    `assigned` is the label. The history is what the listener tagged on earlier dates: artists and tags, of
    all assignments.
    """
    real = pd.read_csv(folder / "user_taggedartists.dat.gz", sep="\t").query("year >= 2005")
    real["date"] = real["year"] * 10_000 + real["month"] * 100 + real["day"]
    real = real.sort_values("date", kind="stable").reset_index(drop=True)
    offsets, events = earlier(real["userID"].to_numpy(), real["date"].to_numpy(), length)
    artists, tags = real["artistID"].to_numpy()[events], real["tagID"].to_numpy()[events]
    table = with_lists(
        pa.Table.from_pandas(real[["userID", "artistID", "tagID"]]),
        offsets,
        {"seen": artists, "tagged": tags},
    )
    draw = np.random.default_rng(2011)
    chosen = np.repeat(np.arange(0, len(real), 4), 2)
    assigned = np.tile([1, 0], len(chosen) // 2)
    drawn = draw.choice(real["tagID"].unique(), len(chosen))
    tag = np.where(assigned == 1, real["tagID"].to_numpy()[chosen], drawn)
    table = table.take(pa.array(chosen)).set_column(2, "tagID", pa.array(tag))
    return table.append_column("assigned", pa.array(assigned))


def book_crossing(folder: Path, length: int = LENGTH, *, split: str = "time") -> pa.Table:
    """Return ratings of books with the last books that the reader rated before, in the order of the file.

    The file has no times, and is sorted by reader: a split by "time" (see `parts_of`) has new readers in the
    test. With the split "rows", only rows for training are events.
    """
    rows = pd.read_csv(folder / "book_ratings.dat.gz", sep="\t")
    books = pd.read_csv(folder / "items_info.dat.gz", sep="\t", index_col=False, quoting=3, dtype=str)
    books["item"] = books["Book_ID"].astype(int)
    names = {"Book-Author": "author", "Year-Of-Publication": "year"}
    rows = rows.merge(books[["item", *names]], on="item", how="left").rename(columns=names)
    rows = rows.fillna({"author": "", "year": ""})
    place = np.arange(len(rows))
    offsets, events = earlier(
        rows["user"].to_numpy(), place, length, place % 10 < 8 if split == "rows" else None
    )
    columns = {"seen": "item", "seen_author": "author", "seen_year": "year", "seen_rating": "rating"}
    past = {name: rows[of].to_numpy()[events] for name, of in columns.items()}
    return with_lists(pa.Table.from_pandas(rows, preserve_index=False), offsets, past)
