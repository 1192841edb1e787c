"""Processor time of a scored request, compared with the plain eager network alone on its rows.

`python -m benchmarks.serving [--seconds 2] [--rounds 5]`

The reference work: DCN-v2 over 26 ids of dim 16 and 13 numbers, hidden layers of 256 and 128, 2 cross layers.
A request has one context (13 ids, 7 numbers) and 100 items, as JSON by columns. One thread of PyTorch.

Every figure is processor time in milliseconds per request; the compared variants take turns in one process.
Ratios are medians over the rounds, each divided by the network of the same round, in float32 also for the
server in bfloat16. "alone" is the whole path from JSON to JSON in this process: parsing, encoding, lookup,
network, writing; "joined" the same for 8 requests scored together. "http" is the processor time of a server's
process for consecutive requests, including all of HTTP. Scores are checked first: they equal the scores of
the plain network on the same rows.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import satrap
from benchmarks.processes import processor_seconds
from benchmarks.record import write
from satrap.serve.protocols import json as protocol
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import ScoredRequest
from satrap.train import Predictor

IDS, NUMBERS, DIM = 26, 13, 16
CONTEXT_IDS, CONTEXT_NUMBERS = 13, 7
ROWS = 20_000
"""Rows of each table."""
MAX_ITEMS = 10_000
PRECISIONS = ("float32", "bfloat16")


def schema(table: str | None = None) -> satrap.Schema:
    """Return the features of the reference work; `table`: the table of all ids, default one for each."""
    features: dict[str, Any] = {f"c{i}": satrap.Categorical(dim=DIM, table=table) for i in range(IDS)}
    features |= {f"n{i}": satrap.Numeric(transform="log1p") for i in range(NUMBERS)}
    return satrap.Schema((satrap.Label(name="click"),), features)


def trained(folder: Path) -> str:
    """Save a model with `ROWS` rows per table."""
    random = np.random.default_rng(0)
    return trained_on(np.array([random.permutation(ROWS) for _ in range(IDS)]), schema(), random, folder)


def trained_on(
    ids: npt.NDArray[np.int64], schema: satrap.Schema, random: np.random.Generator, folder: Path
) -> str:
    """Save a model that has rows for ids int64[IDS, samples]."""
    model = satrap.models.DCNv2(schema, hidden=(256, 128), cross_layers=2)
    trainer = satrap.Trainer(
        model,
        schema,
        embedding_optimizer=satrap.optim.SGD(lr=0.1),
        dense_optimizer=lambda weights: torch.optim.SGD(weights, lr=0.01),
        mode="sync",
    )
    count = ids.shape[1]
    rows: dict[str, Any] = {f"c{i}": ids[i] for i in range(IDS)}
    rows |= {f"n{i}": random.exponential(10, count) for i in range(NUMBERS)}
    rows["click"] = random.integers(0, 2, count)
    trainer.fit(satrap.data.read(rows, schema, batch_size=2048), epochs=1)
    trainer.save(str(folder))
    trainer.close()
    return str(folder)


def request(items: int, seed: int, rows: int = ROWS) -> bytes:
    random = np.random.default_rng(seed)
    context: dict[str, Any] = {f"c{i}": int(random.integers(rows)) for i in range(CONTEXT_IDS)}
    context |= {f"n{i}": float(random.exponential(10)) for i in range(CONTEXT_NUMBERS)}
    columns: dict[str, Any] = {
        f"c{i}": random.integers(0, rows, items).tolist() for i in range(CONTEXT_IDS, IDS)
    }
    columns |= {
        f"n{i}": random.exponential(10, items).round(4).tolist() for i in range(CONTEXT_NUMBERS, NUMBERS)
    }
    return json.dumps({"context": context, "items": columns}).encode()


class Work:
    """The compared variants: the network alone, and whole requests."""

    def __init__(self, url: str, items: int, precision: str = "float32") -> None:
        self.model = ServedModel("reference", Predictor.load(url, threads=1), precision=precision)
        self.bodies = [request(items, seed) for seed in range(16)]
        predictor = self.model._predictor
        self.plain = deepcopy(predictor.model)  # a copy is not prepared for serving
        self.inputs = []
        for body in self.bodies:
            runs = self.model.encode([protocol.read(body, self.model, max_items=MAX_ITEMS)])
            ticket = predictor.plan.ticket(runs.expanded())
            rows = predictor.exchange.lookup(ticket.requests, create=False).result()
            self.inputs.append((ticket, predictor.embeddings.rows(rows)))
        self.turn = 0

    def network(self) -> None:
        """Pool and run the eager network: the unavoidable work."""
        predictor = self.model._predictor
        ticket, rows = self.inputs[self._next(1)[0]]
        with torch.inference_mode():
            self.plain(predictor.embeddings.embed(ticket, rows))

    def requests(self, count: int) -> list[bytes]:
        bodies = [self.bodies[i] for i in self._next(count)]
        parsed = [protocol.read(body, self.model, max_items=MAX_ITEMS) for body in bodies]
        scores = self.model.score(self.model.encode(parsed))
        answers, start = [], 0
        for request in parsed:
            answers.append(
                protocol.write(
                    ScoredRequest(self.model, self.model.step, scores[start : start + request.size])
                )
            )
            start += request.size
        return answers

    def _next(self, count: int) -> list[int]:
        self.turn += count
        return [(self.turn + i) % len(self.bodies) for i in range(count)]


def check(work: Work, url: str) -> None:
    """Raise if an answer differs from the plain network's scores of the same rows."""
    predictor = Predictor.load(url, threads=1)
    for body in work.bodies[:3]:
        request = json.loads(body)
        count = len(next(iter(request["items"].values())))
        columns = {name: [value] * count for name, value in request["context"].items()} | request["items"]
        data = satrap.data.read(columns, schema().without_labels(), batch_size=count)
        expected = predictor.predict(data)[:, 0]
        batch = work.model.encode([protocol.read(body, work.model, max_items=MAX_ITEMS)])
        np.testing.assert_allclose(work.model.score(batch)[:, 0], expected, rtol=1e-6, atol=1e-6)
    predictor.close()


