"""Training speed while rows move between shard processes. See README.md here."""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

import satrap
from benchmarks.delay.network import Network
from benchmarks.record import write
from satrap.dense import Workers
from satrap.exchange import LookupRequest
from satrap.exchange.servers import ServersExchange, Wire
from satrap.train.resharding import moves
from satrap.train.resharding.moves import Mover
from satrap.train.resharding.requests import RequestSource, ReshardRequest, ReshardResult
from satrap.train.state.snapshots import Snapshots
from satrap.train.state.training_state import TrainingState

BLOCK = 100_000
MOST_SECONDS = 300.0
"""Seconds after which a move counts as hung."""


class Wish(RequestSource):
    """One request, and its answer."""

    def __init__(self) -> None:
        self.wanted: ReshardRequest | None = None
        self.answered: ReshardResult | None = None

    def order(self) -> ReshardRequest | None:
        """See `RequestSource.order`."""
        return self.wanted

    def answer(self, moved: ReshardResult) -> None:
        """See `RequestSource.answer`."""
        self.answered, self.wanted = moved, None
        if moved.error is not None:
            raise moved.error


class Training:
    """Lookups and updates of the same number of ids, step after step, and the moves between them.

    Args:
        exchange: to the shards.
        ids: uint64[n], of all rows.
        batch: ids of a step.
    """

    def __init__(self, exchange: ServersExchange, ids: np.ndarray, batch: int) -> None:
        self.exchange, self.ids, self.batch = exchange, ids, batch
        self.run, self.random, self.wish = SimpleNamespace(steps=0), np.random.default_rng(1), Wish()
        state = SimpleNamespace(workers=Workers(), exchange=exchange, run=self.run, apart=False)
        idle = SimpleNamespace(writing=lambda: False, anywhere=lambda flag: flag)
        self._mover = Mover(cast(TrainingState, state), self.wish, cast(Snapshots, idle))

    def step(self) -> None:
        """Train on one batch: half of its ids belong to a hundredth of the rows."""
        half, hot = self.batch // 2, max(1, len(self.ids) // 100)
        places = [self.random.integers(0, hot, half), self.random.integers(0, len(self.ids), half)]
        look_up_and_update(self.exchange, np.unique(self.ids[np.concatenate(places)]))
        self.run.steps += 1
        self._mover.stepped()

    def rate(self, seconds: float) -> float:
        """Return the steps per second, measured over some seconds."""
        start, first = time.perf_counter(), self.run.steps
        while time.perf_counter() - start < seconds:
            self.step()
        return float((self.run.steps - first) / (time.perf_counter() - start))

    def move(self, order: ReshardRequest) -> dict[str, float]:
        """Train until a request is done; return its result, and the figures of training during it."""
        before = self.rate(3.0)
        self.wish.wanted, self.wish.answered = order, None
        start, first, slowest = time.perf_counter(), self.run.steps, 0.0
        while self.wish.answered is None:
            began = time.perf_counter()
            self.step()
            slowest = max(slowest, time.perf_counter() - began)
            assert time.perf_counter() - start < MOST_SECONDS
        window = time.perf_counter() - start
        during, moved = (self.run.steps - first) / window, self.wish.answered
        return {
            "rows": moved.carried,
            "bytes": moved.carried_bytes,
            "pauses": moved.pauses,
            "longest_pause_ms": 1e3 * moved.seconds,
            "paused_ms": 1e3 * moved.paused,
            "window_s": window,
            "slowest_step_ms": 1e3 * slowest,
            "steps_s_before": before,
            "steps_s_during": during,
            "dip": 1 - during / before,
            "steps_s_after": self.rate(3.0),
        }


def look_up_and_update(exchange: ServersExchange, ids: np.ndarray) -> None:
    """Look rows up and update them, as a training step does; return once both are done."""
    lookup = exchange.lookup([LookupRequest(0, ids, np.array([0, len(ids)], np.int64))], create=True)
    rows = lookup.result()[0]
    exchange.apply(lookup, [np.full_like(rows, 1e-3)], lr_scale=1.0)
    exchange.flush()


def measure(rows: int, dim: int, batch: int) -> dict[str, Any]:
    """Let a third shard join two, then stop one of them, during training."""
    table = satrap.Table("id", dim=dim, optimizer=satrap.optim.RowWiseAdagrad(lr=0.05))
    ids = np.unique(np.random.default_rng(0).integers(1, 2**63, rows).astype(np.uint64))
    np.random.default_rng(2).shuffle(ids)
    with Network(3, 0) as network:
        exact = Wire("float32", "float32")
        exchange = ServersExchange(network.addresses[:2], [table], wire=exact, mode="hybrid")
        for start in range(0, len(ids), BLOCK):
            look_up_and_update(exchange, np.sort(ids[start : start + BLOCK]))
        training = Training(exchange, ids, batch)
        join = training.move(ReshardRequest("join", join={2: network.addresses[2]}))
        drain = training.move(ReshardRequest("drain", leave=(1,)))
        row_count = exchange.telemetry.statistics().rows
        exchange.close()
    assert row_count == len(ids), (row_count, len(ids))
    return {"rows": row_count, "join": join, "drain": drain}


def main() -> None:
    """Print and record each measurement."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.moves", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--batch", type=int, default=10_000, help="ids of a step")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--at-once", action="store_true", help="move all rows in one portion")
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    if options.at_once:
        moves.FIRST_ROWS = 1 << 40
    results = []
    for rows in options.rows:
        for _ in range(options.repeats):
            results.append(measure(rows, options.dim, options.batch))
            print(results[-1], flush=True)
    if options.write:
        print(write(Path(__file__).parent / "results", vars(options), {"moves": results}))
    longest = [m[kind]["longest_pause_ms"] for m in results for kind in ("join", "drain")]
    print(f"longest pause: {max(longest):.0f} ms; median of the longest {statistics.median(longest):.0f} ms")


if __name__ == "__main__":
    main()
