"""Recall@10 and NDCG@10 of the next film among all films, by six models.

`python -m benchmarks.next_item FOLDER [--ways sasrec] [--seeds 1 2 3]`, where FOLDER has ratings.csv of
MovieLens latest-small (or .csv.gz).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.next_item.data_sets import movielens
from benchmarks.next_item.training import ALL, EXCLUDED, NAMES, popularity, trained
from benchmarks.next_item.ways import WAYS
from benchmarks.record import write

POPULARITY = "popularity"


def described(runs: list[dict[str, Any]], protocol: str) -> str:
    """Return the mean and the standard deviation of the test metrics over the seeds."""
    cells = []
    for name in NAMES:
        values = [run["test"][protocol][name] for run in runs]
        spread = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
        cells.append(f"{statistics.mean(values):.4f}{spread}")
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ways", nargs="+", choices=[POPULARITY, *WAYS], default=[POPULARITY, *WAYS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    a = parser.parse_args()
    events, results, kept = movielens(a.folder), dict[str, Any](), None
    print(f"| | {EXCLUDED}: {' | '.join(NAMES)} | {ALL}: {' | '.join(NAMES)} |")
    for name in a.ways:
        runs = results[name] = list[dict[str, Any]]()
        for seed in a.seeds[: 1 if name == POPULARITY else None]:
            runs.append(popularity(events) if name == POPULARITY else trained(WAYS[name], events, seed))
            parameters = {**vars(a), "folder": a.folder.name, "settings": {n: repr(WAYS[n]) for n in WAYS}}
            print(f"{name}, seed {seed}: {runs[-1]}", flush=True)
            kept = write(Path(__file__).parent / "results", parameters, results, kept)
        print(f"| {name} | {' | '.join(described(runs, each) for each in (EXCLUDED, ALL))} |", flush=True)
    print(kept)


if __name__ == "__main__":
    main()