def processor_ms(work: Callable[[], Any], seconds: float) -> float:
    """Return the processor time of a call, repeated for some seconds."""
    count, start, until = 0, time.process_time(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        work()
        count += 1
    return (time.process_time() - start) / count * 1000


class Process:
    """A server in a separate process."""

    def __init__(self, url: str, precision: str = "float32") -> None:
        program = [sys.executable, "-m", "benchmarks.serving.server", url, precision]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        host, _, port = self._process.stdout.readline().strip().partition(":")
        self.connection = http.client.HTTPConnection(host, int(port))

    def ask(self, body: bytes) -> bytes:
        self.connection.request("POST", "/v1/score", body)
        answer = self.connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return content

    def cpu_ms(self) -> float:
        return 1000 * processor_seconds(self._process.pid)

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


def http_ms(process: Process, bodies: Sequence[bytes], seconds: float) -> float:
    """Return the processor time of a server's process for a request."""
    count, start, until = 0, process.cpu_ms(), time.perf_counter() + seconds
    while time.perf_counter() < until:
        process.ask(bodies[count % len(bodies)])
        count += 1
    return (process.cpu_ms() - start) / count


def measured(
    works: Mapping[str, Work], processes: Mapping[str, Process], seconds: float
) -> Iterator[tuple[str, float]]:
    """Yield each variant and its processor time per request in milliseconds, one after another."""
    yield "network", processor_ms(works["float32"].network, seconds)
    for precision, work in works.items():
        ending = "" if precision == "float32" else f" {precision}"
        yield f"alone{ending}", processor_ms(partial(work.requests, 1), seconds)
        yield f"joined{ending}", processor_ms(partial(work.requests, 8), seconds) / 8
        yield f"http{ending}", http_ms(processes[precision], work.bodies, seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--items", type=int, nargs="*", default=[100, 500])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        url = trained(Path(folder) / "model")
        processes = {precision: Process(url, precision) for precision in PRECISIONS}
        for items in arguments.items:
            works = {precision: Work(url, items, precision) for precision in PRECISIONS}
            check(works["float32"], url)
            figures: dict[str, list[float]] = {}
            for _ in range(arguments.rounds):
                for name, took in measured(works, processes, arguments.seconds):
                    figures.setdefault(name, []).append(took)
            rounds = range(arguments.rounds)
            results[f"{items} items"] = {
                "milliseconds": figures,
                "median": {name: statistics.median(values) for name, values in figures.items()},
                "ratio": {
                    name: statistics.median(values[i] / figures["network"][i] for i in rounds)
                    for name, values in figures.items()
                },
                "per core-second": {
                    name: 1000 / statistics.median(values) for name, values in figures.items()
                },
            }
            print(f"{items} items")
            for kind in ("ratio", "median", "per core-second"):
                values = results[f"{items} items"][kind]
                print(f"  {kind:<15}", {name: round(value, 2) for name, value in values.items()}, flush=True)
            for work in works.values():
                work.model.close()
        for process in processes.values():
            process.close()
    print(write(Path(__file__).parent / "results", vars(arguments), results))


if __name__ == "__main__":
    main()
