"""A trained run with every kind of column, and a server of it in this process."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from satrap import launch
from satrap.config import load
from satrap.config.keys.serving import ServingKeys
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import load_predictor
from satrap.serve.http.app import Application
from satrap.serve.http.server import ScoringServer, listening
from satrap.serve.scoring.model import ServedModel
from satrap.serve.scoring.scorer import Scorer

RECIPE = """\
data: {train: rows.parquet, split: {modulo: 10, validation: [8], test: [9]}, batch_size: 100}
labels:
  - clicked
  - {name: rating, kind: regression}
  - {name: mood, kind: multiclass, classes: [low, high]}
features:
  user:    {dim: 4}
  book:    {dim: 4}
  tags:    {dim: 4, multi: true, pooling: mean}
  words:   {dim: 4, multi: true, separator: "|"}
  hour:    {dim: 4, column: time, time: hour}
  old:     {dim: 4, column: age, boundaries: [20, 40]}
  both:    {dim: 4, cross: [user, book]}
  age:     {numeric: true, transform: [log1p, standardize]}
  price:   {numeric: true, missing: -1}
  picture: {vector: 3}
model: {name: dnn, hidden: [8]}
embedding: {optimizer: {name: adam, lr: 0.01}}
dense: {optimizer: {name: adam, lr: 0.01}}
training: {mode: sync, epochs: 1}
"""

TOWERS = RECIPE.replace(
    "  - {name: rating, kind: regression}\n  - {name: mood, kind: multiclass, classes: [low, high]}\n", ""
).replace("{name: dnn, hidden: [8]}", "{name: two_tower, item: [book, tags, price], hidden: [8], width: 5}")
"""The same with a model of vectors, and one label."""

COLUMNS = ["user", "book", "tags", "words", "time", "age", "price", "picture"]
"""What a request needs, in any order."""


def frame(count: int = 1000, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "user": [None if user == 0 else f"u{user}" for user in random.integers(0, 30, count)],
            "book": random.integers(0, 20, count) + (1 << 62),
            "tags": [list(random.integers(0, 9, n)) for n in random.integers(0, 4, count)],
            "words": [
                "|".join(f"w{i}" for i in random.integers(0, 9, n)) for n in random.integers(0, 4, count)
            ],
            "time": [f"2024-01-31 {hour:02}:05:30" for hour in random.integers(0, 24, count)],
            "age": random.integers(5, 80, count).astype(float),
            "price": np.where(random.random(count) < 0.2, np.nan, random.exponential(10, count)),
            "picture": [list(random.normal(size=3)) for _ in range(count)],
            "clicked": random.integers(0, 2, count),
            "rating": random.normal(3, 1, count),
            "mood": random.choice(["low", "high"], count),
        }
    )


def trained(folder: Path) -> RunFolder:
    """Train the run."""
    folder.mkdir(parents=True, exist_ok=True)
    frame().to_parquet(folder / "rows.parquet")
    (folder / "books.yaml").write_text(RECIPE, encoding="utf-8")
    launch.train(load(folder / "books.yaml"), str(folder / "books"))
    return RunFolder.open(folder / "books")


def model_of(run: RunFolder) -> ServedModel:
    return ServedModel("books", load_predictor(run, run.recipe()))


@dataclass
class Served:
    """A server in a thread, and requests to it."""

    address: tuple[str, int]
    scorer: Scorer
    application: Application

    def ask(
        self, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of an answer."""
        connection = http.client.HTTPConnection(*self.address, timeout=60)
        try:
            connection.request("GET" if body is None else "POST", path, body, dict(headers or {}))
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        finally:
            connection.close()

    def score(self, request: Any, path: str = "/v1/score", **headers: str) -> tuple[int, Any]:
        """Return status and content of the answer to a request in JSON."""
        status, _, body = self.ask(path, json.dumps(request), headers)
        return status, json.loads(body)


@contextmanager
def served(
    model: ServedModel,
    limits: ServingKeys = ServingKeys(),  # noqa: B008
    secret: bytes | None = None,
) -> Iterator[Served]:
    listener = listening("127.0.0.1", 0, secret=secret)
    address = listener.getsockname()[:2]
    with Scorer(model, max_queue=limits.max_queue) as scorer:
        application = Application(scorer, limits, secret=secret)
        server = ScoringServer(application, listener)
        ready = threading.Event()
        thread = threading.Thread(target=server.run, args=(ready.set,))
        thread.start()
        try:
            assert ready.wait(60)
            yield Served(address, scorer, application)
        finally:
            server.stop()
            thread.join(60)
            assert not thread.is_alive()
