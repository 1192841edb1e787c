"""Sort MovieLens ratings by time, join the genres and write train, validation and test files.

    python examples/movielens_latest_small/prepare.py FOLDER [OUTPUT]

FOLDER holds ratings.csv and movies.csv (or .csv.gz). Rows are sorted by timestamp, ties in the file's order.
Of ten consecutive rows, the ninth goes to validation and the tenth to test. OUTPUT defaults to the folder
that the recipe movielens_latest_small.yaml reads.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

OUTPUT = Path(__file__).resolve().parents[1] / "recipes" / "data" / "movielens_latest_small"
PARTS = {"train": range(8), "validation": [8], "test": [9]}


def read(folder: Path, name: str) -> pa.Table:
    """Read name.csv or name.csv.gz."""
    paths = [path for path in (folder / f"{name}.csv", folder / f"{name}.csv.gz") if path.exists()]
    if not paths:
        raise SystemExit(f"{folder} has no {name}.csv")
    return csv.read_csv(paths[0])


def prepare(folder: Path, output: Path) -> dict[str, int]:
    """Write the three files; return their numbers of rows."""
    ratings, movies = read(folder, "ratings"), read(folder, "movies")
    place = {movie: row for row, movie in enumerate(movies["movieId"].to_pylist())}
    rows = pa.array([place[movie] for movie in ratings["movieId"].to_pylist()])
    ratings = ratings.append_column("genres", movies["genres"].take(rows))
    ratings = ratings.take(np.argsort(ratings["timestamp"].to_numpy(), kind="stable"))
    output.mkdir(parents=True, exist_ok=True)
    part = np.arange(len(ratings)) % 10
    counts = {}
    for name, members in PARTS.items():
        chosen = ratings.filter(pa.array(np.isin(part, list(members))))
        parquet.write_table(chosen, output / f"{name}.parquet", row_group_size=65536)
        counts[name] = len(chosen)
    return counts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("output", type=Path, nargs="?", default=OUTPUT)
    arguments = parser.parse_args()
    print(*(f"{name}: {count:,} rows" for name, count in prepare(arguments.folder, arguments.output).items()))
