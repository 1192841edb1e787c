"""A run that follows Redis streams, of whose processes one is killed again and again, and the server, too.

`python -m tools_dev.chaos.stream_kills --kills 200 --seed 1` adds events without end, kills launchers,
workers, shards and the Redis server at random instants, and resumes. At the end the run reads what is left
and is stopped. Each event has an id of its own, whose row begins at 0 and is trained by Adagrad: after its
first step a row is the learning rate away from 0, whatever the gradient was, and after a second one it is
not. So the rows of the saved model tell how often each event of the log was trained on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from redis import RedisError
from tests.cli.command import SATRAP
from tests.cluster.runs import alive, children
from tests.support.logs import RedisServer

from satrap.checkpoint import Series
from satrap.data.encode.hashing import hash_ids
from satrap.exchange import LocalExchange
from satrap.train import Predictor
from tools_dev.chaos.process_kills import WAIT, tail

RATE = 0.25
"""Learning rate of rows: a row that was trained once is so far from 0."""

NEAR = 1e-3 * RATE
"""What rounding, and Adagrad's epsilon beside a small gradient, change; a second step changes much more."""

RECIPE = """\
data:
  stream: {{redis: {{url: "{url}", streams: [a, b, c]}}, wait: 50ms, time: at}}
  batch_size: 64
labels: [clicked]
features: {{event: {{dim: 1}}, user: {{dim: 1}}}}
model: {{name: lr}}
embedding: {{initial_scale: 0.0, optimizer: {{name: adagrad, lr: {rate}}}}}
training: {{mode: {mode}, follow: true}}
cluster: {{exchange: {exchange}, workers: {workers}, shards: {shards}, restarts: 100000}}
checkpoint: {{every_steps: 10}}
publish: {{every: 500ms}}
"""

LAYOUTS = (
    {"mode": "hybrid", "exchange": "servers", "workers": 2, "shards": 2},
    {"mode": "sync", "exchange": "servers", "workers": 3, "shards": 1},
    {"mode": "async", "exchange": "servers", "workers": 2, "shards": 2},
    {"mode": "hybrid", "exchange": "collective", "workers": 2, "shards": 1},
    {"mode": "hybrid", "exchange": "local", "workers": 1, "shards": 1},
)


@dataclass
class Found:
    """What was done, and found.

    Attributes:
        kills: by what was killed.
        events: in the log.
        once: of them, trained on once.
        never: some of those that were not.
        twice: some of those that were more often, with the distance of their rows from 0.
    """

    kills: Counter[str] = field(default_factory=Counter)
    events: int = 0
    once: int = 0
    never: list[int] = field(default_factory=list)
    twice: list[tuple[int, float]] = field(default_factory=list)


class Producer(threading.Thread):
    """Adds numbered events, each once, however often the server goes away."""

    def __init__(self, server: RedisServer, source: random.Random) -> None:
        super().__init__(daemon=True)
        self._server, self._random, self.ending = server, source, threading.Event()
        self.added = 0

    def run(self) -> None:
        """Add some ten events at a time until the end."""
        while not self.ending.is_set():
            for _ in range(self._random.randint(1, 20)):
                self._add(self.added)
                self.added += 1
            time.sleep(0.02)

    def _add(self, number: int) -> None:
        """Add an event under an id of its own, so that a second attempt adds nothing."""
        values = {"event": number, "user": number % 97, "clicked": number % 3 % 2, "at": time.time()}
        while True:
            try:
                self._server.client.xadd("abc"[number % 3], values, id=f"{number + 1}-1")
                return
            except RedisError as error:
                if "equal or smaller" in str(error):
                    return
                time.sleep(0.05)


def loop(kills: int, *, seed: int, layout: int, folder: Path) -> Found:
    """Kill processes of a run of one of the `LAYOUTS` so often, and look at what it learnt."""
    source, found = random.Random(f"{seed} {layout}"), Found()
    server = RedisServer(folder)
    producer = Producer(server, random.Random(seed))
    producer.start()
    recipe, run = folder / "stream.yaml", folder / "run"
    recipe.write_text(RECIPE.format(url=server.url, rate=RATE, **LAYOUTS[layout]), encoding="utf-8")
    try:
        while sum(found.kills.values()) < kills:
            _attempt(recipe, run, server, source, found, kills)
        producer.ending.set()
        producer.join()
        for _ in range(5):  # a busy machine may be quiet before all is read
            if _read(run) == producer.added:
                break
            _finish(recipe, run)
        _count(run, producer.added, server, found)
    finally:
        producer.ending.set()
        server.kill()
    return found


