"""Speed against the number of virtual parameters, up to 100 trillion. See README.md here."""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import satrap  # isort: skip  # before torch, as a program of satrap's does: see satrap.threads
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
    """What happened from step `start` to step `stop`: time, processor time, and the stores' counters."""

    def __init__(self, start: int, stop: int, shards: Sequence[int]) -> None:
        self.trainer: satrap.Trainer
        self._places, self._shards = (start, stop), shards
        self._at: list[tuple[float, float, float]] = []
        self._counted: list[ExchangeStatistics] = []

    def step(self, progress: Progress) -> None:
        """Take the figures; reading the counters is outside the window."""
        if progress.step == self._places[0]:
            self._counted.append(self.trainer.statistics())
            self._at.append((time.perf_counter(), time.process_time(), self._shard_seconds()))
        elif progress.step == self._places[1]:
            self._at.append((time.perf_counter(), time.process_time(), self._shard_seconds()))
            self._counted.append(self.trainer.statistics())

    def _shard_seconds(self) -> float:
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in self._shards]
        ticks = sum(int(values[11]) + int(values[12]) for values in stats)
        return ticks / os.sysconf("SC_CLK_TCK")

    def figures(self, batch_size: int) -> dict[str, float]:
        """Return the speed, and what lookups found in a batch."""
        seconds, worker, shards = (to - from_ for from_, to in zip(*self._at, strict=True))
        before, after = self._counted
        steps = self._places[1] - self._places[0]
        counted = {
            name: sum(getattr(t, name) for t in after.tables.values())
            - sum(getattr(t, name) for t in before.tables.values())
            for name in ("hits", "misses", "created", "evicted", "refused", "second_probes")
        }
        looked_up = counted["hits"] + counted["misses"]
        found = {
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
            found |= {
                "rows_on_disk": after.tier.rows,
                "disk_mib": round(after.tier.bytes / 2**20, 1),
                "read_from_disk_per_batch": round((after.tier.reads - before.tier.reads) / steps),
            }
        return found


def one(
    parameters: float,
    of: float,
    mode: str,
    batch_size: int,
    delay: float,
    tier: Tier | None,
    options: argparse.Namespace,
) -> dict[str, float]:
    """Train with fresh shards until the memory is full, then measure."""
    warm = -(-options.warm_samples // batch_size)
    with Network(options.shards, delay) as servers:
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

        described = schema(options.dim)
        window = Window(warm, warm + options.steps, servers.shards)
        trainer = window.trainer = satrap.Trainer(
            network("tiny", options.dim),
            described,
            embedding_optimizer=satrap.optim.RowWiseAdagrad(lr=0.02),
            dense_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.05),
            mode=mode,
            staleness=options.staleness,
            store=store,
            place=satrap.train.Place(connect, threads=1),
        )
        count = warm + options.steps + 10
        data = workload.samples(parameters, of, described, options.dim, batch_size, count)
        try:
            trainer.fit(data, observers=[window])
        finally:
            trainer.close()
    return window.figures(batch_size)


def flat(name: str, options: argparse.Namespace, tier: Path | None = None) -> dict[str, Any]:
    """Run the sizes in turn, several times; return each one's speed as a share of the smallest one's."""
    runs: dict[str, list[dict[str, float]]] = {f"{size:g}": [] for size in options.parameters}
    for number in range(options.repeats):
        # Each size is the first of a round in turn: what comes later may find the machine faster or slower.
        at = number % len(options.parameters)
        for size in [*options.parameters[at:], *options.parameters[:at]]:
            with tempfile.TemporaryDirectory(dir=tier) as folder:
                on = None if tier is None else Tier(folder, options.tier_memory << 20)
                of = size if name == "zipf" else options.parameters[0]
                found = one(size, of, "hybrid", options.batch_size, 0.0, on, options)
            runs[f"{size:g}"].append(found)
            print(f"{name}, {size:g} parameters: {found}", flush=True)
    first = next(iter(runs.values()))
    ratios = {
        name: {
            quantity: round(
                statistics.median(r[quantity] / f[quantity] for r, f in zip(found, first, strict=True)), 3
            )
            for quantity in (
                "samples_per_second",
                "processor_ms_per_batch",
                "worker_us_per_id",
                "shards_us_per_id",
            )
        }
        for name, found in runs.items()
    }
    print(f"of the first: {ratios}", flush=True)
    return {"of_the_first": ratios, "runs": runs}


def modes(options: argparse.Namespace) -> dict[str, Any]:
    """Run the modes in turn at the largest size, with the shards some milliseconds away."""
    size, runs = max(options.parameters), {mode: [] for mode in MODES}
    for _ in range(options.repeats):
        for mode in MODES:
            runs[mode].append(one(size, size, mode, options.delay_batch_size, options.delay, None, options))
            print(f"{size:g} parameters, {options.delay:g} ms, {mode}: {runs[mode][-1]}", flush=True)
    speed = {m: statistics.median(r["samples_per_second"] for r in found) for m, found in runs.items()}
    ratios = {f"hybrid_over_{m}": round(speed["hybrid"] / speed[m], 3) for m in ("sync", "async")}
    print(ratios, flush=True)
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
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tier", type=Path, help="folder for evicted rows; the sizes are run with it, too")
    parser.add_argument("--tier-memory", type=int, default=512, help="MiB of disk of all shards")
    parser.add_argument(
        "--delay", type=float, default=2.0, help="milliseconds each way; 0: modes are not run"
    )
    parser.add_argument("--delay-batch-size", type=int, default=512)
    parser.add_argument(
        "--skip-zipf", action="store_true", help="a third of the time less: only ids of the same shape"
    )
    parser.add_argument("--write", action="store_true", help="keep the raw result as JSON beside this file")
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
