"""Steps over a table ten times larger than its memory, with the rest on disk, against all in memory."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import satrap
from benchmarks.record import write
from satrap.store import Eviction, Shard, Tier

RESULTS = Path(__file__).parent / "results"
KINDS = ("memory", "cached", "disk", "disk, prefetched")
DIM = 16
SKEW = 1.05


def main() -> None:
    """Run each kind in a process of its own, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--batch", type=int, default=16_384, help="draws per step")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--path", default=tempfile.gettempdir(), help="folder of the tier")
    parser.add_argument("--kind", choices=KINDS, help="measure this one here, and print it")
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(measure(arguments)))
        return
    results = {}
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.tier", *sys.argv[1:], "--kind", kind]
        results[kind] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        results[kind]["times_memory"] = round(results[kind]["step_ms"] / results["memory"]["step_ms"], 2)
        print(kind, results[kind])
    parameters = {"rows": arguments.rows, "batch": arguments.batch, "steps": arguments.steps, "skew": SKEW}
    print(write(RESULTS, parameters, results))


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill a store, then take steps of lookup and update; return median times and memory."""
    kind, rows = arguments.kind, arguments.rows
    draw = zipf(rows, arguments.batch)
    table = satrap.Table("t", dim=DIM, optimizer=satrap.optim.RowWiseAdagrad(lr=0.1))
    budget = rows * (4 * DIM + 4 + 24) // 10
    bounds: dict[str, Any] = {"memory": budget, "eviction": Eviction("lru")}
    warm = Shard([table], memory=1 << 20, eviction=Eviction(), tier=Tier(arguments.path, 1 << 24))
    run(warm, [draw() for _ in range(20)], kind)
    warm.close()
    before = resident()
    size = Tier(arguments.path, rows * (4 * DIM + 4) + (1 << 20))
    store = Shard([table]) if kind == "memory" else Shard([table], **bounds, tier=size)
    for first in range(0, rows, 65_536):
        store.lookup("t", np.arange(first, min(first + 65_536, rows), dtype=np.uint64))
    run(store, [draw() for _ in range(arguments.steps // 2)], "cached")
    lookups, updates, ids = run(store, [draw() for _ in range(arguments.steps)], kind)
    after, tier = resident(), store.statistics().get("tier")
    return {
        "step_ms": round(1e3 * float(np.median(lookups + updates)), 3),
        "lookup_ms": round(1e3 * float(np.median(lookups)), 3),
        "update_ms": round(1e3 * float(np.median(updates)), 3),
        "ids_per_step": ids,
        "resident_mib": round((after - before) / 2**20, 1),
        "budget_mib": None if kind == "memory" else round(budget / 2**20, 1),
        "tier": tier,
    }


def run(store: Shard, batches: list[np.ndarray], kind: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return seconds of each lookup and each update, and the mean number of distinct ids."""
    lookups, updates = [], []
    rng = np.random.default_rng(2)
    for ids in batches:
        gradients = rng.standard_normal((len(ids), DIM)).astype(np.float32)
        splits = np.array([0, len(ids)])
        cold = store.groups[0].cold
        if kind.startswith("disk") and cold is not None:
            cold.file.forget_pages()  # as if the file were much larger than the machine's memory
        if kind.endswith("prefetched"):
            store.ahead.prefetch(0, ids, splits)
        time.sleep(0.05)  # the network's turn
        start = time.perf_counter()
        _, slots = store.lookup_slots(0, ids, splits)
        middle = time.perf_counter()
        store.update_group(0, ids, splits, gradients, slots=slots)
        lookups.append(middle - start)
        updates.append(time.perf_counter() - middle)
    return np.array(lookups), np.array(updates), round(sum(map(len, batches)) / len(batches))


def zipf(rows: int, batch: int) -> Any:
    """Return what draws the distinct ids of a batch; ranks are spread over the ids."""
    rng = np.random.default_rng(1)
    shares = np.arange(1, rows + 1, dtype=np.float64) ** -SKEW
    steps = np.cumsum(shares / shares.sum())
    names = rng.permutation(rows).astype(np.uint64)
    return lambda: names[np.unique(np.minimum(np.searchsorted(steps, rng.random(batch)), rows - 1))]


def resident() -> int:
    """Return the bytes of memory of this process that are not pages of a file."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()
