"""Lookup, update and creation against the physical limit, one optimizer after another."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

import satrap
from benchmarks.store.limits import Limit
from benchmarks.store.workload import FEATURES, Batch, all_ids, batches, interleaved, show, summary
from satrap.store import Shard
from satrap.store.memory.reserve import HUGE, Reserved

OPTIMIZERS = {kind.name: kind(lr=0.001) for kind in satrap.optim.KINDS}


def open_shard(dim: int, optimizer: Any, threads: int = 1, **arguments: Any) -> Shard:
    """Return an empty store of 26 tables in one group."""
    tables = [satrap.Table(f"f{t}", dim=dim, optimizer=optimizer) for t in range(FEATURES)]
    return Shard(tables, seed=1, threads=threads, **arguments)


def filled(dim: int, rows: int, optimizer: Any, threads: int = 1) -> Shard:
    """Return a store that has all rows."""
    shard = open_shard(dim, optimizer, threads)
    out = np.empty((65536, dim), np.float32)
    for ids, splits in all_ids(rows, 52000):
        shard.lookup_group(0, ids, splits, out[: len(ids)])
    return shard


def measure(dim: int, rows: int, skew: str, threads: int, repeats: int, only: list[str]) -> dict[str, Any]:
    """Return figures of lookup and of each optimizer's update; ns per unique id."""
    work = batches(rows, skew, 8)
    per = float(np.mean([len(b.unique) for b in work]))
    results: dict[str, Any] = {"distinct_per_batch": round(per), "rows": rows}
    for name in only:
        shard = filled(dim, rows, OPTIMIZERS[name], threads)
        figures = _one(shard, dim, work, threads, repeats, per)
        show(f"dim {dim} {skew} {name} threads {threads} rows {rows}", figures)
        results[name] = figures
        shard.close()
    return results


def _one(shard: Shard, dim: int, work: list[Batch], threads: int, repeats: int, per: float) -> dict[str, Any]:
    group, slab = shard.groups[0], shard.groups[0].backend.slab
    width = int(slab.rows.stride) // 4 // 16 * 16
    slots = [group.directory.find(b.unique, b.unique_splits, use=False)[0] for b in work]
    out = np.zeros((max(len(b.unique) for b in work), dim), np.float32)
    gradients = np.random.default_rng(0).standard_normal(out.shape, dtype=np.float32) * np.float32(1e-3)
    gather = Limit("gather", slab.rows, dim, threads).tuned(slots, out)
    rmw = Limit("rmw", slab.rows, width, threads).tuned(slots, out)

    def lookup(i: int) -> None:
        shard.lookup_group(0, work[i].unique, work[i].unique_splits, out[: len(slots[i])])

    def update(i: int) -> None:
        b = work[i]
        shard.update_group(0, b.unique, b.unique_splits, gradients[: len(b.unique)])

    methods = {
        "limit gather": lambda i: gather(slots[i], out),
        "limit rmw": lambda i: rmw(slots[i], out),
        "lookup": lookup,
        "update": update,
    }
    updates = ("update", "update, slots known", "update, slots known, finite")
    limits = {"lookup": "limit gather", **dict.fromkeys(updates, "limit rmw")}
    handles = [shard.lookup_slots(0, b.unique, b.unique_splits)[1] for b in work]

    def update_known(i: int) -> None:
        b = work[i]
        shard.update_group(0, b.unique, b.unique_splits, gradients[: len(b.unique)], slots=handles[i])

    def update_finite(i: int) -> None:
        b = work[i]
        finite = gradients[: len(b.unique)]
        shard.update_group(0, b.unique, b.unique_splits, finite, slots=handles[i], checked=True)

    methods["update, slots known"] = update_known
    methods["update, slots known, finite"] = update_finite
    return summary(interleaved(methods, len(work), repeats, threads=threads), per, limits)


def create(dim: int, rows: int, optimizer: Any, chunk: int, touched: bool) -> dict[str, Any]:
    """Return ns per created row, and ms of single requests of `chunk` ids: by the clock, and of processor.

    The longest request is the pause of growth; waiting for a core that other programs use is not part of its
    processor time.
    """
    shard = open_shard(dim, optimizer)
    if touched:
        _touch(shard, rows)
    out = np.empty((chunk, dim), np.float32)
    requests = all_ids(rows, chunk)
    shard.lookup_group(0, *requests[0], out[: len(requests[0][0])])
    times, cpu = np.empty(len(requests)), np.empty(len(requests))
    for i, (ids, splits) in enumerate(requests):
        start, busy = time.perf_counter(), time.thread_time()
        shard.lookup_group(0, ids, splits, out[: len(ids)])
        times[i], cpu[i] = time.perf_counter() - start, time.thread_time() - busy
    assert shard.statistics().rows >= rows - FEATURES
    shard.close()
    return {
        "rows": rows,
        "ids_per_request": len(requests[1][0]),
        "ns_per_row": round(float(times.sum()) / rows * 1e9, 1),
        "cpu_ns_per_row": round(float(cpu.sum()) / rows * 1e9, 1),
        "request_ms": _spread(times),
        "request_cpu_ms": _spread(cpu),
    }


def first_touch(mib: int) -> dict[str, float]:
    """Return the processor ms that the system needs to provide each 2 MiB of fresh memory.

    A virtual machine may have to request memory from its host that none of its programs has used before.
    """
    pages = Reserved(mib << 20).array(np.uint8)[::HUGE]
    times = np.empty(len(pages))
    for i in range(len(pages)):
        busy = time.thread_time()
        pages[i] = 1
        times[i] = time.thread_time() - busy
    return _spread(times)


def _spread(seconds: npt.NDArray[np.float64]) -> dict[str, float]:
    return {
        name: round(float(np.percentile(seconds, q)) * 1e3, 3)
        for name, q in (("median", 50), ("p99", 99), ("p99.9", 99.9), ("longest", 100))
    }


def _touch(shard: Shard, rows: int) -> None:
    """Let the system back the memory that `rows` rows will use, so that only the store's work is timed."""
    group, slab = shard.groups[0], shard.groups[0].backend.slab
    slab.bytes[: rows * int(slab.rows.stride) : 4096] = 0
    group.directory._memory["entries"].array(np.uint8, 40 * rows + (4 << 20))[65536::4096] = 0
    slab.scalars[:rows:1024] = 0
