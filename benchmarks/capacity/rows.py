"""A billion rows in one process: created, trained on, saved, and loaded by another process.

`python -m benchmarks.capacity.rows --tier FOLDER [--rows 1e9] [--memory 19200]`

Rows of dim 4 in bfloat16 with row-wise Adagrad: 12 bytes of weights and state. Memory holds rows up to the
budget, the tier's file the others. Every row of a sample is compared with a small store without a tier, which
receives the same updates: after training, and again after loading.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import numpy as np
import torch

from benchmarks.record import write
from benchmarks.tier.__main__ import resident
from satrap.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from satrap.exchange import LocalExchange
from satrap.store import Eviction, Shard, Tier
from satrap.store.arrays import Floats, Ids

DIM, BLOCK, RECORD, SKEW = 4, 1 << 20, 12, 1.05
SAMPLED = np.uint64(1009)
"""One in this number of ids is compared."""
GIB = 2**30


def table() -> satrap.Table:
    """Return the description of the rows."""
    return satrap.Table("id", dim=DIM, optimizer=satrap.optim.RowWiseAdagrad(lr=0.05), dtype="bfloat16")


def ids_of(numbers: Ids) -> Ids:
    """Spread numbers over all 64-bit ids, one to one."""
    return (numbers + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


def batches(rows: int, draws: int, steps: int) -> Iterator[tuple[Ids, Floats]]:
    """Yield unique ids, ascending, drawn by Zipf's law (the continuous one), and a gradient for each."""
    for step in range(steps):
        random = np.random.default_rng(step)
        power = 1 - SKEW
        ranks = (1 + random.random(draws) * ((rows + 1.0) ** power - 1)) ** (1 / power)
        # A prime, so that each rank has its own number, and frequent ids were not created first.
        numbers = np.unique(ranks.astype(np.uint64) * np.uint64(2_654_435_761) % np.uint64(rows))
        yield np.sort(ids_of(numbers)), random.standard_normal((len(numbers), DIM), np.float32)


def sampled(ids: Ids) -> Any:
    """Return which ids are compared, bool[n]."""
    return ids % SAMPLED == 0


def wrong(found: Shard, rows: int, trained: list[tuple[Ids, Floats]]) -> tuple[int, int]:
    """Return the number of compared rows, and how many of them differ from a small store's rows."""
    oracle = Shard([table()], seed=1)
    for ids, gradients in trained:
        chosen = sampled(ids)
        oracle.lookup("id", ids[chosen])
        oracle.update("id", ids[chosen], gradients[chosen])
    compared = differ = 0
    for start in range(0, rows, 16 * BLOCK):
        ids = ids_of(np.arange(start, min(rows, start + 16 * BLOCK), dtype=np.uint64))
        ids = ids[sampled(ids)]
        have, there = found.peek("id", ids)
        differ += int((~there | (have != oracle.lookup("id", ids)).any(axis=1)).sum())
        compared += len(ids)
    oracle.close()
    return compared, differ


def opened(options: argparse.Namespace) -> Shard:
    """Return a store with memory for some of the rows, and a file for the others."""
    size = int(options.rows * options.file_share) * RECORD
    memory = options.memory << 20
    return Shard([table()], seed=1, memory=memory, eviction=Eviction("lru"), tier=Tier(options.tier, size))


def make(options: argparse.Namespace) -> dict[str, Any]:
    """Create, train on, compare and save the rows."""
    figures: dict[str, Any] = {}
    store, rows = opened(options), int(options.rows)
    start, cpu = time.perf_counter(), time.process_time()
    for first in range(0, rows, BLOCK):
        store.lookup("id", ids_of(np.arange(first, min(rows, first + BLOCK), dtype=np.uint64)))
        if first % (64 * BLOCK) == 0:
            print(f"created {first:,}, {resident() / GIB:.1f} GiB", file=sys.stderr, flush=True)
    figures["create_ns_per_row"] = 1e9 * (time.perf_counter() - start) / rows
    figures["create_cpu_ns_per_row"] = 1e9 * (time.process_time() - cpu) / rows
    figures["rows"] = store.statistics().rows
    figures["resident_gib"] = resident() / GIB

    trained, times = [], []
    for ids, gradients in batches(rows, options.draws, options.steps):
        start = time.perf_counter()
        store.lookup("id", ids)
        store.update("id", ids, gradients)
        times.append(1e3 * (time.perf_counter() - start))
        chosen = sampled(ids)
        trained.append((ids[chosen], gradients[chosen]))
    figures |= {"first_step_ms": times[0], "last_steps_ms": float(np.median(times[len(times) // 2 :]))}
    counted = store.statistics().tier
    assert counted is not None
    figures |= {"distinct_ids_per_step": len(ids), "tier": asdict(counted)}
    figures["compared"], figures["wrong"] = wrong(store, rows, trained)

    exchange = LocalExchange(store)
    start = time.perf_counter()
    cut = exchange.rows.cut(still=True)
    figures["cut_ms"] = 1e3 * (time.perf_counter() - start)
    saved = write_checkpoint(options.folder, Checkpoint({"steps": 1}, {"w": torch.zeros(1)}, {}, cut))
    seconds = time.perf_counter() - start
    figures |= {"save_s": seconds, "save_gb": saved.bytes / 1e9, "save_mb_s": saved.bytes / 1e6 / seconds}
    exchange.close()
    return figures


def load(options: argparse.Namespace) -> dict[str, Any]:
    """Load and compare the rows."""
    exchange, start = LocalExchange(opened(options)), time.perf_counter()
    for name, chunk in read_checkpoint(options.folder).chunks:
        exchange.rows.load(name, chunk)
    seconds = time.perf_counter() - start
    trained = []
    for ids, gradients in batches(int(options.rows), options.draws, options.steps):
        trained.append((ids[sampled(ids)], gradients[sampled(ids)]))
    compared, differ = wrong(exchange.shard, int(options.rows), trained)
    figures = {"load_s": seconds, "loaded_rows": exchange.shard.statistics().rows}
    figures |= {
        "loaded_compared": compared,
        "loaded_wrong": differ,
        "resident_after_load_gib": resident() / GIB,
    }
    exchange.close()
    return figures


def main() -> None:
    """Run both stages, each in a separate process, and record their results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity.rows", description=__doc__)
    parser.add_argument("--rows", type=float, default=1e9)
    parser.add_argument("--memory", type=int, default=19_200, help="MiB, the index of the file included")
    parser.add_argument(
        "--file-share", type=float, default=1.0, help="share of the rows that the file has room for"
    )
    parser.add_argument("--tier", required=True, help="folder of the file, and of the snapshot")
    parser.add_argument("--draws", type=int, default=16_384, help="ids per step, Zipf(1.05)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    parser.add_argument("--stage", choices=["make", "load"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        figures = (make if options.stage == "make" else load)(options)
        figures[f"{options.stage}_peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps(figures))
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.tier) as folder:
        place = str(Path(folder) / "snapshot")
        for stage in ("make", "load"):
            command = [sys.executable, "-m", "benchmarks.capacity.rows", *sys.argv[1:]]
            command += ["--stage", stage, "--folder", place]
            results |= json.loads(
                subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            )
            print(results, flush=True)
        shutil.rmtree(place)
    if options.write:
        print(write(Path(__file__).parent / "results", {"rows": int(options.rows)}, results))


if __name__ == "__main__":
    main()
