"""Speed against the number of virtual parameters, up to 100 trillion. See README.md here."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, like satrap's programs: see satrap.runtime.threads
import torch

from benchmarks.capacity import workload
from benchmarks.delay.network import Network
from benchmarks.persia.workload import network, schema
from benchmarks.record import write
from satrap.exchange import Exchange, ExchangeStatistics
from satrap.exchange.servers import ClientOptions, ServersExchange
from satrap.schema import Table
from satrap.store import Eviction, StoreConfig, Tier
from satrap.train import Observer, Progress

SIZES = (6.25e12, 12.5e12, 25e12, 50e12, 100e12)
"""Virtual parameters of PERSIA's figure."""
MODES = ("hybrid", "sync", "async")


class Window(Observer):
    """Figures from step `start` of a call of `fit` to step `stop`: time, processor time, counters."""

    def __init__(self, trainer: satrap.Trainer, start: int, stop: int, shards: Sequence[int]) -> None:
        self._trainer, self._places, self._shards, self._step = trainer, (start, stop), shards, 0
        self._at: list[tuple[float, float, float]] = []
        self._counted: list[ExchangeStatistics] = []

    def step(self, progress: Progress) -> None:
        """Record the figures; reading the counters is outside the window."""
        self._step += 1
        if self._step == self._places[0]:
            self._counted.append(self._trainer.statistics())
            self._at.append((time.perf_counter(), time.process_time(), self._shard_seconds()))
        elif self._step == self._places[1]:
            self._at.append((time.perf_counter(), time.process_time(), self._shard_seconds()))
            self._counted.append(self._trainer.statistics())

    def _shard_seconds(self) -> float:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._shards]
        ticks = sum(int(values[11]) + int(values[12]) for values in stats)
        return ticks / os.sysconf("SC_CLK_TCK")

    def figures(self, batch_size: int) -> dict[str, float]:
        """Return the speed, and the hits of lookups in a batch."""
        seconds, worker, shards = (to - from_ for from_, to in zip(*self._at, strict=True))
        before, after = self._counted
        steps = self._places[1] - self._places[0]
        counted = {
            name: sum(getattr(t, name) for t in after.tables.values())
            - sum(getattr(t, name) for t in before.tables.values())
            for name in ("hits", "misses", "created", "evicted", "refused", "second_probes")
        }
        looked_up = counted["hits"] + counted["misses"]
        results = {
            "samples_per_second": round(steps * batch_size / seconds),
            "processor_ms_per_batch": round(1000 * (worker + shards) / steps, 2),
            "worker_us_per_id": round(1e6 * worker / looked_up, 4),
            "shards_us_per_id": round(1e6 * shards / looked_up, 4),
            "distinct_ids_per_batch": round(looked_up / steps),
            "hit_rate": round(counted["hits"] / looked_up, 4),
            "buckets_probed": round(1 + counted["second_probes"] / looked_up, 4),
            "created_per_batch": round(counted["created"] / steps),
            "evicted_per_batch": round(counted["evicted"] / steps),
            "refused": counted["refused"],
            "rows": after.rows,
            "store_mib": round(after.bytes / 2**20, 1),
        }
        if after.tier is not None and before.tier is not None:
            results |= {
                "rows_on_disk": after.tier.rows,
                "disk_mib": round(after.tier.bytes / 2**20, 1),
                "read_from_disk_per_batch": round((after.tier.reads - before.tier.reads) / steps),
            }
        return results


