"""Honest clients beside the attackers: they know from NumPy what every answer must be, and note its time."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from queue import Queue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from satrap.batch import Batch, Jagged
from satrap.config import load
from satrap.data.remote.client import RemoteData
from satrap.embedding.factory import embeddings_of
from satrap.embedding.workers import PooledExchange
from satrap.errors import SatrapError
from satrap.exchange import LookupRequest
from satrap.exchange.servers import ClientOptions, ServersExchange, Wire, WorkerId
from satrap.launch.datasets import measured, open_part
from satrap.rpc import Key, read_key
from satrap.store import StoreConfig
from tools_dev.hostile.targets import OPTIMIZER, RUN, SCHEMA, SEED, TABLES, WORLD

IDS, EACH = 3000, 40
WARM = 5
"""Requests until everything is compiled, connected and read for the first time."""

PAUSE = 0.02
"""Seconds between two requests: an honest client is no flood."""

Rows = npt.NDArray[np.float32]


@dataclass
class Experience:
    """What one of them saw.

    Args:
        name: of the process it used.
        checked: rows, or batches of a loader, or metrics of an endpoint.
        wrong: of these.
        requests: when each began, in seconds of the clock that all processes share, and what it took.
        error: that ended it, "" if none did.
    """

    name: str
    checked: int = 0
    wrong: int = 0
    requests: list[tuple[float, float]] = field(default_factory=list)
    error: str = ""

    def timed(self, call: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        found = call()
        self.requests.append((begun, time.monotonic() - begun))
        return found

    def percentiles(self, begin: float, end: float) -> tuple[int, float, float]:
        """Return how many requests began between two instants, and half and 99 % of them took, in seconds."""
        took = [seconds for at, seconds in self.requests if begin <= at < end] or [np.inf]
        half, most = np.percentile(took, [50, 99])
        return len(took), float(half), float(most)


class Model:
    """Rows that learn by Adagrad, in a dictionary."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[Rows, Rows]] = {}

    def rows(self, ids: npt.NDArray[np.uint64]) -> Rows:
        zeros = np.zeros(4, np.float32)
        return np.stack([self._rows.get(int(i), (zeros, zeros))[0] for i in ids])

    def update(self, ids: npt.NDArray[np.uint64], gradients: Rows) -> None:
        for i, gradient in zip(ids, gradients / np.float32(WORLD), strict=True):
            row, total = self._rows.get(int(i), (np.zeros(4, np.float32), np.zeros(4, np.float32)))
            total = total + gradient * gradient
            step = np.float32(OPTIMIZER.lr) * gradient / (np.sqrt(total) + np.float32(OPTIMIZER.eps))
            self._rows[int(i)] = (row - step, total)


def _about(key: Key | None) -> dict[str, Any]:
    return {
        "store": StoreConfig(SEED),
        "worker": WorkerId(0, WORLD, generation=1, run=RUN),
        "wire": Wire("float32", "float32"),
        "options": ClientOptions(key=key, deadline=60.0),
    }


def of_shard(seen: Experience, address: str, key: Key | None, ended: Callable[[], bool]) -> None:
    """Look up, check and update rows of a shard."""
    exchange = ServersExchange([address], TABLES, **_about(key))
    rng, model = np.random.default_rng(1), Model()
    while not ended():
        ids = rng.choice(IDS, EACH, replace=False).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        request = LookupRequest(0, ids, np.array([0, EACH], np.int64))
        lookup = exchange.lookup([request], create=True)
        [rows] = seen.timed(lookup.result)
        seen.checked += EACH
        seen.wrong += int((~np.isclose(rows, model.rows(ids), rtol=1e-4, atol=1e-6).all(1)).sum())
        gradients = rng.standard_normal((EACH, 4)).astype(np.float32)
        exchange.apply(lookup, [gradients], lr_scale=1.0)
        model.update(ids, gradients)
        if rng.random() < 0.1:
            seen.timed(exchange.flush)
        time.sleep(PAUSE)
    exchange.close()


