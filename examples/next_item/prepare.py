"""Write the events of a file of ratings as rows that a model of the next item reads.

    python examples/next_item/prepare.py RATINGS NAME [--length 200] [--least 5]

RATINGS has user, item, rating and time: ratings.dat of MovieLens-1M, ratings.csv of other MovieLens sets, or
a file of Amazon's ratings, also compressed. The events of a user are in order of time, ties in the order of
the file. The last one is the test, the one before is for validation. The others are cut into histories of at
most --length events and the item after them, so that each event is predicted once. Users need three events.
--least first removes ratings of items and users with fewer ratings. The files go to the folder that the
recipe NAME.yaml reads.
"""

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

RECIPES = Path(__file__).resolve().parents[1] / "recipes"
COLUMNS = ["user", "item", "rating", "time"]


def read(path: Path) -> pa.Table:
    """Read a file of ratings; a line with the word timestamp first names the columns."""
    with pa.input_stream(str(path), compression="detect") as file:
        text = file.read()
    header = b"timestamp" in text[: text.find(b"\n")]
    options = csv.ReadOptions(column_names=COLUMNS, skip_rows=int(header))
    return csv.read_csv(pa.BufferReader(text.replace(b"::", b",")), read_options=options)


def frequent(events: pa.Table, least: int) -> pa.Table:
    """Return the events whose user and item have at least `least` events each in the file."""
    kept = np.ones(len(events), np.bool_)
    for name in ("user", "item"):
        _, code, count = np.unique(events[name].to_numpy(), return_inverse=True, return_counts=True)
        kept &= count[code] >= least
    return events.filter(pa.array(kept))


def rows(events: pa.Table, spans: list[tuple[int, int]]) -> pa.Table:
    """Return a row for each (start, stop): the event `stop` after the events from `start` on."""
    starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
    lengths = stops - starts
    ends = np.cumsum(lengths)
    places = np.arange(lengths.sum()) + np.repeat(starts - (ends - lengths), lengths)
    history = pa.ListArray.from_arrays(
        pa.array(np.append(0, ends), pa.int32()), events["item"].take(places).combine_chunks()
    )
    return events.select(["user", "item"]).take(stops).append_column("history", history)


def prepare(ratings: Path, output: Path, length: int, least: int = 0) -> dict[str, int]:
    """Write the three files; return their numbers of rows."""
    events = frequent(read(ratings), least)
    _, users = np.unique(events["user"].to_numpy(), return_inverse=True)
    order = np.lexsort((events["time"].to_numpy(), users))
    events, users = events.take(order), users[order]
    firsts = np.append(np.flatnonzero(np.diff(users, prepend=-1)), len(users))
    spans: dict[str, list[tuple[int, int]]] = {"train": [], "validation": [], "test": []}
    for first, end in zip(firsts[:-1].tolist(), firsts[1:].tolist(), strict=True):
        if end - first < 3:
            continue
        for part, stop in (("validation", end - 2), ("test", end - 1)):
            spans[part].append((max(first, stop - length), stop))
        spans["train"] += [(max(first, stop - length), stop) for stop in range(end - 3, first, -length)]
    output.mkdir(parents=True, exist_ok=True)
    for part, chosen in spans.items():
        parquet.write_table(rows(events, chosen), output / f"{part}.parquet", row_group_size=65536)
    return {part: len(chosen) for part, chosen in spans.items()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ratings", type=Path)
    parser.add_argument("name")
    parser.add_argument("--length", type=int, default=200)
    parser.add_argument("--least", type=int, default=0)
    a = parser.parse_args()
    counts = prepare(a.ratings, RECIPES / "data" / a.name, a.length, a.least)
    print(*(f"{name}: {count:,} rows" for name, count in counts.items()))
