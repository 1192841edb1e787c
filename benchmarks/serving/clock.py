"""Latency of a server that has one core for itself, on a clock of processor time.

`python -m benchmarks.serving.clock [--seconds 30] [--rounds 3]`

On a machine that others use, wall-clock tails are theirs. So here the queue is played through: Poisson
arrivals, one scoring thread that does the real work (parsing, encoding, lookup, network, writing, folding
rows of an update) with the real model, and a clock that goes on by the processor time of each piece of it, or
jumps to the next arrival when nothing is left to do. The cost of HTTP, measured in the same run on a server's
process, is added to each request. What a real server does beside it is not in the clock: the thread that
reads an update is taken to have another core ("updates"), or it has half of this one while it reads
("shared").

The model is that of `python -m benchmarks.serving`, with `--rows` rows; requests have one context and 100
items. An update changes `--changed` rows every 5 seconds. Ratios are of p99 with updates by p99 without, of
the same round. "longest update" is the longest piece of the scoring thread's work for an update.
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
    Process,
    Work,
    http_ms,
    processor_ms,
    request,
    trained,
)
from satrap.serve.loadtest.generator import arrivals
from satrap.serve.model import ServedModel
from satrap.serve.overlay import Overlay
from satrap.serve.protocols import json as protocol
from satrap.serve.scorer import JOINED_ROWS, Answer
from satrap.serve.update import Update
from satrap.store import Chunk
from satrap.train import Predictor

EVERY = 5.0
ITEMS = 100


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
            chunk = Chunk(
                f"c{table}", np.arange(each, dtype=np.uint64), values, np.empty((each, 0), np.float32)
            )
            predictor.exchange.durability.load(chunk.table, chunk)
        return cls(ServedModel("reference", predictor, version="0", precision=precision, keep=3), each)

    def update(self, changed: int, seed: int) -> tuple[Update, float]:
        """Return an update of rows, and the seconds of processor time to make it of what was read."""
        random, overlay = np.random.default_rng(seed), Overlay(self.model._exchange.shard)
        took = 0.0
        for table in range(IDS):
            ids = random.permutation(self.each)[: changed // IDS].astype(np.uint64)
            values = random.normal(scale=0.1, size=(len(ids), DIM)).astype(np.float32)
            start = thread_time()
            overlay.load(Chunk(f"c{table}", ids, values, np.empty((len(ids), 0), np.float32)))
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
        http: seconds that HTTP costs for each request.
        shared: whether reading an update takes half of the core.
    """

    def __init__(self, loaded: Loaded, http: float, *, shared: bool = False) -> None:
        self._loaded, self._http, self._shared = loaded, http, shared
        self._bodies = [request(ITEMS, seed, loaded.each) for seed in range(64)]
        self.now, self._reading = 0.0, 0.0
        self.latencies: list[float] = []
        self.pieces: list[float] = []
        self.made: list[float] = []
        self.busy = 0.0

    def _spend(self, seconds: float) -> None:
        """Let the clock go on by work of the scoring thread."""
        slowed = min(seconds, self._reading)  # while an update is read, each gets half of the core
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
                reading, self._reading = True, following[2] if self._shared else 0.0
            if following is not None and reading and self._reading <= 0 and model.settled:
                self._timed(partial(model.apply, following[1]))
                self.made.append(following[2])
                following, reading = next(updates, None), False
            if waiting:
                self._score(model, waiting)
            if model.folding:
                self._timed(model.fold)
            elif not waiting and arriving:
                self._idle(arriving[0][0], following[0] if following and not reading else self.now)

    def _idle(self, arrival: float, update: float) -> None:
        """Let the clock go on until a request or an update is there, or an update has been read."""
        until = min(arrival, update) if update > self.now else arrival
        pause = max(0.0, until - self.now)
        if self._reading > 0:
            pause = min(pause, self._reading)
            self._reading -= pause
        self.now += pause

    def _timed(self, work: Any) -> None:
        start = thread_time()
        work()
        took = thread_time() - start
        self.pieces.append(took)
        self._spend(took)

    def _score(self, model: ServedModel, waiting: deque[tuple[float, bytes]]) -> None:
        jobs = [waiting.popleft() for _ in range(min(len(waiting), JOINED_ROWS // ITEMS))]
        start = thread_time()
        asked = [protocol.read(body, model, max_items=MAX_ITEMS) for _, body in jobs]
        scores = model.score(model.encode(asked))
        for i in range(len(jobs)):
            protocol.write(Answer(model, model.step, scores[i * ITEMS : (i + 1) * ITEMS]))
        self._spend(thread_time() - start + self._http * len(jobs))
        self.latencies += [self.now - at for at, _ in jobs]


def updates_of(
    loaded: Loaded, changed: int, seconds: float, seed: int
) -> Iterator[tuple[float, Update, float]]:
    """Yield (when it is there, update, seconds of processor time that making it took)."""
    at, number = EVERY / 2, 0
    while at < seconds:
        update, took = loaded.update(changed, 1000 * seed + number)
        yield at, update, took
        at, number = at + EVERY, number + 1


def measured(
    loaded: Loaded, rate: float, seconds: float, seed: int, http: float, kind: str, changed: int
) -> dict[str, float]:
    queue = Queue(loaded, http, shared=kind == "shared")
    updates = iter(()) if kind == "without" else updates_of(loaded, changed, seconds, seed)
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
        "made in": 1000 * max(queue.made, default=0.0),
    }


def http_seconds(url: str, seconds: float) -> float:
    """Return the processor time of HTTP: of a server's process, less that of the same work without it."""
    process, work = Process(url), Work(url, ITEMS)
    whole = [http_ms(process, work.bodies, seconds) for _ in range(3)]
    alone = [processor_ms(partial(work.requests, 1), seconds) for _ in range(3)]
    process.close()
    work.model.close()
    return max(0.0, statistics.median(whole) - statistics.median(alone)) / 1000


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
        results["http_ms"] = 1000 * (http := http_seconds(url, 2.0))
        loaded = {name: Loaded.of(url, arguments.rows, name) for name in ("float32", "bfloat16")}
        for one in loaded.values():
            measured(one, 100, 3, 99, http, "updates", arguments.changed)  # kernels and caches
        for rate in arguments.rates:
            for precision, one in loaded.items():
                found: dict[str, list[dict[str, float]]] = {}
                for seed in range(arguments.rounds):
                    for kind in ("without", "updates", "shared"):
                        took = measured(one, rate, arguments.seconds, seed, http, kind, arguments.changed)
                        found.setdefault(kind, []).append(took)
                name = f"{rate:g}/s {precision}"
                results[name] = {
                    "rounds": found,
                    "median": {
                        kind: {key: statistics.median(round_[key] for round_ in rounds) for key in rounds[0]}
                        for kind, rounds in found.items()
                    },
                    "ratio of p99": {
                        kind: statistics.median(
                            a["p99"] / b["p99"] for a, b in zip(found[kind], found["without"], strict=True)
                        )
                        for kind in ("updates", "shared")
                    },
                }
                print(name, results[name]["ratio of p99"], flush=True)
                for kind, median in results[name]["median"].items():
                    print(f"  {kind:<8}", {key: round(value, 2) for key, value in median.items()}, flush=True)
    print(write(Path(__file__).parent / "results", vars(arguments), results))


if __name__ == "__main__":
    main()
