"""Build an index of item vectors with usearch, and compare its results with exact search.

    satrap export items runs/x items.parquet
    satrap export items runs/x users.parquet --tower user
    python examples/retrieval/nearest.py items.parquet users.parquet [INDEX]

For each of some users it searches the ten items with the largest dot product, in the index and exhaustively,
and prints the share of the true ten that the index finds (recall@10). It needs usearch: pip install usearch.
INDEX is the file for the index; its keys are the row numbers of items.parquet.

If lengths differ, a graph of neighbours may miss the largest dot products, because paths end at long vectors.
So items get one more column that gives all of them the same length, and users a zero there. Then cosines have
the order of the dot products (Bachrach et al., "Speeding Up the Xbox Recommender System Using a Euclidean
Transformation for Inner-Product Spaces", RecSys 2014).
"""

import argparse
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from usearch.index import Index

WANTED = 10


def read(path: Path) -> np.ndarray:
    """Return the vectors of a file of `satrap export items`, float32[rows, width]."""
    vectors = pq.read_table(path, columns=["vector"])["vector"].combine_chunks()
    return vectors.flatten().to_numpy().reshape(-1, vectors.type.list_size)


def best(items: np.ndarray, users: np.ndarray, count: int) -> np.ndarray:
    """Return the items with the largest dot products for each user, int64[users, count], in no order."""
    return np.argpartition(-(users @ items.T), count - 1, axis=1)[:, :count]


def built(items: np.ndarray) -> Index:
    """Return an index of items under their row numbers, with one more column."""
    squares = np.square(items).sum(1)
    level = np.sqrt(np.maximum(squares.max() - squares, 0))
    index = Index(ndim=items.shape[1] + 1, metric="cos", dtype="f32")
    index.add(np.arange(len(items)), np.column_stack([items, level]), threads=1)
    return index


def found(index: Index, user: np.ndarray, count: int) -> np.ndarray:
    """Return the row numbers of the best items for a user's vector."""
    return index.search(np.append(user, np.float32(0)), count, threads=1).keys


def recall(index: Index, items: np.ndarray, users: np.ndarray) -> float:
    """Return the share of the true `WANTED` items that the index finds, over all users."""
    count = min(WANTED, len(items))
    pairs = zip(users, best(items, users, count), strict=True)
    hits = sum(len(np.intersect1d(found(index, user, count), true)) for user, true in pairs)
    return hits / (len(users) * count)


def main() -> None:
    """Read the arguments, build, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("items", type=Path)
    parser.add_argument("users", type=Path)
    parser.add_argument("index", type=Path, nargs="?")
    parser.add_argument("--queries", type=int, default=1000, help="how many users, default 1000")
    arguments = parser.parse_args()
    items = read(arguments.items)
    users = read(arguments.users)[: arguments.queries]
    start = time.process_time()
    index = built(items)
    seconds = time.process_time() - start
    print(
        f"items      {len(items):,} of width {items.shape[1]}, indexed in {seconds:.2f} s of processor time"
    )
    print(f"recall@{WANTED}  {recall(index, items, users):.4f} over {len(users):,} users")
    if arguments.index:
        index.save(str(arguments.index))


if __name__ == "__main__":
    main()