def of_embedding_worker(
    seen: Experience, address: str, shard: str, key: Key | None, ended: Callable[[], bool]
) -> None:
    """Do the same through an embedding worker: with one id a sample, pooled tensors are the rows."""
    exchange = PooledExchange("embedding worker 0", address, [shard], SCHEMA, TABLES, **_about(key))
    plan, _ = embeddings_of(exchange, SCHEMA, exchange.groups, torch.device("cpu"))
    rng, model = np.random.default_rng(1), Model()
    while not ended():
        ids = rng.choice(IDS, EACH, replace=False).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        others = rng.integers(1, 50, EACH).astype(np.uint64)
        batch = Batch(size=EACH, ids={"mine": Jagged(ids), "theirs": Jagged(others)})
        requests = plan.ticket(batch).requests
        lookup = exchange.lookup(requests, create=True)
        found = seen.timed(lookup.result)
        own = next(i for i, tensor in enumerate(found) if tensor.shape[-1] == 4)
        seen.checked += EACH
        right = np.isclose(found[own].reshape(EACH, 4), model.rows(ids), rtol=1e-4, atol=1e-6)
        seen.wrong += int((~right.all(1)).sum())
        gradients = [np.zeros_like(tensor) for tensor in found]
        gradients[own] = rng.standard_normal(found[own].shape).astype(np.float32)
        exchange.apply(lookup, gradients, lr_scale=1.0)
        model.update(ids, gradients[own].reshape(EACH, 4))
        time.sleep(PAUSE)
    exchange.close()


def of_loader(
    seen: Experience, address: str, recipe: Path, key: Key | None, ended: Callable[[], bool]
) -> None:
    """Read passes, and compare every batch with the one that is read here."""
    loaded = load(recipe)
    schema = measured(loaded, loaded.schema())
    here, epoch = open_part(loaded, schema, "train"), 0
    there = RemoteData("loader 0", address, "train", schema, options=ClientOptions(key, deadline=60.0))
    assert here is not None
    while not ended():
        batches = there.batches(epoch)
        for expected in here.batches(epoch):
            found = seen.timed(lambda: next(batches))  # noqa: B023
            seen.checked += 1
            same = all(np.array_equal(found.ids[n].values, expected.ids[n].values) for n in expected.ids)
            assert expected.labels is not None
            seen.wrong += not (same and np.array_equal(found.labels, expected.labels))
            time.sleep(PAUSE)
            if ended():
                break
        epoch += 1


def of_endpoint(seen: Experience, address: str, ended: Callable[[], bool]) -> None:
    """Read metrics; a connection that is refused because others hold all is tried again."""
    while not ended():
        begun = time.monotonic()
        while not ended():
            try:
                with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
                    text = answer.read()
            except OSError:
                time.sleep(0.05)
                continue
            seen.checked += 1
            seen.wrong += b"satrap_role_info" not in text
            seen.requests.append((begun, time.monotonic() - begun))
            break
        time.sleep(0.1)


def live(
    name: str,
    arguments: tuple[Any, ...],
    key: Path | None,
    warm: Semaphore,
    end: Event,
    results: Queue[Experience],
) -> None:
    """Be one of them, in a process of its own, until `end`; `warm` is released after the first requests."""
    seen, secret = Experience(name), read_key(key) if key else None
    told = False

    def ended() -> bool:
        nonlocal told
        if not told and len(seen.requests) >= WARM:
            told = True
            seen.requests.clear()
            warm.release()
        return end.is_set()

    try:
        match name:
            case "shard" | "journal":
                of_shard(seen, *arguments, secret, ended)
            case "embedding worker":
                of_embedding_worker(seen, *arguments, secret, ended)
            case "loader":
                of_loader(seen, *arguments, secret, ended)
            case _:
                of_endpoint(seen, *arguments, ended)
    except (SatrapError, OSError) as error:
        seen.error = str(error)
    results.put(seen)
