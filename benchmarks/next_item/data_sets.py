"""Every rating of MovieLens latest-small as an event: the last one of each user is the test."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pandas as pd

LENGTH = 50
"""Most events of a history."""


class Events(NamedTuple):
    """Events as rows for training and evaluation.

    Attributes:
        pairs: one training row per event: user, movie.
        windows: training rows whose histories are the parts of each user's events, so that each event is
            predicted once: user, movie, history.
        validation: the event before the last of each user, with its history and all earlier films, `rated`.
        test: the last event of each user.
        movies: every film of the file once.
    """

    pairs: pd.DataFrame
    windows: pd.DataFrame
    validation: pd.DataFrame
    test: pd.DataFrame
    movies: pd.DataFrame


def ordered(folder: Path) -> pd.DataFrame:
    """Return userId, movieId and timestamp of all ratings by user and time; films break ties."""
    plain = folder / "ratings.csv"
    ratings = pd.read_csv(plain if plain.exists() else folder / "ratings.csv.gz")
    return ratings.sort_values(["userId", "timestamp", "movieId"], kind="stable").reset_index(drop=True)


def movielens(folder: Path, length: int = LENGTH) -> Events:
    """Return the events of MovieLens latest-small, with histories of at most `length` events."""
    ratings = ordered(folder)
    parts: dict[str, list[tuple[int, int, list[int], list[int]]]] = {
        "pairs": [],
        "windows": [],
        "validation": [],
        "test": [],
    }
    for user, films in ratings.groupby("userId")["movieId"]:
        seen = films.tolist()
        for name, place in (("validation", len(seen) - 2), ("test", len(seen) - 1)):
            past = seen[:place]
            parts[name].append((user, seen[place], past[-length:], past))
        trained = seen[:-2]
        parts["pairs"] += [(user, film, [], []) for film in trained]
        for place in range(len(trained) - 1, 0, -length):
            parts["windows"].append((user, trained[place], trained[max(0, place - length) : place], []))
    columns = ["user", "movie", "history", "rated"]
    rows = {name: pd.DataFrame(part, columns=columns) for name, part in parts.items()}
    movies = pd.DataFrame({"movie": ratings["movieId"].unique()})
    return Events(**rows, movies=movies)
