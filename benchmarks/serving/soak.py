"""Many requests, many updates and many hostile bodies: memory and speed from begin to end.

`python -m benchmarks.serving.soak [--requests 1000000] [--updates 1000] [--hostile 20000]`

A model of four tables with 20,000 rows of dim 16. A process changes 500 rows at a time and publishes them;
`satrap serve --follow` is a process of its own. Part 1: clients on some connections send requests of three
items one after another, until `--requests` were answered, while `--updates` versions come. Of each tenth:
requests per second and per processor second of the server, latencies, memory, versions. Part 2: honest
clients at a fixed rate, first alone, then while other connections send bodies that no server wants, until
`--hostile` were answered: p99 of both, and how long a client waits that sends one wrong body a second. With
`--requests 0` there is only part 2, which takes a minute with `--hostile 10000`. It ends with exit code 1 if
a request failed, an answer's step fell, or a hostile body was answered with 5xx.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

import satrap
from benchmarks.processes import processor_seconds, resident
from benchmarks.record import write
from satrap.checkpoint.feed import Feed
from satrap.serve.loadtest.connection import HttpConnection, TargetServer
from satrap.store import RowChunk
from satrap.train import Checkpointing, Publishing, Trainer

TABLES, ROWS, CHANGED = 4, 20_000, 500
CONNECTIONS, SLICES = 8, 10
CONTEXT = multiprocessing.get_context("spawn")


def schema() -> satrap.Schema:
    features: dict[str, Any] = {f"c{n}": satrap.Categorical(dim=16) for n in range(TABLES)}
    return satrap.Schema(["click"], {**features, "x": satrap.Numeric()})


def publishing(url: str, updates: int, seconds: float, begin: Any) -> None:
    """Publish versions in even steps of time, some rows changed in each."""
    torch.set_num_threads(1)
    trainer = Trainer(
        satrap.models.DNN(schema(), hidden=[32]),
        schema(),
        embedding_optimizer=satrap.optim.SGD(lr=0.1),
        dense_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.01),
        mode="sync",
    )
    plan = Checkpointing(f"{url}-snapshots", publish=Publishing(url, every=1e-3, full_every=100))
    random_ = np.random.default_rng(0)

    class Changing(satrap.train.Observer):
        """Changes some rows after each step, which is then published."""

        def __init__(self) -> None:
            self.next = 0.0

        def step(self, progress: satrap.train.Progress) -> None:
            if progress.step == 2:  # that of the first step is published
                begin.send(None)
                begin.recv()
                self.next = time.monotonic()
            for n in range(TABLES):
                ids = random_.choice(ROWS, CHANGED // TABLES, replace=False).astype(np.uint64)
                values = random_.normal(size=(len(ids), 16)).astype(np.float32)
                trainer.exchange.rows.load(f"c{n}", RowChunk(f"c{n}", ids, values, values[:, :0]))
            self.next += seconds / updates
            time.sleep(max(0.0, self.next - time.monotonic()))

    trainer.fit(rows(updates), checkpoint=plan, observers=[Changing()])
    trainer.close()


def rows(updates: int) -> Any:
    """A table of a row for each step; the first ones have all ids."""
    import pandas as pd

    from satrap.data import read

    count = max(updates, ROWS // 4)
    frame = pd.DataFrame({f"c{n}": np.arange(count) % ROWS for n in range(TABLES)})
    frame["x"], frame["click"] = 0.5, np.arange(count) % 2
    return read(frame, schema(), batch_size=max(1, count // updates))


def bodies(count: int) -> list[bytes]:
    """Requests of three items each."""
    found = []
    for seed in range(count):
        chosen = np.random.default_rng(seed)
        items = {f"c{n}": chosen.integers(0, ROWS, 3).tolist() for n in range(1, TABLES)}
        context = {"c0": int(chosen.integers(0, ROWS)), "x": float(chosen.random())}
        found.append(json.dumps({"context": context, "items": items}).encode())
    return found


def hostile(chosen: random.Random, good: list[bytes]) -> bytes:
    """Return a body that no server wants, or a damaged good one."""
    body = bytearray(chosen.choice(good))
    match chosen.randrange(8):
        case 0:
            return chosen.randbytes(chosen.randrange(2000))
        case 1:
            return bytes(body[: chosen.randrange(len(body))])
        case 2:
            for _ in range(chosen.randrange(1, 8)):
                body[chosen.randrange(len(body))] = chosen.randrange(256)
            return bytes(body)
        case 3:
            return b"[" * chosen.randrange(1, 50_000)
        case 4:
            return b'{"items":{"c1":[' + b"9" * chosen.randrange(1, 5000) + b"]}}"
        case 5:
            return b'{"items":{"c1":[' + b"1," * chosen.randrange(10_000, 12_000) + b"1]}}"
        case 6:
            wrong = chosen.choice(['"\\ud800"', "1e999", "null", "{}", "[[[]]]", "-0.0", "true", '""'])
            return f'{{"context":{{"c0":{wrong},"x":{wrong}}},"items":{{"c1":[{wrong}]}}}}'.encode()
        case _:
            names = ",".join(f'"k{chosen.randrange(10**6)}":{n}' for n in range(chosen.randrange(300)))
            return f'{{"context":{{{names}}},"items":{{"c1":[1]}}}}'.encode()


@contextmanager
def server(url: str, log: Path) -> Iterator[tuple[int, TargetServer]]:
    """Serve a feed in a process of its own."""
    words = [Path(sys.executable).with_name("satrap"), "serve", url, "--follow", "--listen", "127.0.0.1:0"]
    with log.open("w") as errors:
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    try:
        address = ""
        for line in process.stdout:
            name, _, text = line.strip().partition("  ")
            if name == "scores":
                address = text.strip().removesuffix("/v1/score")
            if name == "try it":
                break
        yield process.pid, TargetServer.of(address)
    finally:
        process.kill()
        process.wait()


class Slice:
    """What a tenth of the requests cost."""

    def __init__(self, process: int) -> None:
        self._process, self._begun, self._cpu = process, time.perf_counter(), processor_seconds(process)
        self.latencies: list[float] = []

    def told(self, versions: int) -> dict[str, float]:
        latencies, count = np.array(self.latencies) * 1000, len(self.latencies)
        return {
            "requests_per_second": count / (time.perf_counter() - self._begun),
            "requests_per_core_second": count / (processor_seconds(self._process) - self._cpu),
            "p50_ms": float(np.median(latencies)),
            "p99_ms": float(np.quantile(latencies, 0.99)),
            "rss_mib": resident(self._process),
            "threads": len(list(Path(f"/proc/{self._process}/task").iterdir())),
            "files": len(list(Path(f"/proc/{self._process}/fd").iterdir())),
            "versions": versions,
        }


async def many(target: TargetServer, process: int, count: int) -> dict[str, Any]:
    """Send requests on all connections until so many were answered."""
    asked = [target.post("/v1/score", body) for body in bodies(1000)]
    steps, failed, slices = set[int](), Counter[str](), []
    here, sent, fell = Slice(process), 0, 0

    async def client(first: int) -> None:
        nonlocal sent, here, fell
        connection, last = await target.connect(), 0
        while sent < count:
            sent += 1
            begun = time.perf_counter()
            reply = await connection.ask(asked[(first + sent) % len(asked)])
            here.latencies.append(time.perf_counter() - begun)
            if reply.status != 200:
                failed[str(reply.status)] += 1
                continue
            step = int(reply.headers["satrap-step"])
            fell, last = fell + (step < last), step
            steps.add(step)
            if len(here.latencies) >= count // SLICES:
                slices.append(here.told(len(steps)))
                print(json.dumps(slices[-1]), flush=True)
                here = Slice(process)

    await asyncio.gather(*(client(100 * n) for n in range(CONNECTIONS)))
    return {"slices": slices, "failed": failed, "steps_fell": fell, "versions": len(steps)}


async def honest(target: TargetServer, rate: float, until: asyncio.Event) -> dict[str, Any]:
    """Send requests at a rate until something has happened; return their latencies, milliseconds."""
    asked = [target.post("/v1/score", body) for body in bodies(100)]
    connections = [await target.connect() for _ in range(CONNECTIONS)]
    latencies: list[float] = []
    chosen, due = random.Random(1), time.perf_counter()
    free: asyncio.Queue[HttpConnection] = asyncio.Queue()
    for connection in connections:
        free.put_nowait(connection)

    async def one(due: float, body: bytes) -> None:
        connection = await free.get()
        reply = await connection.ask(body)
        assert reply.status == 200, reply
        latencies.append(time.perf_counter() - due)
        free.put_nowait(connection)

    running = set[asyncio.Task[None]]()
    while not until.is_set():
        due += chosen.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        task = asyncio.create_task(one(due, chosen.choice(asked)))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    ordered = np.array(latencies) * 1000
    return {
        "p50_ms": float(np.median(ordered)),
        "p99_ms": float(np.quantile(ordered, 0.99)),
        "requests": len(ordered),
    }


async def mistaken(target: TargetServer, until: asyncio.Event) -> dict[str, float]:
    """Send a wrong body each second; return how long the refusals took, milliseconds."""
    wrong, latencies = target.post("/v1/score", b'{"items":{"c1":[1]}}'), list[float]()
    connection = await target.connect()
    while not until.is_set():
        begun = time.perf_counter()
        reply = await connection.ask(wrong)
        assert reply.status == 422, reply
        latencies.append(1000 * (time.perf_counter() - begun))
        await asyncio.sleep(1)
    return {"median_ms": float(np.median(latencies)), "longest_ms": max(latencies)}


def attacking(target: TargetServer, count: int, connections: int, told: Any) -> None:
    """Send hostile bodies one after another on some connections; tell how they were answered.

    Every tenth is new, the others were sent before: to make one takes longer than to refuse it.
    """

    async def client(seed: int) -> Counter[str]:
        chosen, good, answers = random.Random(seed), bodies(50), Counter[str]()
        made: list[bytes] = []
        connection = await target.connect()
        for number in range(count // connections):
            if number % 10 == 0:
                made.append(target.post("/v1/score", hostile(chosen, good)))
                del made[:-1000]
            try:
                if not connection.usable:
                    connection = await target.connect()
                reply = await connection.ask(chosen.choice(made))
                answers[str(reply.status)] += 1
            except OSError:
                answers["closed"] += 1
        return answers

    async def all_of_them() -> Counter[str]:
        found = await asyncio.gather(*(client(seed) for seed in range(connections)))
        return sum(found, Counter[str]())

    told.send(asyncio.run(all_of_them()))


async def under_attack(
    target: TargetServer, process: int, rate: float, count: int, connections: int, alone_seconds: float
) -> dict[str, Any]:
    """Measure honest clients alone, then beside hostile ones."""
    found: dict[str, Any] = {}
    for name in ("alone", "attacked"):
        done = asyncio.Event()
        before = resident(process)
        measuring = asyncio.create_task(honest(target, rate, done))
        erring = asyncio.create_task(mistaken(target, done))
        begun, spent = time.perf_counter(), processor_seconds(process)
        if name == "alone":
            await asyncio.sleep(alone_seconds)
        else:
            mine, theirs = CONTEXT.Pipe()
            attack = CONTEXT.Process(target=attacking, args=(target, count, connections, theirs))
            attack.start()
            while not mine.poll():
                await asyncio.sleep(0.1)
            found["hostile_answers"] = dict(mine.recv())
            attack.join()
            found["rss_mib"] = [before, resident(process)]
        done.set()
        found[name] = await measuring | {"mistaken": await erring}
        found[name]["cores"] = (processor_seconds(process) - spent) / (time.perf_counter() - begun)
        print(name, json.dumps(found[name]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--updates", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=400.0, help="over which the updates come")
    parser.add_argument("--hostile", type=int, default=20_000, help="about 450 a second")
    parser.add_argument("--attackers", type=int, default=2, help="connections of hostile bodies")
    parser.add_argument("--rate", type=float, default=100.0, help="of the honest clients")
    parser.add_argument("--alone", type=float, default=30.0, help="seconds of them without hostile ones")
    asked = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        url, (mine, theirs) = f"{folder}/feed", CONTEXT.Pipe()
        publisher = CONTEXT.Process(target=publishing, args=(url, asked.updates, asked.seconds, theirs))
        publisher.start()
        mine.recv()
        while Feed(url).latest() is None:
            time.sleep(0.1)
        with server(url, Path(folder) / "server.log") as (process, target):
            mine.send(None)
            if asked.requests:
                results["many"] = asyncio.run(many(target, process, asked.requests))
            publisher.terminate()
            results["hostile"] = asyncio.run(
                under_attack(target, process, asked.rate, asked.hostile, asked.attackers, asked.alone)
            )
        with suppress(OSError):
            print((Path(folder) / "server.log").read_text()[-2000:])
    print(write(Path(__file__).parent / "results", vars(asked), results))
    bad = [status for status in results["hostile"]["hostile_answers"] if status.startswith("5")]
    many_ = results.get("many", {"failed": {}, "steps_fell": 0})
    sys.exit(bool(bad or many_["failed"] or many_["steps_fell"]))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
