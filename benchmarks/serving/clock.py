"""Latency of a server with one dedicated core, on a clock of processor time.

`python -m benchmarks.serving.clock [--seconds 30] [--rounds 3]`

On a shared machine, other programs cause the wall-clock tails. So this benchmark simulates the queue: Poisson
arrivals, one scoring thread that does the real work (parsing, encoding, lookup, network, writing, folding
rows of an update) with the real model, and a clock that advances by the processor time of each piece of work,
or jumps to the next arrival when the thread is idle. A thread on a busy machine needs more processor time for
the same work, because cores share caches and memory (docs/decisions/0026). So each time is divided by the
current slowdown of the network alone, measured just before, relative to its best time in this run ("slowdown"
is the average). The cost of HTTP, measured in the same run on a server's process, is added to each request.
Other work of a real server is not in the clock: the thread that makes an overlay of an update is assumed to
have another core ("updates"), or it takes half of the same core ("shared").

The model is the model of `python -m benchmarks.serving`, with `--rows` rows; requests have one context and
100 items. An update changes `--changed` rows every 5 seconds. Ratios are p99 with updates over p99 without,
in the same round. "longest update" is the longest piece of the scoring thread's work for an update, "going
back" the processor time until an earlier version answers. Without `--rates`, only the latter is measured.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import deque
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import torch

from benchmarks.record import write
from benchmarks.serving.__main__ import (
    DIM,
    IDS,
    MAX_ITEMS,
    PRECISIONS,
    Process,
    Work,
    http_ms,
    processor_ms,
    request,
    trained,
)
from satrap.serve.loadtest.generator import arrivals
from satrap.serve.protocols import json as protocol
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import JOINED_ROWS, ScoredRequest
from satrap.serve.versions.overlay import Overlay
from satrap.serve.versions.update import Update
from satrap.store import RowChunk
from satrap.train import Predictor

EVERY = 5.0
ITEMS = 100


class Slowdown:
    """Current time of the same work relative to its best time: the network alone, on its rows.

    Args:
        work: the network.
    """

    def __init__(self, work: Work) -> None:
        self._work, self._since = work, 0
        self._best = float(np.quantile([self._timed() for _ in range(1000)], 0.05))
        self.now = 1.0
        self.seen: list[float] = []

    def _timed(self) -> float:
        start = thread_time()
        self._work.network()
        return thread_time() - start

    def look(self) -> float:
        """Return the slowdown; it is measured every ten calls."""
        if self._since % 10 == 0:
            self.now = max(1.0, statistics.median(self._timed() for _ in range(5)) / self._best)
            self.seen.append(self.now)
        self._since += 1
        return self.now


@dataclass
class Loaded:
    """A model with many rows, and updates of it."""

    model: ServedModel
    each: int  # rows of a table

    @classmethod
    def of(cls, url: str, rows: int, precision: str) -> Loaded:
        predictor, each = Predictor.load(url, threads=1), rows // IDS
        random = np.random.default_rng(1)
        for table in range(IDS):
            values = random.normal(scale=0.1, size=(each, DIM)).astype(np.float32)
            chunk = RowChunk(
                f"c{table}", np.arange(each, dtype=np.uint64), values, np.empty((each, 0), np.float32)
            )
            predictor.exchange.rows.load(chunk.table, chunk)
        return cls(
            ServedModel("reference", predictor, version="0", precision=precision, keep=3, keep_bytes=1 << 30),
            each,
        )

    def update(self, changed: int, seed: int) -> tuple[Update, float]:
        """Return an update of rows, and the processor seconds to create it from the data read."""
        random, overlay = np.random.default_rng(seed), Overlay(self.model._exchange.shard)
        took = 0.0
        for table in range(IDS):
            ids = random.permutation(self.each)[: changed // IDS].astype(np.uint64)
            values = random.normal(scale=0.1, size=(len(ids), DIM)).astype(np.float32)
            start = thread_time()
            overlay.load(RowChunk(f"c{table}", ids, values, np.empty((len(ids), 0), np.float32)))
            took += thread_time() - start
        start = thread_time()
        overlay.seal()
        network = deepcopy(self.model._predictor.model)
        took += thread_time() - start
        return Update(self.model.step + 1, str(seed), 0.0, overlay, network), took


class Queue:
    """One scoring thread, on a clock of its processor time.

    Args:
        loaded: the model.
        http: seconds of HTTP per request.
        slowdown: divisor of processor time.
        shared: whether reading an update takes half of the core.
    """

    def __init__(self, loaded: Loaded, http: float, slowdown: Slowdown, *, shared: bool = False) -> None:
        self._loaded, self._http, self._slowdown, self._shared = loaded, http, slowdown, shared
        self._bodies = [request(ITEMS, seed, loaded.each) for seed in range(64)]
        self.now, self._reading = 0.0, 0.0
        self.latencies: list[float] = []
        self.pieces: list[float] = []
        self.busy = 0.0

    def _spend(self, seconds: float) -> None:
        """Advance the clock by work of the scoring thread."""
        slowed = min(seconds, self._reading)  # during the read of an update, each gets half of the core
        self._reading -= slowed
        self.now += seconds + slowed
        self.busy += seconds

    def run(self, due: Any, updates: Iterator[tuple[float, Update, float]]) -> None:
        """Answer requests that are due at some times, and serve updates once they have been read."""
        model, waiting = self._loaded.model, deque[tuple[float, bytes]]()
        arriving = deque((float(at), self._bodies[i % len(self._bodies)]) for i, at in enumerate(due))
        following, reading = next(updates, None), False
        while arriving or waiting:
            while arriving and arriving[0][0] <= self.now:
                waiting.append(arriving.popleft())
            if following is not None and following[0] <= self.now and not reading:
                cost = following[2] / self._slowdown.now
                reading, self._reading = True, cost if self._shared else 0.0
            if following is not None and reading and self._reading <= 0 and model.settled:
                self._timed(partial(model.apply, following[1]))
                following, reading = next(updates, None), False
            if waiting:
                self._score(model, waiting)
            if model.folding:
                self._timed(model.fold)
            elif not waiting and arriving:
                self._idle(arriving[0][0], following[0] if following and not reading else self.now)

    def _idle(self, arrival: float, update: float) -> None:
        """Advance the clock to the next request or update, or to the end of reading an update."""
        until = min(arrival, update) if update > self.now else arrival
        pause = max(0.0, until - self.now)
        if self._reading > 0:
            pause = min(pause, self._reading)
            self._reading -= pause
        self.now += pause

    def _timed(self, work: Any) -> None:
        start = thread_time()
        work()
        took = (thread_time() - start) / self._slowdown.now
        self.pieces.append(took)
        self._spend(took)

    def _score(self, model: ServedModel, waiting: deque[tuple[float, bytes]]) -> None:
        slowdown = self._slowdown.look()
        jobs = [waiting.popleft() for _ in range(min(len(waiting), JOINED_ROWS // ITEMS))]
        start = thread_time()
        requests = [protocol.read(body, model, max_items=MAX_ITEMS) for _, body in jobs]
        scores = model.score(model.encode(requests))
        for i in range(len(jobs)):
            protocol.write(ScoredRequest(model, model.step, scores[i * ITEMS : (i + 1) * ITEMS]))
        self._spend((thread_time() - start) / slowdown + self._http * len(jobs))
        self.latencies += [self.now - at for at, _ in jobs]


def updates_of(
    loaded: Loaded, changed: int, seconds: float, seed: int
) -> Iterator[tuple[float, Update, float]]:
    """Yield (arrival time, update, processor seconds to create it)."""
    at, number = EVERY / 2, 0
    while at < seconds:
        update, took = loaded.update(changed, 1000 * seed + number)
        yield at, update, took
        at, number = at + EVERY, number + 1


@dataclass
class Setting:
    """Data shared by all measurements."""

    changed: int
    seconds: float
    http: float
    slowdown: Slowdown


def measured(loaded: Loaded, rate: float, seed: int, kind: str, setting: Setting) -> dict[str, float]:
    setting.slowdown.seen.clear()
    queue = Queue(loaded, setting.http, setting.slowdown, shared=kind == "shared")
    seconds = setting.seconds
    updates = iter(()) if kind == "without" else updates_of(loaded, setting.changed, seconds, seed)
    queue.run(arrivals(rate, seconds, seed), updates)
    while loaded.model.folding:
        loaded.model.fold()
    ms = 1000 * np.array(queue.latencies)
    return {
        "p50": float(np.quantile(ms, 0.5)),
        "p99": float(np.quantile(ms, 0.99)),
        "longest": float(ms.max()),
        "longest update": 1000 * max(queue.pieces, default=0.0),
        "busy": queue.busy / queue.now,
        "slowdown": statistics.mean(setting.slowdown.seen),
    }


def going_back(loaded: Loaded, setting: Setting) -> dict[str, list[float]]:
    """Return the processor time of a rollback by one version and by two, in seconds, after updates."""
    times: dict[str, list[float]] = {"by 1": [], "by 2": []}
    model = loaded.model
    for seed in range(3):
        for name, steps in (("by 1", 1), ("by 2", 2)):
            for number in range(steps):
                model.apply(loaded.update(setting.changed, 100 * seed + 10 * steps + number)[0])
                while model.folding:
                    model.fold()
            setting.slowdown._since = 0
            slowdown, start = setting.slowdown.look(), thread_time()
            model.apply(model.back_to(model.history.steps[-steps]))
            times[name].append((thread_time() - start) / slowdown)
            while model.folding:
                model.fold()
    return times


def http_seconds(work: Work, process: Process, slowdown: Slowdown) -> float:
    """Return the processor time of HTTP: a server's process minus the same work without HTTP."""
    seconds = []
    for _ in range(5):
        whole, alone = http_ms(process, work.bodies, 1.0), processor_ms(partial(work.requests, 1), 1.0)
        slowdown.look()
        seconds.append((whole - alone) / slowdown.now / 1000)
    return max(0.0, statistics.median(seconds))


