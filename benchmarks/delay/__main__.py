"""Samples/s of the modes, and of sync with lookahead, when the shards are 2 ms away. See README.md here."""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from benchmarks.delay.network import Network, round_trip
from benchmarks.persia import workload
from benchmarks.record import write
from satrap.batch import Batch
from satrap.exchange import Exchange
from satrap.exchange.servers import ClientOptions, ServersExchange
from satrap.schema import Table
from satrap.train import Observer, Progress

MODES = ("sync", "lookahead", "hybrid", "async")
EDGE = 20
"""Unmeasured steps at both ends of the second epoch."""


class First:
    """The first batches of a data set, the same in every epoch."""

    def __init__(self, data: Any, count: int) -> None:
        self._data, self._count = data, count

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        return itertools.islice(self._data.batches(), self._count)


class Window(Observer):
    """Measures the time in the second epoch, when all rows exist: from step `start` to step `stop`."""

    def __init__(self, start: int, stop: int) -> None:
        self._places, self.at, self.waited = (start, stop), [0.0, 0.0], [0.0, 0.0]

    def step(self, progress: Progress) -> None:
        if progress.step in self._places:
            place = self._places.index(progress.step)
            self.at[place], self.waited[place] = time.perf_counter(), progress.lookup_wait_seconds


def one(mode: str, batch_size: int, options: argparse.Namespace) -> dict[str, float]:
    """Train with fresh shards; return speed and the share of time spent waiting for rows."""
    described, count = workload.schema(options.dim), options.steps + 2 * EDGE
    window = Window(count + EDGE, count + EDGE + options.steps)
    with Network(options.shards, options.delay) as network:

        def connect(tables: Sequence[Table]) -> Exchange:
            return ServersExchange(
                network.addresses,
                tables,
                mode="sync" if mode == "sync" else "hybrid",
                options=ClientOptions(deadline=120.0),
            )

        trainer = satrap.Trainer(
            workload.network(options.model, options.dim),
            described,
            embedding_optimizer=satrap.optim.Adagrad(lr=0.02),
            dense_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05),
            mode="sync" if mode == "lookahead" else mode,
            staleness=options.staleness,
            lookahead=options.staleness if mode == "lookahead" else 0,
            place=satrap.train.WorkerContext(connect, threads=1),
        )
        data = satrap.data.read(str(options.data), described, batch_size=batch_size)
        try:
            trainer.fit(First(data, count), epochs=2, observers=[window])
        finally:
            trainer.close()
    seconds = window.at[1] - window.at[0]
    return {
        "samples_per_second": round(options.steps * batch_size / seconds),
        "ms_per_batch": round(1000 * seconds / options.steps, 3),
        "waited_for_rows": round((window.waited[1] - window.waited[0]) / seconds, 3),
    }


def compare(batch_size: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run the modes in turn, several times."""
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for _ in range(options.repeats):
        for mode in MODES:
            runs[mode].append(one(mode, batch_size, options))
            print(f"batch {batch_size} {mode:<7} {runs[mode][-1]}", flush=True)
    speed = {m: statistics.median(r["samples_per_second"] for r in measured) for m, measured in runs.items()}
    ratios = {
        "hybrid_over_sync": round(speed["hybrid"] / speed["sync"], 3),
        "hybrid_over_async": round(speed["hybrid"] / speed["async"], 3),
        "lookahead_over_hybrid": round(speed["lookahead"] / speed["hybrid"], 3),
    }
    print(f"batch {batch_size} {ratios}", flush=True)
    return {"median_samples_per_second": speed, **ratios, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[512, 1024, 2048])
    parser.add_argument("--model", choices=["tiny", "dlrm"], default="tiny", help="as in benchmarks.persia")
    parser.add_argument("--delay", type=float, default=2.0, help="milliseconds each way")
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, default=Path("runs/persia.arrow"), help="created if missing")
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    workload.write_file(options.data)
    load, trip = os.getloadavg()[0], round_trip(options.delay)
    print(f"round trip {trip:.2f} ms", flush=True)
    results = {f"batch{size}": compare(size, options) for size in options.batch_sizes}
    if options.write:
        parameters = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        parameters |= {"load_before": round(load, 2), "measured_round_trip_ms": round(trip, 3)}
        print(write(Path(__file__).parent / "results", parameters, results))


if __name__ == "__main__":
    main()
