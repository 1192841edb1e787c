"""Lookup and update of one batch: over shard servers, in one process, and the bytes alone over a socket.

`python -m benchmarks.exchange [--batches 60] [--shards 1] [--write]`. Times are medians over batches after a
first epoch over the same number of batches; all variants run in one process, one after another.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.exchange.rawsocket import RawSocket
from benchmarks.exchange.workload import BATCH, requests, tables
from benchmarks.processes import processor_seconds
from benchmarks.record import write
from satrap.exchange import Exchange, LocalExchange, Lookup, LookupRequest
from satrap.exchange.servers import ServersExchange, Wire
from satrap.store import Shard

AHEAD = 4


def start(shards: int) -> tuple[list[subprocess.Popen[str]], list[str]]:
    """Start shard processes; return them and their addresses."""
    command = [sys.executable, "-m", "satrap.cli", "shard", "--listen", "127.0.0.1:0"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(shards)]
    return processes, [p.stdout.readline().split()[4] for p in processes if p.stdout]


def one_by_one(exchange: Exchange, work: Sequence[LookupRequest], gradients: np.ndarray) -> dict[str, float]:
    """Lookup, wait, update, wait: the round trips, in ms."""
    looked, updated = [], []
    for request in work:
        t0 = time.perf_counter()
        lookup = exchange.lookup([request], create=True)
        lookup.result()
        t1 = time.perf_counter()
        exchange.apply(lookup, [gradients[: len(request.ids)]], lr_scale=1.0)
        exchange.flush()
        t2 = time.perf_counter()
        looked.append(t1 - t0)
        updated.append(t2 - t1)
    lookup, update = (1000 * statistics.median(x) for x in (looked, updated))
    return {
        "lookup_ms": round(lookup, 3),
        "update_ms": round(update, 3),
        "both_ms": round(lookup + update, 3),
    }


def finish(exchange: Exchange, lookup: Lookup[Any], gradients: np.ndarray) -> None:
    """Wait for a lookup, then issue its update."""
    [rows] = lookup.result()
    exchange.apply(lookup, [gradients[: len(rows)]], lr_scale=1.0)


def ahead(exchange: Exchange, work: Sequence[LookupRequest], gradients: np.ndarray) -> float:
    """Seconds per batch with lookups issued ahead, as `hybrid` does."""
    open_: deque[Any] = deque()
    t0 = time.perf_counter()
    for request in work:
        open_.append(exchange.lookup([request], create=True))
        if len(open_) > AHEAD:
            finish(exchange, open_.popleft(), gradients)
    while open_:
        finish(exchange, open_.popleft(), gradients)
    exchange.flush()
    return (time.perf_counter() - t0) / len(work)


def measure(
    exchange: Exchange, work: Sequence[LookupRequest], gradients: np.ndarray, pids: Sequence[int]
) -> dict[str, Any]:
    """Run one variant: an epoch that creates the rows and compiles, then the measured ones."""
    ahead(exchange, work, gradients)
    result: dict[str, Any] = one_by_one(exchange, work, gradients)
    traffic = exchange.telemetry.traffic()
    before = [processor_seconds(pid) for pid in pids]
    seconds = ahead(exchange, work, gradients)
    cpu = [b - a for a, b in zip(before, (processor_seconds(p) for p in pids), strict=True)]
    million = len(work) * BATCH / 1e6
    result["ahead_ms"] = round(1000 * seconds, 3)
    result["samples_per_second"] = round(BATCH / seconds)
    result["cpu_seconds_per_million_samples"] = [round(c / million, 2) for c in cpu]
    after = exchange.telemetry.traffic()
    if after.sent:
        samples = len(work) * BATCH
        result["bytes_per_sample"] = {
            k: round((getattr(after, k) - getattr(traffic, k)) / samples, 1) for k in ("sent", "received")
        }
    return result


def run_raw(work: Sequence[LookupRequest], dim: int) -> dict[str, float]:
    raw = RawSocket()
    looked, updated = [], []
    for request in [*work[:10], *work]:
        ids, rows = 8 * len(request.ids), 2 * dim * len(request.ids)
        t0 = time.perf_counter()
        raw.call(ids, rows)
        t1 = time.perf_counter()
        raw.call(ids + rows, 76)
        t2 = time.perf_counter()
        looked.append(t1 - t0)
        updated.append(t2 - t1)
    raw.close()
    lookup, update = (1000 * statistics.median(x[10:]) for x in (looked, updated))
    return {
        "lookup_ms": round(lookup, 3),
        "update_ms": round(update, 3),
        "both_ms": round(lookup + update, 3),
    }


def run_servers(
    work: Sequence[LookupRequest], dim: int, gradients: np.ndarray, wire: Wire, shards: int
) -> Any:
    processes, addresses = start(shards)
    exchange = ServersExchange(addresses, tables(dim), wire=wire)
    try:
        return measure(exchange, work, gradients, [os.getpid(), *(p.pid for p in processes)])
    finally:
        exchange.close()
        for process in processes:
            process.terminate()
            process.wait(10)


def run_dim(dim: int, work: Sequence[LookupRequest], shards: int) -> dict[str, Any]:
    most = max(len(r.ids) for r in work)
    gradients = np.random.default_rng(0).standard_normal((most, dim)).astype(np.float32) * np.float32(1e-3)
    local = LocalExchange(Shard(tables(dim), seed=1))
    results = {"local": measure(local, work, gradients, [os.getpid()])}
    local.close()
    variants: dict[str, Callable[[], Any]] = {
        "servers_float16_bfloat16": lambda: run_servers(work, dim, gradients, Wire(), shards),
        "servers_float32": lambda: run_servers(work, dim, gradients, Wire("float32", "float32"), shards),
        "raw_socket_16_bit": lambda: run_raw(work, dim),
    }
    for name, variant in variants.items():
        results[name] = variant()
    for name, result in results.items():
        print(f"dim {dim:3} {name:26} {result}", flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument("--dims", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    arguments = parser.parse_args()
    work = requests(arguments.batches)
    shape = {"distinct_ids": round(float(np.mean([len(r.ids) for r in work])))}
    print(shape)
    load = os.getloadavg()[0]
    results: dict[str, Any] = {f"dim{d}": run_dim(d, work, arguments.shards) for d in arguments.dims}
    if arguments.write:
        print(
            write(
                Path(__file__).parent / "results",
                vars(arguments) | shape | {"load_before": round(load, 2)},
                results,
            )
        )


if __name__ == "__main__":
    main()
