"""A server with memory for a part of its rows, compared with a server with all rows in memory.

`python -m benchmarks.serving.tier [--requests 2000] [--warm 3000] [--share 0.1] [--policies lfu lru]`

The reference work of `benchmarks.serving`, whose 26 ids share one table of a million rows here. The values of
requests follow Zipf's law with exponent 1.1. Each request is answered by both servers in turn, in one process
with one thread, and the scores must be equal to the bit. "hits" is the share of a request's ids, including
repeated ones, whose row is in memory when the request arrives; "best" is the share for the best fixed set of
the same number of rows. "processor" is the processor time of a request from JSON to JSON, in milliseconds:
processor time of reading the file counts, waiting for a disk does not. "wall" is the elapsed time, and
"dropped" the same if the system has dropped the file from its memory before each request.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from benchmarks.record import write
from benchmarks.serving.__main__ import (
    CONTEXT_IDS,
    CONTEXT_NUMBERS,
    DIM,
    IDS,
    MAX_ITEMS,
    NUMBERS,
    schema,
    trained_on,
)
from satrap.exchange import LocalExchange
from satrap.serve.protocols import json as protocol
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import ScoredRequest
from satrap.store import Eviction, StoreConfig, Tier
from satrap.train import Predictor
from satrap.train.predictor import predictor_for, prepare

ROWS = 1_000_000
EXPONENT = 1.1
ITEMS = 100
RECORD = 4 * DIM
INDEX_BYTES, ROW_BYTES = 19.5, 84
"""Memory of the index for a row on the disk, and of a row in memory with its index."""
DROPPED = 200
"""Number of requests with the file dropped from memory before each."""


def trained(folder: Path) -> str:
    """Save a model with `ROWS` rows in one table."""
    random = np.random.default_rng(0)
    ids = np.resize(random.permutation(ROWS), (IDS, -(-ROWS // IDS)))
    return trained_on(ids, schema("all"), random, folder)


class Requests:
    """Draws requests, whose ids follow Zipf's law."""

    def __init__(self, seed: int) -> None:
        weights = np.arange(1, ROWS + 1) ** -EXPONENT
        self.shares = np.cumsum(weights) / weights.sum()
        self._random = np.random.default_rng(seed)
        self._values = self._random.permutation(ROWS)

    def _ids(self, count: int) -> list[int]:
        ids: list[int] = self._values[np.searchsorted(self.shares, self._random.random(count))].tolist()
        return ids

    def __call__(self) -> bytes:
        random = self._random
        context: dict[str, Any] = {f"c{i}": self._ids(1)[0] for i in range(CONTEXT_IDS)}
        context |= {f"n{i}": float(random.exponential(10)) for i in range(CONTEXT_NUMBERS)}
        items: dict[str, Any] = {f"c{i}": self._ids(ITEMS) for i in range(CONTEXT_IDS, IDS)}
        items |= {
            f"n{i}": random.exponential(10, ITEMS).round(4).tolist() for i in range(CONTEXT_NUMBERS, NUMBERS)
        }
        return orjson.dumps({"context": context, "items": items})


class Served:
    """A server without sockets, and the times of its requests."""

    def __init__(self, predictor: Predictor) -> None:
        self.model = ServedModel("reference", predictor)
        self.store = self.model._exchange.shard
        self.processor: list[float] = []
        self.wall: list[float] = []

    def hits(self, body: bytes) -> float:
        """Return the share of a request's ids whose rows are in memory."""
        batch = self.model._encoder([protocol.read(body, self.model, max_items=MAX_ITEMS)])
        ids = np.concatenate([column.values for column in batch.ids.values()])
        directory = self.store.groups[0].directory
        slots, _ = directory.find(ids, np.array([0, len(ids)]), use=False)
        return float((slots >= 0).mean())

    def warm(self, body: bytes) -> float:
        """Look up the rows of a request; return its hits."""
        hits = self.hits(body)
        batch = self.model._encoder([protocol.read(body, self.model, max_items=MAX_ITEMS)])
        self.model._exchange.peek(self.model._predictor.plan.ticket(batch).requests)
        return hits

    def answer(self, body: bytes) -> tuple[bytes, npt.NDArray[Any]]:
        wall, processor = time.perf_counter(), time.process_time()
        request = protocol.read(body, self.model, max_items=MAX_ITEMS)
        scores = self.model.score(self.model.encode([request]))
        written = protocol.write(ScoredRequest(self.model, self.model.step, scores))
        self.processor.append(1000 * (time.process_time() - processor))
        self.wall.append(1000 * (time.perf_counter() - wall))
        return written, scores

    def forget(self) -> None:
        self.processor, self.wall = [], []


def quantiles(values: Sequence[float]) -> dict[str, float]:
    return {f"p{100 * share:g}": float(np.quantile(values, share)) for share in (0.5, 0.9, 0.99)}


def compared(
    whole: Served, part: Served, requests: Requests, count: int, *, drop: bool = False
) -> list[float]:
    """Let both answer requests in turn; return the hits of the server with a tier."""
    hits = []
    for number in range(count):
        body = requests()
        hits.append(part.hits(body))
        if drop:
            part.store.groups[0].backend.cold.file.forget_pages()  # type: ignore[attr-defined]
        order = (whole, part) if number % 2 else (part, whole)
        answers = [one.answer(body) for one in order]
        assert np.array_equal(answers[0][1], answers[1][1]), "the scores differ"
    return hits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--warm", type=int, default=3000, help="requests looked up before the measured ones")
    parser.add_argument("--share", type=float, default=0.1, help="of the rows for which there is memory")
    parser.add_argument("--policies", nargs="*", default=["lfu", "lru"])
    parser.add_argument(
        "--folder", default=None, help="of the file; default the system's for temporary files"
    )
    arguments = parser.parse_args()
    place = prepare("cpu", 1)
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        url = trained(Path(folder) / "model")
        records = ROWS * 11 // 10  # the rows, and some later ones
        memory = int(records * INDEX_BYTES + arguments.share * ROWS * ROW_BYTES)
        for policy in arguments.policies:
            store = StoreConfig(memory=memory, eviction=Eviction(policy), tier=Tier(folder, records * RECORD))
            tiered = predictor_for(
                LocalExchange, url, None, device=place, store=store, stateless=True, metrics=None
            )
            whole, part, requests = Served(Predictor.load(url, threads=1)), Served(tiered), Requests(1)
            room = part.store.groups[0].directory.limit
            early = [part.warm(requests()) for _ in range(arguments.warm)]
            hits = compared(whole, part, requests, arguments.requests)
            figures: dict[str, Any] = {
                "rows in memory": room,
                "best": float(requests.shares[room - 1]),
                "hits": float(np.mean(hits)),
                "hits of the first 500": float(np.mean(early[:500])),
                "bytes": {"all": whole.model.stored()[0], "part": part.model.stored()[0]},
            }
            for name in ("processor", "wall"):
                each = {key: quantiles(getattr(one, name)) for key, one in (("all", whole), ("part", part))}
                figures[name] = {**each, "ratio": {q: each["part"][q] / each["all"][q] for q in each["all"]}}
            whole.forget(), part.forget()
            compared(whole, part, requests, DROPPED, drop=True)
            figures["dropped"] = {"all": quantiles(whole.wall), "part": quantiles(part.wall)}
            results[policy] = figures
            print(policy, figures, flush=True)
            whole.model.close(), part.model.close()
    print(write(Path(__file__).parent / "results", vars(arguments), results))


if __name__ == "__main__":
    main()
