"""How long training pauses while rows move between shard processes. See README.md here."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import satrap
from benchmarks.delay.network import Network
from benchmarks.record import write
from satrap.exchange import Request
from satrap.exchange.balance import balanced
from satrap.exchange.servers import ServersExchange, Wire
from satrap.exchange.shard_map import ShardMap

BLOCK = 100_000


def fill(exchange: ServersExchange, rows: int) -> None:
    """Create rows with ids over the whole space."""
    random = np.random.default_rng(0)
    for start in range(0, rows, BLOCK):
        step(exchange, np.unique(random.integers(1, 2**63, min(BLOCK, rows - start)).astype(np.uint64)))


def step(exchange: ServersExchange, ids: Any) -> None:
    """Look rows up and update them, as a training step does."""
    lookup = exchange.lookup([Request(0, ids, np.array([0, len(ids)], np.int64))], create=True)
    rows = lookup.result()[0]
    exchange.update(lookup, [np.full_like(rows, 1e-3)], lr_scale=1.0)
    exchange.flush()


def move(exchange: ServersExchange, members: list[int], joining: dict[int, str]) -> dict[str, float]:
    """Balance the rows among some shards; return what moved, and the pause."""
    exchange.flush()
    start = time.perf_counter()
    rows = np.sum(list(exchange.moves.rows_by_bucket().values()), axis=0)
    new: ShardMap = exchange.map.after(balanced(exchange.map.owners, rows, members), members)
    exchange.moves.join(new, joining)
    greeted = time.perf_counter()
    carried = exchange.moves.carry(new)
    exchange.moves.adopt(new)
    end = time.perf_counter()
    return {
        "rows": carried.rows,
        "bytes": carried.bytes,
        "pause_ms": 1e3 * (end - start),
        "join_ms": 1e3 * (greeted - start),
        "mb_s": carried.bytes / 1e6 / (end - greeted),
    }


def measure(rows: int, dim: int) -> dict[str, Any]:
    """Let a third shard join two, then end one of them."""
    table = satrap.Table("id", dim=dim, optimizer=satrap.optim.RowWiseAdagrad(lr=0.05))
    with Network(3, 0) as network:
        exact = Wire("float32", "float32")
        exchange = ServersExchange(network.addresses[:2], [table], wire=exact, mode="hybrid")
        fill(exchange, rows)
        ids = np.sort(np.random.default_rng(1).integers(1, 2**63, 10_000).astype(np.uint64))

        def step_ms() -> float:
            start = time.perf_counter()
            step(exchange, ids)
            return 1e3 * (time.perf_counter() - start)

        before = statistics.median(step_ms() for _ in range(20))
        join = move(exchange, [0, 1, 2], {2: network.addresses[2]})
        first = step_ms()
        drain = move(exchange, [0, 2], {})
        after = statistics.median(step_ms() for _ in range(20))
        found = exchange.telemetry.statistics().rows
        exchange.close()
    return {
        "rows": found,
        "join": join,
        "drain": drain,
        "step_ms": {"before": before, "first_after_join": first, "after": after},
    }


def main() -> None:
    """Print and record one line per size."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="keep the raw result as JSON beside this file")
    options = parser.parse_args()
    results = []
    for rows in options.rows:
        for _ in range(options.repeats):
            results.append(measure(rows, options.dim))
            print(results[-1], flush=True)
    if options.write:
        print(write(Path(__file__).parent / "results", vars(options), {"moves": results}))


if __name__ == "__main__":
    main()