def compared(loaded: Loaded, rate: float, rounds: int, setting: Setting) -> dict[str, Any]:
    """Return the measurements at a rate, by round, the medians, and the ratios of p99."""
    kinds = ("without", "updates", "shared")
    figures: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for seed in range(rounds):
        for kind in kinds:
            figures[kind].append(measured(loaded, rate, seed, kind, setting))
    return {
        "rounds": figures,
        "median": {
            kind: {key: statistics.median(one[key] for one in many) for key in many[0]}
            for kind, many in figures.items()
        },
        "ratio of p99": {
            kind: statistics.median(
                a["p99"] / b["p99"] for a, b in zip(figures[kind], figures["without"], strict=True)
            )
            for kind in kinds[1:]
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changed", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each measurement, on the clock")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rates", type=float, nargs="*", default=[100.0, 300.0])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        url = trained(Path(folder) / "model")
        work, process = Work(url, ITEMS), Process(url)
        slowdown = Slowdown(work)
        http = http_seconds(work, process, slowdown)
        process.close()
        setting = Setting(arguments.changed, arguments.seconds, http, slowdown)
        results["http_ms"] = 1000 * http
        for precision in PRECISIONS:
            loaded = Loaded.of(url, arguments.rows, precision)
            measured(loaded, 100, 99, "updates", setting)  # kernels and caches
            for rate in arguments.rates:
                name = f"{rate:g}/s {precision}"
                results[name] = figures = compared(loaded, rate, arguments.rounds, setting)
                print(name, figures["ratio of p99"], flush=True)
                for kind, median in figures["median"].items():
                    print(f"  {kind:<8}", {key: round(value, 2) for key, value in median.items()}, flush=True)
            results[f"going back {precision}"] = figures = going_back(loaded, setting)
            print("going back", precision, figures, flush=True)
            loaded.model.close()
    print(write(Path(__file__).parent / "results", vars(arguments), results))


if __name__ == "__main__":
    main()
