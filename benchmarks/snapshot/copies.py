"""Cost of rows that change while a cut is read: they are copied first.

`python -m benchmarks.snapshot.copies [--rows 200000 2000000] [--source OLD/src]`

The store has 8 times `rows` rows (dim 8, Adagrad); `rows` of them are updated, 10,000 at a time, after a cut
was taken and before it is read. In seconds: the updates without a cut (`alone`) and with it (`copying`), the
longest time a lookup of one row waited while the cut was then read (`longest_wait`), and the read. In MiB:
the largest growth of the process's memory above the store. Each number of rows has its own process; with
`--source`, a second process with the package of that folder, to compare in one run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import satrap
from benchmarks.record import write
from satrap.store import Shard

STEP = 10_000


def resident() -> int:
    """Return the bytes of memory in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Peak:
    """Peak of the memory in use while it runs, sampled every millisecond."""

    def __enter__(self) -> Peak:
        self.start = self.most = resident()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()
        return self

    def watch(self) -> None:
        while not self.over.wait(0.001):
            self.most = max(self.most, resident())

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


def train(shard: Shard, ids: np.ndarray) -> float:
    """Update rows; return the seconds."""
    gradients, start = np.ones((STEP, 8), np.float32), time.perf_counter()
    for i in range(0, len(ids), STEP):
        shard.update_group(0, ids[i : i + STEP], np.array([0, STEP]), gradients)
    return time.perf_counter() - start


def measure(rows: int) -> dict[str, Any]:
    """Return the figures for a number of changed rows."""
    table = satrap.Table("a", dim=8, optimizer=satrap.optim.Adagrad(lr=0.01))
    shard = Shard([table], seed=1, threads=1)
    every = np.arange(8 * rows, dtype=np.uint64)
    for i in range(0, len(every), STEP):
        shard.lookup("a", every[i : i + STEP])
    changed = np.random.default_rng(0).permutation(every)[:rows]
    for _ in shard.snapshot():  # compiles, and grows the buffers
        break
    alone = min(train(shard, changed) for _ in range(3))
    waits, over = [0.0], threading.Event()

    def look() -> None:
        while not over.is_set():
            start = time.perf_counter()
            shard.peek("a", every[:1])
            waits.append(time.perf_counter() - start)
            time.sleep(0.001)

    with Peak() as memory:
        cut = shard.snapshot()
        copying = train(shard, changed)
        looker = threading.Thread(target=look)
        looker.start()
        start = time.perf_counter()
        count = sum(len(chunk.ids) for chunk in cut)
        reading = time.perf_counter() - start
        over.set()
        looker.join()
    assert count == len(every)
    return {
        "rows": rows,
        "alone": alone,
        "copying": copying,
        "longest_wait": max(waits),
        "reading": reading,
        "peak_mib": (memory.most - memory.start) / 2**20,
    }


def run(rows: int, source: str | None) -> dict[str, Any]:
    """Measure in a separate process, with the package of a folder."""
    paths = [path for path in (source, os.environ.get("PYTHONPATH")) if path]
    done = subprocess.run(
        [sys.executable, "-m", __spec__.name, "--one", str(rows)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.PIPE,
        check=True,
    )
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[200_000, 2_000_000])
    parser.add_argument("--source")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one)))
        return
    sources = {"now": None, **({"before": options.source} if options.source else {})}
    figures = [{"source": name, **run(rows, path)} for rows in options.rows for name, path in sources.items()]
    for line in figures:
        print(line)
    folder = Path(__file__).parent / "results"
    path = folder / "copies.json"
    print(write(folder, {"rows": options.rows, "step": STEP}, {"runs": figures}, path))


if __name__ == "__main__":
    main()
