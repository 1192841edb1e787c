"""From the cut of a version until it is served: time, cost, and effect on requests.

`python -m benchmarks.serving.updates [--rows 1000000] [--changed 100000 1000000] [--seconds 20]`

The reference model of `python -m benchmarks.serving`, with `--rows` rows in all. A process changes rows,
takes a cut and writes it to a feed on the local disk; a server in another process follows it. "served" is
the time from the moment before the cut until the scoring thread answers with the new step; "folded" until
the changed rows are in their place; "rollback" is the time of a rollback by one version and by three,
from the request until the older step answers; "memory" is the server's memory before an update, its peak
until the rows are folded, and the bytes of the version. During the measurement a client in the server's
process sends one request of 100 items after another: in turns some seconds without updates and some with an
update every 5 seconds. Times are wall-clock; other work on the machine adds to them.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import satrap
from benchmarks.processes import forget_peak, resident
from benchmarks.record import write
from benchmarks.serving.__main__ import DIM, IDS, MAX_ITEMS, request, schema
from satrap.checkpoint import Checkpoint
from satrap.checkpoint.feed import FEED, Feed, feed_settings
from satrap.serve.protocols import json as protocol
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import Scorer
from satrap.serve.versions.follow import Follower
from satrap.store import RowChunk
from satrap.train import Predictor, Trainer
from satrap.train.state.state_writer import StateWriter

EVERY, KEPT = 5.0, 3
CONTEXT = multiprocessing.get_context("spawn")


class Publisher:
    """A model whose rows change without training, and its feed."""

    def __init__(self, url: str, rows: int, dtype: str) -> None:
        network = satrap.models.DCNv2(schema(), hidden=(256, 128), cross_layers=2)
        self.trainer = Trainer(
            network,
            schema(),
            embedding_optimizer=satrap.optim.Adagrad(lr=0.1),
            dense_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.01),
            mode="sync",
        )
        self.rows = rows // IDS
        self.random, self.step = np.random.default_rng(0), 0
        state, self.feed = self.trainer.state, Feed(url)
        self._writer = StateWriter(
            state,
            self.feed,
            lambda cut, workers: Checkpoint(state.settings() | {FEED: feed_settings("a", dtype)}, {}, {}, ()),
            own=lambda: ({}, {}),
            group=lambda: state.workers,
            feed=dtype,
        )
        self.change(rows)

    def change(self, rows: int) -> None:
        """Give rows new values, the same number in each table."""
        each = rows // IDS
        for table in range(IDS):
            ids = self.random.permutation(self.rows)[:each].astype(np.uint64)
            values = self.random.normal(size=(each, DIM)).astype(np.float32)
            chunk = RowChunk(f"c{table}", ids, values, np.ones_like(values))
            self.trainer.exchange.rows.load(chunk.table, chunk)

    def publish(self) -> float:
        """Publish a version; return when the cut began."""
        self.step += 1
        self.trainer.state.run.progress.step = self.step
        begun = time.perf_counter()
        self._writer.start(delta=self.step > 1)
        return begun

    def written(self) -> None:
        self._writer.wait()
        if (error := self._writer.failure()) is not None:
            raise error


def publishing(asked: Any, url: str, rows: int, dtype: str) -> None:
    """Publish on request, in a separate process; send the start time of each cut."""
    torch.set_num_threads(1)
    publisher = Publisher(url, rows, dtype)
    while (changed := asked.recv()) is not None:
        if changed:
            publisher.change(changed)
        asked.send(publisher.publish())
        publisher.written()
        asked.send(publisher.step)
    publisher.trainer.close()


def model_of(place: str) -> ServedModel:
    from satrap.checkpoint.files.storage import Storage
    from satrap.checkpoint.manifest import read_manifest

    return ServedModel(
        "reference",
        Predictor.load(place, threads=1),
        version=read_manifest(Storage(place)).id,
        keep=KEPT,
        keep_bytes=1 << 30,
    )


class Client:
    """Sends one request after another to a scorer, in a separate thread."""

    def __init__(self, scorer: Scorer) -> None:
        self._scorer, self._stopping = scorer, False
        self.latencies: list[float] = []
        self._bodies = [request(100, seed) for seed in range(16)]
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()))
        self._thread.start()

    async def _run(self) -> None:
        count = 0
        while not self._stopping:
            body = self._bodies[count % len(self._bodies)]
            count += 1
            start = time.perf_counter()
            request = protocol.read(body, self._scorer.model, max_items=MAX_ITEMS)
            protocol.write(await self._scorer.score(request, seconds=60))
            self.latencies.append(time.perf_counter() - start)

    def stop(self) -> None:
        self._stopping = True
        self._thread.join()


def _following(feed: Feed, scorer: Scorer) -> Follower:
    load = lambda step: model_of(feed.place(step))  # noqa: E731
    return Follower(feed, load, scorer, notice=print)


def until(check: Any) -> float:
    while not check():
        time.sleep(0.001)
    return time.perf_counter()


def percentiles(latencies: list[float]) -> dict[str, float]:
    ordered = sorted(latencies)
    values = {
        name: 1000 * ordered[int(len(ordered) * share)] for name, share in (("p50", 0.5), ("p99", 0.99))
    }
    return {**values, "max": 1000 * ordered[-1], "requests": len(ordered)}


def rolled_back(follower: Follower, scorer: Scorer) -> list[float]:
    """Return the times of three rollbacks by one version, and of one by all kept versions."""
    times = []
    for steps in (1, 1, 1, KEPT):
        newest = scorer.model.step
        until(lambda: scorer.model.settled)
        begun = time.perf_counter()
        follower.rollback(scorer.model.history.steps[-steps])
        times.append(time.perf_counter() - begun)
        follower.release()
        until(lambda newest=newest: scorer.model.step == newest and scorer.model.settled)
    return times


def measured(folder: Path, rows: int, changed: int, seconds: float, dtype: str) -> dict[str, Any]:
    feed, (mine, theirs) = Feed(str(folder)), CONTEXT.Pipe()
    process = CONTEXT.Process(target=publishing, args=(theirs, str(folder), rows, dtype))
    process.start()
    mine.send(0)
    mine.recv()
    model = model_of(feed.place(mine.recv()))
    figures: dict[str, Any] = {"served_s": [], "folded_s": [], "without": [], "with": []}
    figures["bytes_of_ram_per_row"] = model.stored()[0] / sum(model.rows().values())
    with Scorer(model) as scorer, _following(feed, scorer) as follower:
        client = Client(scorer)

        def update() -> None:
            before = scorer.model.step
            mine.send(changed)
            begun = mine.recv()
            served = until(lambda: scorer.model.step > before)
            figures["served_s"].append(served - begun)
            figures["folded_s"].append(until(lambda: not scorer.model.folding) - begun)
            assert mine.recv() == scorer.model.step

        update()  # kernels are loaded
        figures["served_s"].clear()
        figures["folded_s"].clear()
        for _ in range(3):
            client.latencies.clear()
            time.sleep(seconds)
            figures["without"].append(percentiles(client.latencies))
            client.latencies.clear()
            for _ in range(max(1, int(seconds / EVERY))):
                start = time.perf_counter()
                update()
                time.sleep(max(0.0, EVERY - time.perf_counter() + start))
            figures["with"].append(percentiles(client.latencies))
        # The kept versions are all there by now, so only the update itself adds memory.
        before = resident(os.getpid())
        forget_peak(os.getpid())
        update()
        figures["memory_mib"] = {"before": before, "peak": resident(os.getpid(), "VmHWM")}
        figures["bytes_per_kept_version"] = scorer.model.history.bytes / KEPT
        figures["rollback_s"] = rolled_back(follower, scorer)
        client.stop()
        assert follower.statistics.reloads == 0
    mine.send(None)
    process.join()
    manifest = feed.manifest(feed.latest() or 0)
    of_rows = sum(entry.bytes for entry in manifest.files.values() if entry.table)
    figures["memory_mib"]["delta"] = of_rows / (1 << 20)
    figures["bytes_per_changed_row"] = of_rows / sum(manifest.rows().values())
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--changed", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn")
    parser.add_argument("--dtype", nargs="*", default=["float32", "float16"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    for dtype in arguments.dtype:
        for changed in arguments.changed:
            with tempfile.TemporaryDirectory() as folder:
                figures = measured(Path(folder), arguments.rows, changed, arguments.seconds, dtype)
            name = f"{changed:,} rows, {dtype}"
            results[name] = figures
            print(name)
            print("  served", statistics.median(figures["served_s"]), "to", max(figures["served_s"]))
            print("  folded", statistics.median(figures["folded_s"]), "to", max(figures["folded_s"]))
            print("  rollback by 1 and by", KEPT, figures["rollback_s"])
            print("  without", *figures["without"], "  with   ", *figures["with"], sep="\n    ")
            print("  memory of an update, MiB", figures["memory_mib"])
            print(
                "  bytes:",
                figures["bytes_per_changed_row"],
                "a row fed,",
                figures["bytes_of_ram_per_row"],
                "in RAM",
            )
    print(write(Path(__file__).parent / "results", vars(arguments), results))


if __name__ == "__main__":
    main()