def _attempt(
    recipe: Path, run: Path, server: RedisServer, source: random.Random, found: Found, kills: int
) -> None:
    """Start the run or resume it, and kill until its launcher was killed, or there were enough kills."""
    process, roles = _start(recipe, run), dict[str, int]()
    while sum(found.kills.values()) < kills:
        _wait_for_steps(process, run, source)
        roles = children(process.pid) or roles
        assert process.poll() is None, f"the run ended by itself, code {process.returncode}\n{tail(run)}"
        victim = source.choice(sorted({"launcher", "redis", *(name.split()[0] for name in roles)}))
        found.kills[victim] += 1
        print(f"{time.strftime('%H:%M:%S')} kill {sum(found.kills.values())}: {victim}", flush=True)
        if victim == "redis":
            server.kill()
            time.sleep(source.uniform(0.0, 0.5))
            server.start()
            continue
        named = [pid for name, pid in roles.items() if name.split()[0] == victim] or [process.pid]
        with contextlib.suppress(ProcessLookupError):
            os.kill(source.choice(named), signal.SIGKILL)
        if victim == "launcher":
            break
    if process.poll() is None and victim != "launcher":
        process.send_signal(signal.SIGTERM)
    process.wait(WAIT)
    limit = time.monotonic() + 60
    while any(alive(pid) for pid in roles.values()):
        assert time.monotonic() < limit, "processes are left"
        time.sleep(0.02)


def _start(recipe: Path, run: Path) -> subprocess.Popen[bytes]:
    """Begin the run, or resume it; one that was killed before its first snapshot begins anew."""
    command = [SATRAP, "train", str(recipe), "--output", str(run), "--until-done"]
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def _wait_for_steps(process: subprocess.Popen[bytes], run: Path, source: random.Random) -> None:
    """Wait until a new snapshot is there, and a little longer; one time in six any time."""
    if source.random() < 1 / 6:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(source.uniform(0.0, 6.0))
        return
    before, limit = _newest(run), time.monotonic() + WAIT
    while _newest(run) <= before and process.poll() is None and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(source.uniform(0.0, 0.5))


def _newest(run: Path) -> int:
    steps = (run / "checkpoints").glob("step-*/manifest.json")
    return max((int(path.parent.name.removeprefix("step-")) for path in steps), default=0)


def _finish(recipe: Path, run: Path) -> None:
    """Let the run read what is left, and stop it."""
    process = _start(recipe, run)
    begun = quiet = time.monotonic()
    before = _published(run)
    least = 300.0  # seconds, unless a step shows that it has begun
    while time.monotonic() - quiet < 4.0 or time.monotonic() - begun < least:
        assert process.poll() is None, f"the run ended by itself\n{tail(run)}"
        assert time.monotonic() - begun < WAIT, f"the run did not read to the end of the log\n{tail(run)}"
        if (now := _published(run)) != before:
            quiet, before, least = time.monotonic(), now, 0.0
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT) == 1, tail(run)  # saved, and to be continued


def _read(run: Path) -> int:
    """Return how many events the newest snapshot has read, by its offsets."""
    series = Series(str(run / "checkpoints"))
    settings: Mapping[str, Any] = series.manifest(series.latest() or 0).settings
    counts = Counter[str]()
    for one in (settings["run"], *settings["peers"]):
        for stream in one["streams"]:
            for name, (count, _) in (stream["position"] or {}).get("offsets", {}).items():
                counts[name] = max(counts[name], count)
    return counts.total()


def _published(run: Path) -> int:
    """Return the newest step of the feed, which is published while no event comes; -1: none yet."""
    steps = [int(path.name.removeprefix("step-")) for path in (run / "feed").glob("step-*")]
    return max(steps, default=-1)


def _count(run: Path, added: int, server: RedisServer, found: Found) -> None:
    """Look up the row of each event of the log in the newest snapshot."""
    logged = sorted(int(values[b"event"]) for name in "abc" for _, values in server.client.xrange(name))
    assert logged == list(range(added)), "the log is not what was added"
    predictor = Predictor.load(str(run / "checkpoints"))
    assert isinstance(predictor.exchange, LocalExchange)
    rows, _ = predictor.exchange.shard.peek("event", hash_ids(np.arange(added), 0))
    predictor.close()
    distance = np.abs(rows[:, 0])
    once, never = np.abs(distance - RATE) < NEAR, distance == 0
    found.events, found.once = added, int(once.sum())
    found.never = np.flatnonzero(never)[:10].tolist()
    found.twice = [(int(i), float(distance[i])) for i in np.flatnonzero(~once & ~never)[:10]]


def main() -> None:
    """Kill in each layout, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="in all layouts together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layouts", type=int, nargs="*", default=list(range(len(LAYOUTS))))
    given = parser.parse_args()
    wrong = 0
    for layout in given.layouts:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            found = loop(
                -(-given.kills // len(given.layouts)), seed=given.seed, layout=layout, folder=Path(folder)
            )
        wrong += found.events - found.once
        killed = ", ".join(f"{name} {count}" for name, count in sorted(found.kills.items()))
        print(
            f"{LAYOUTS[layout]}: {found.once:,} of {found.events:,} events once, never {found.never}, "
            f"more often {found.twice}; killed: {killed}; {time.monotonic() - begun:.0f} s",
            flush=True,
        )
    raise SystemExit(int(wrong > 0))


if __name__ == "__main__":
    main()
