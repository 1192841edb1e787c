"""Time from an event to a server trained on it, with a run that follows events and a server that follows it.

`python -m benchmarks.streams.freshness [--every 5] [--rate 2000] [--seconds 120]`

A thread adds a file of events to a folder twice a second; each event has the time at which it was made. A run
in this process follows the folder and publishes every `--every` seconds; a server in another process follows
the run. Its step is polled 20 times a second. An event is served once that step is at least the step that
trained on it. Times are wall-clock; the first `--every` seconds of the server are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.record import write
from satrap import launch
from satrap.config import load
from satrap.train import Observer, Progress

RECIPE = """\
data: {{stream: {{folder: events, time: at, wait: 200ms}}, batch_size: 512}}
labels: [clicked]
features: {{user: {{dim: 16}}, item: {{dim: 16}}}}
model: {{name: deepfm, hidden: [64]}}
training: {{follow: true}}
publish: {{every: {every}s}}
"""


class Steps(Observer):
    """Notes the time of the latest event of each step."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, float]] = []

    def step(self, progress: Progress) -> None:
        """Note one."""
        self.seen.append((progress.step, progress.event_time))


def produce(folder: Path, rate: int, made: list[float], ending: threading.Event) -> None:
    """Add files of events until the end."""
    random, number = np.random.default_rng(0), 0
    folder.mkdir()
    while not ending.wait(0.5):
        count, now = rate // 2, time.time()
        at = np.linspace(now - 0.5, now, count)
        columns = {"user": random.integers(0, 100_000, count), "item": random.integers(0, 10_000, count)}
        columns |= {"clicked": random.integers(0, 2, count), "at": at}
        pq.write_table(pa.table(columns), folder / ".new")
        (folder / ".new").rename(folder / f"{number:06d}.parquet")
        made += at.tolist()
        number += 1


def ask(run: Path, seconds: float, served: list[tuple[float, int]]) -> None:
    """Serve the run once it has published, note its steps for some time, and stop this process's training."""
    while not list((run / "feed").glob("step-*/manifest.json")):
        time.sleep(0.1)
    command = [sys.executable, "-m", "satrap.cli", "serve", str(run), "--follow", "--listen", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = next(line.split()[1] for line in server.stdout if line.startswith("scores"))
    place = url.replace("/v1/score", "/v1/model")
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with urllib.request.urlopen(place) as answer:
            served.append((time.time(), json.load(answer)["step"]))
        time.sleep(0.05)
    server.terminate()
    server.wait()
    os.kill(os.getpid(), signal.SIGTERM)


def delays(
    made: list[float], steps: list[tuple[int, float]], served: list[tuple[float, int]], skip: float
) -> Any:
    """Return the seconds from each event until it is served, float64[n]."""
    at = np.array([when for when, _ in served])
    answered = np.array([step for _, step in served])
    events = np.array([when for when in made if at[0] + skip < when < at[-1] - 3 * skip])
    numbers, latest = np.array([step for step, _ in steps]), np.array([when for _, when in steps])
    trained = numbers[np.searchsorted(np.maximum.accumulate(latest), events)]
    return at[np.searchsorted(answered, trained)] - events


def main() -> None:
    """Run once, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, default=5.0)
    parser.add_argument("--rate", type=int, default=2000, help="events per second")
    parser.add_argument("--seconds", type=float, default=120.0)
    options = parser.parse_args()
    made, served, steps, ending = list[float](), list[tuple[float, int]](), Steps(), threading.Event()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        recipe, run = folder / "stream.yaml", folder / "run"
        recipe.write_text(RECIPE.format(every=options.every), encoding="utf-8")
        threads = [
            threading.Thread(target=produce, args=(folder / "events", options.rate, made, ending)),
            threading.Thread(target=ask, args=(run, options.seconds, served)),
        ]
        for thread in threads:
            thread.start()
        launch.train(load(recipe), str(run), observers=[steps])
        ending.set()
        for thread in threads:
            thread.join()
    seconds = delays(made, steps.seen, served, options.every)
    results = {
        "events": len(seconds),
        "versions": len({step for _, step in served}),
        "p50": float(np.quantile(seconds, 0.5)),
        "p99": float(np.quantile(seconds, 0.99)),
        "longest": float(seconds.max()),
    }
    print(results)
    print(write(Path(__file__).parent / "results", vars(options), results))


if __name__ == "__main__":
    main()
