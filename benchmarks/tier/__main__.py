"""Steps over a table ten times larger than its memory, with the rest on disk, compared with all in memory."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import satrap
from benchmarks.record import write
from satrap.exchange import LookupRequest
from satrap.exchange.servers import ServersExchange, ShardServer, Wire
from satrap.store import Eviction, Shard, StoreConfig, Tier
from satrap.store.arrays import Floats, Ids, Offsets
from satrap.store.tier import Tiered

RESULTS = Path(__file__).parent / "results"
KINDS = (
    "memory",
    "cached",
    "cached, read only",
    "disk",
    "disk, prefetched",
    "shard, disk",
    "shard, disk, prefetched",
)
EXACT = Wire("float32", "float32")
DIM = 16
SKEW = 1.05


def main() -> None:
    """Run each kind in a separate process, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--batch", type=int, default=16_384, help="draws per step")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--path", default=tempfile.gettempdir(), help="folder of the tier")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=KINDS)
    parser.add_argument("--kind", choices=KINDS, help="measure this kind in this process, and print it")
    arguments = parser.parse_args()
    if arguments.kind:
        print(json.dumps(measure(arguments)))
        return
    results: dict[str, dict[str, Any]] = {}
    for kind in arguments.kinds:
        command = [sys.executable, "-m", "benchmarks.tier", *sys.argv[1:], "--kind", kind]
        results[kind] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        if "memory" in results:
            results[kind]["times_memory"] = round(results[kind]["step_ms"] / results["memory"]["step_ms"], 2)
        print(kind, results[kind])
    parameters = {"rows": arguments.rows, "batch": arguments.batch, "steps": arguments.steps, "skew": SKEW}
    print(write(RESULTS, parameters, results))


class Local:
    """A store of this process."""

    def __init__(self, table: satrap.Table, bounds: dict[str, Any]) -> None:
        self.store = Shard([table], **bounds)

    def prefetch(self, ids: Ids, splits: Offsets) -> None:
        """Name ids of the next step."""
        self.store.ahead.prefetch(0, ids, splits)

    def lookup(self, ids: Ids, splits: Offsets) -> Any:
        """Look rows up; return the argument of the update."""
        return self.store.lookup_slots(0, ids, splits)[1]

    def update(self, ids: Ids, splits: Offsets, gradients: Floats, found: Any) -> None:
        """Take a step."""
        self.store.update_group(0, ids, splits, gradients, slots=found)

    def close(self) -> None:
        """Give everything back."""
        self.store.close()


class Remote:
    """A shard server, a thread of this process, behind its socket."""

    def __init__(self, table: satrap.Table, bounds: dict[str, Any]) -> None:
        self._server = ShardServer("127.0.0.1:0").start()
        self._exchange = ServersExchange(
            [self._server.address], [table], store=StoreConfig(**bounds), wire=EXACT
        )
        self.store = self._server.service.store

    def prefetch(self, ids: Ids, splits: Offsets) -> None:
        """Name ids of the next step."""
        self._exchange.prefetch([LookupRequest(0, ids, splits)])

    def lookup(self, ids: Ids, splits: Offsets) -> None:
        """Look rows up."""
        self._lookup = self._exchange.lookup([LookupRequest(0, ids, splits)], create=True)
        self._lookup.result()

    def update(self, ids: Ids, splits: Offsets, gradients: Floats, _: Any) -> None:
        """Take a step, and wait until it is taken."""
        self._exchange.apply(self._lookup, [gradients], lr_scale=1.0)
        self._exchange.flush()

    def close(self) -> None:
        """Give everything back."""
        self._exchange.close()
        self._server.stop()


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Fill a store, then take steps of lookup and update; return median times and memory."""
    kind, rows = arguments.kind, arguments.rows
    draw = zipf(rows, arguments.batch)
    table = satrap.Table("t", dim=DIM, optimizer=satrap.optim.RowWiseAdagrad(lr=0.1))
    file = rows * (4 * DIM + 4) + (1 << 20)
    budget = rows * (4 * DIM + 4 + 24) // 10 + file // (4 * DIM + 4) * 19 + (1 << 18)
    make = Remote if kind.startswith("shard") else Local
    small = {"memory": 1 << 23, "eviction": Eviction(), "tier": Tier(arguments.path, 1 << 24)}
    warm = make(table, small)
    run(warm, [draw() for _ in range(20)], kind)
    warm.close()
    before = resident()
    tier = Tier(arguments.path, file)
    bounds: dict[str, Any] = {"memory": budget, "eviction": Eviction("lru"), "tier": tier}
    store = make(table, {} if kind == "memory" else bounds)
    for first in range(0, rows, 65_536):
        store.store.lookup("t", np.arange(first, min(first + 65_536, rows), dtype=np.uint64))
    if kind.endswith("read only"):  # until memory holds rows of the file, unchanged
        run(store, [draw() for _ in range(8 * rows // 10 // arguments.batch)], kind)
    else:
        run(store, [draw() for _ in range(arguments.steps // 2)], "cached")
    filled = store.store.statistics().tier
    lookups, updates, ids = run(store, [draw() for _ in range(arguments.steps)], kind)
    after, counts = resident(), store.store.statistics().tier
    store.close()

    def per_step(name: str) -> int:
        return round((getattr(counts, name, 0) - getattr(filled, name, 0)) / arguments.steps)

    return {
        "step_ms": round(1e3 * float(np.median(lookups + updates)), 3),
        "lookup_ms": round(1e3 * float(np.median(lookups)), 3),
        "update_ms": round(1e3 * float(np.median(updates)), 3),
        "ids_per_step": ids,
        "resident_mib": round((after - before) / 2**20, 1),
        "budget_mib": None if kind == "memory" else round(budget / 2**20, 1),
        "read_per_step": per_step("reads"),
        "written_per_step": round((counts.writes - filled.writes) / arguments.steps)
        if counts and filled
        else 0,
        "tier": counts and asdict(counts),
    }


def run(one: Local | Remote, batches: list[Ids], kind: str) -> tuple[np.ndarray, np.ndarray, int]:
    """Return seconds of each lookup and each update, and the mean number of unique ids."""
    lookups, updates = [], []
    rng = np.random.default_rng(2)
    for ids in batches:
        gradients = rng.standard_normal((len(ids), DIM)).astype(np.float32)
        splits = np.array([0, len(ids)])
        backend = one.store.groups[0].backend
        if "disk" in kind and isinstance(backend, Tiered):
            backend.cold.file.forget_pages()  # as if the file were much larger than the machine's memory
        if kind.endswith("prefetched"):
            one.prefetch(ids, splits)
        time.sleep(0.05)  # the network's turn
        start = time.perf_counter()
        lookup = one.lookup(ids, splits)
        middle = time.perf_counter()
        if not kind.endswith("read only"):
            one.update(ids, splits, gradients, lookup)
        lookups.append(middle - start)
        updates.append(time.perf_counter() - middle)
    return np.array(lookups), np.array(updates), round(sum(map(len, batches)) / len(batches))


def zipf(rows: int, batch: int) -> Any:
    """Return a function that draws the unique ids of a batch; ranks are spread over the ids."""
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
