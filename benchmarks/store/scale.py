"""Cost per id against the number of rows, and resident memory per row."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import satrap
from benchmarks.store.limits import Limit
from benchmarks.store.operations import OPTIMIZERS, open_shard
from benchmarks.store.plot import Line, line_plot
from benchmarks.store.workload import (
    FEATURES,
    SAMPLES,
    Batch,
    Methods,
    all_ids,
    batches,
    interleaved,
    show,
    summary,
)
from satrap.store import Shard

DIM = 16
"""Dim of the rows, in bfloat16, so that 100 million rows take 5 GiB."""
PROGRAM = "from benchmarks.store.scale import resident_per_row; resident_per_row({}, {}, {!r})"


def throughput(largest: int, folder: Path) -> dict[str, Any]:
    """Return lookups and updates from 1e5 rows to `largest`; writes `scale.svg` next to the raw figures."""
    sizes = sorted({*(10**k for k in range(5, 10) if 10**k < largest), largest})
    results: dict[str, Any] = {}
    for rows in sizes:
        rows = rows // FEATURES * FEATURES
        tables = [
            satrap.Table(f"f{t}", dim=DIM, dtype="bfloat16", optimizer=OPTIMIZERS["sgd"])
            for t in range(FEATURES)
        ]
        shard = Shard(tables, seed=1, threads=1)
        out = np.empty((65536, DIM), np.float32)
        for ids, splits in all_ids(rows, 52000):
            shard.lookup_group(0, ids, splits, out[: len(ids)])
        for skew in ("zipf", "uniform"):
            figures = _one_size(shard, batches(rows, skew, 8))
            show(f"{rows} rows of dim {DIM}, bfloat16, {skew}, ns per unique id", figures)
            results[f"{rows} {skew}"] = figures
        shard.close()
    _plot(results, folder)
    return results


def _one_size(shard: Shard, work: list[Batch]) -> dict[str, Any]:
    gradients = np.full((FEATURES * SAMPLES, DIM), 1e-3, np.float32)
    out, group, slab = np.empty_like(gradients), shard.groups[0], shard.groups[0].backend.slab
    slots = [group.directory.find(b.unique, b.unique_splits, use=False)[0] for b in work]
    limit = Limit("gather", slab.rows, DIM // 2).tuned(slots, out)
    methods: Methods = {
        "limit gather": lambda i: limit(slots[i], out),
        "lookup": lambda i: shard.lookup_group(
            0, work[i].unique, work[i].unique_splits, out[: len(work[i].unique)]
        ),
        "update": lambda i: shard.update_group(
            0, work[i].unique, work[i].unique_splits, gradients[: len(work[i].unique)]
        ),
    }
    limits = dict.fromkeys(("lookup", "update"), "limit gather")
    return summary(interleaved(methods, 8, 7), float(np.mean([len(b.unique) for b in work])), limits)


def _plot(results: dict[str, Any], folder: Path) -> None:
    lines = [
        Line(
            f"{operation}, {skew}",
            [(int(k.split()[0]), v[operation]["ns"]) for k, v in results.items() if k.endswith(skew)],
        )
        for operation in ("limit gather", "lookup", "update")
        for skew in ("zipf", "uniform")
    ]
    folder.mkdir(parents=True, exist_ok=True)
    title = f"Store, one thread, dim {DIM}, bfloat16: time per unique id"
    (folder / "scale.svg").write_text(line_plot(title, "rows in the table", "ns", lines), encoding="utf-8")


def memory() -> dict[str, Any]:
    """Return resident bytes per row beyond weights and state, each case in a fresh process."""
    results = {}
    for rows, dim, optimizer in (
        (5_000_000, 16, "rowwise_adagrad"),
        (8_000_000, 16, "adagrad"),
        (20_000_000, 8, "sgd"),
    ):
        command = [sys.executable, "-c", PROGRAM.format(rows, dim, optimizer)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        results[f"{rows} rows, dim {dim}, {optimizer}"] = json.loads(output.splitlines()[-1])
        print(list(results)[-1], output.splitlines()[-1], flush=True)
    return results


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def resident_per_row(rows: int, dim: int, optimizer: str) -> None:
    """Fill one table group and print its cost; called in a separate process."""
    rng = np.random.default_rng(0)
    shard = open_shard(dim, OPTIMIZERS[optimizer])
    out = np.zeros((52000, dim), np.float32)
    splits = np.arange(FEATURES + 1) * 2000
    shard.lookup_group(0, rng.integers(0, 2**64, 52000, np.uint64), splits, out)
    shard.clear()
    before = _resident()
    for _ in range(rows // 52000):
        shard.lookup_group(0, rng.integers(0, 2**64, 52000, np.uint64), splits, out)
    grown = _resident() - before
    statistics = shard.statistics()
    content = statistics.rows * shard.groups[0].row_bytes
    print(
        json.dumps(
            {
                "resident_overhead_per_row": round((grown - content) / statistics.rows, 2),
                "counted_overhead_per_row": round((statistics.bytes - content) / statistics.rows, 2),
                "load_factor": round(statistics.load_factor[0], 3),
            }
        )
    )