class Side:
    """A worker and its shards, which train when it is their turn.

    Args:
        stack: ends the shards and the trainer.
        sizes: virtual parameters, and those of the space whose Zipf distribution is spread over them.
        mode: "hybrid", "sync" or "async".
        batch_size: samples per step.
        delay: milliseconds to the shards, each way.
        tier: folder of evicted rows.
        options: options of the command line.
    """

    LEAD = 10
    """Steps before a window, and after it."""

    def __init__(
        self,
        stack: ExitStack,
        sizes: tuple[float, float],
        mode: str,
        batch_size: int,
        delay: float,
        tier: Tier | None,
        options: argparse.Namespace,
    ) -> None:
        servers = stack.enter_context(Network(options.shards, delay))
        memory = options.memory << (20 if tier is None else 21)  # about half is the index of the tier
        store = StoreConfig(memory=memory, eviction=Eviction("lru"), tier=tier)

        def connect(tables: Sequence[Table]) -> Exchange:
            return ServersExchange(
                servers.addresses,
                tables,
                store=store,
                mode="sync" if mode == "sync" else "hybrid",
                options=ClientOptions(deadline=120.0),
            )

        self._sizes, self._batch_size, self._options, self._shards = (
            sizes,
            batch_size,
            options,
            servers.shards,
        )
        self._schema = schema(options.dim)
        self._trainer = satrap.Trainer(
            network("tiny", options.dim),
            self._schema,
            embedding_optimizer=satrap.optim.RowWiseAdagrad(lr=0.02),
            dense_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.05),
            mode=mode,
            staleness=options.staleness,
            store=store,
            place=satrap.train.WorkerContext(connect, threads=1),
        )
        stack.callback(self._trainer.close)
        self._train(-(-options.warm_samples // batch_size), 0, [])  # until the memory is full

    def _train(self, steps: int, seed: int, observers: list[Observer]) -> None:
        size, of = self._sizes
        data = workload.samples(size, of, self._schema, self._options.dim, self._batch_size, steps, seed=seed)
        self._trainer.fit(data, observers=observers)

    def turn(self, number: int) -> dict[str, float]:
        """Train the batches of a round, the same for all sides; return the figures."""
        window = Window(self._trainer, self.LEAD, self.LEAD + self._options.steps, self._shards)
        self._train(self._options.steps + 2 * self.LEAD, number + 1, [window])
        return window.figures(self._batch_size)


def in_turn(sides: dict[str, Side], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Let the sides train in short turns, so that other programs affect all of them equally."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    names = list(sides)
    for number in range(rounds):
        # Each is the first of a round in turn: for later ones the machine may be faster or slower.
        at = number % len(names)
        for name in [*names[at:], *names[:at]]:
            runs[name].append(sides[name].turn(number))
            print(f"round {number}, {name}: {runs[name][-1]}", flush=True)
    return runs


def flat(name: str, options: argparse.Namespace, tier: Path | None = None) -> dict[str, Any]:
    """Run the sizes in turn; return the speed of each relative to the smallest size."""
    repeats = []
    for number in range(options.repeats):
        at = number % len(options.parameters)
        with ExitStack() as stack:
            sides = {}
            for size in [*options.parameters[at:], *options.parameters[:at]]:
                on = None
                if tier is not None:
                    folder = stack.enter_context(tempfile.TemporaryDirectory(dir=tier))
                    on = Tier(folder, options.tier_memory << 20)
                sizes = (size, size if name == "zipf" else options.parameters[0])
                sides[f"{size:g}"] = Side(stack, sizes, "hybrid", options.batch_size, 0.0, on, options)
            repeats.append(in_turn(sides, options.rounds))
    first = f"{options.parameters[0]:g}"
    ratios = {
        f"{size:g}": {
            quantity: of_the_first([(runs[f"{size:g}"], runs[first]) for runs in repeats], quantity)
            for quantity in (
                "samples_per_second",
                "processor_ms_per_batch",
                "worker_us_per_id",
                "shards_us_per_id",
            )
        }
        for size in options.parameters
    }
    print(f"{name}, of the first: {ratios}", flush=True)
    return {"of_the_first": ratios, "repeats": repeats}


Runs = list[dict[str, float]]


def of_the_first(repeats: list[tuple[Runs, Runs]], quantity: str) -> dict[str, Any]:
    """Return the mean of the repeats' ratios to the first size, its standard error, and the ratios.

    A repeat's ratio is the median of its rounds. Processes differ by the location of their memory for their
    whole life, so repeats are independent, but rounds are not.
    """
    ratios = [
        statistics.median(run[quantity] / other[quantity] for run, other in zip(runs, first, strict=True))
        for runs, first in repeats
    ]
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else float("nan")
    return {
        "mean": round(statistics.mean(ratios), 4),
        "error": round(error, 4),
        "repeats": [round(r, 4) for r in ratios],
    }


def modes(options: argparse.Namespace) -> dict[str, Any]:
    """Run the modes in turn at the largest size, with the shards some milliseconds away."""
    size = max(options.parameters)
    with ExitStack() as stack:
        sides = {
            mode: Side(stack, (size, size), mode, options.delay_batch_size, options.delay, None, options)
            for mode in MODES
        }
        runs = in_turn(sides, options.rounds)
    speed = {m: statistics.median(r["samples_per_second"] for r in measured) for m, measured in runs.items()}
    ratios = {f"hybrid_over_{m}": round(speed["hybrid"] / speed[m], 3) for m in ("sync", "async")}
    print(f"{options.delay:g} ms: {speed}, {ratios}", flush=True)
    return {"median_samples_per_second": speed, **ratios, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parameters", type=float, nargs="+", default=list(SIZES))
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--shards", type=int, default=2)
    parser.add_argument(
        "--memory", type=int, default=128, help="MiB of all shards; twice as many with a tier"
    )
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--warm-samples", type=int, default=80 * 4096, help="before the measured steps")
    parser.add_argument("--steps", type=int, default=50, help="measured steps of a side's turn")
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10, help="turns of each side")
    parser.add_argument("--repeats", type=int, default=4, help="of the sizes, with other processes")
    parser.add_argument("--tier", type=Path, help="folder for evicted rows; the sizes also run with it")
    parser.add_argument("--tier-memory", type=int, default=512, help="MiB of disk of all shards")
    parser.add_argument(
        "--delay", type=float, default=2.0, help="milliseconds each way; 0: modes are not run"
    )
    parser.add_argument("--delay-batch-size", type=int, default=512)
    parser.add_argument(
        "--skip-zipf", action="store_true", help="saves a third of the time: only ids of the same shape"
    )
    parser.add_argument("--write", action="store_true", help="write the raw result as JSON next to this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    kinds = ("spread",) if options.skip_zipf else ("spread", "zipf")
    results = {name: flat(name, options) for name in kinds}
    if options.tier is not None:
        results["spread_with_tier"] = flat("spread, tier", options, options.tier)
    if options.delay:
        results["modes"] = modes(options)
    if options.write:
        parameters = {k: str(v) if isinstance(v, Path) else v for k, v in vars(options).items()}
        print(write(Path(__file__).parent / "results", parameters | {"load_before": round(load, 2)}, results))


if __name__ == "__main__":
    main()
