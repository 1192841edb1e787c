"""Copies of rows to a network's input: processor ms of one thread, with cold caches.

`python -m benchmarks.peers.pooling [--name NAME]` writes the raw figures to results/NAME.json. A block has
only the features of a sample; the input also has 13 numbers, so samples begin within a cache line.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

import numpy as np

from benchmarks.record import write
from benchmarks.train_vs_pytorch.workload import NUM_CATEGORICAL, NUM_NUMERIC, cardinalities, generate
from satrap.runtime.malloc import keep_freed_memory
from satrap.store import distinct, gather_features
from satrap.store.memory.buffers import floats

BATCH, BATCHES, ROWS, REPEATS = 4096, 8, 4_000_000, 3


def measure(dim: int) -> dict[str, float]:
    """Return the median time of a batch by layout."""
    ids = generate(BATCH * BATCHES, cardinalities(ROWS), seed=1).ids
    splits = np.arange(NUM_CATEGORICAL + 1, dtype=np.int64) * BATCH
    width, others = NUM_CATEGORICAL * dim, np.ones(8_000_000, np.float32)
    times: dict[str, list[float]] = {"block": [], "input": []}
    for number in [*range(BATCHES)] * REPEATS:
        part = np.ascontiguousarray(ids[number * BATCH :][:BATCH].T).reshape(-1).view(np.uint64)
        unique, _, inverse = distinct(part, splits)
        rows = np.ones((len(unique), dim), np.float32)
        for layout, seen in times.items():
            others += 1  # fills the caches
            start = time.thread_time()
            beside = NUM_NUMERIC if layout == "input" else 0
            out = floats(BATCH, width + beside)[:, :width].reshape(BATCH, NUM_CATEGORICAL, dim)
            gather_features(rows, inverse, NUM_CATEGORICAL, out=out)
            seen.append(1e3 * (time.thread_time() - start))
    return {layout: round(statistics.median(seen[BATCHES:]), 2) for layout, seen in times.items()}


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="pooling")
    options = parser.parse_args()
    keep_freed_memory(1 << 30, (2 << 30) - 1)
    results = {f"dim {dim}": measure(dim) for dim in (16, 64, 128)}
    print(results)
    folder = Path(__file__).parent / "results"
    print(write(folder, {"batch": BATCH, "rows": ROWS}, results, folder / f"{options.name}.json"))


if __name__ == "__main__":
    main()
