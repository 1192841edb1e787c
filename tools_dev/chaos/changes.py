"""Recipes whose run is resumed by other processes than those that were killed: other numbers of shards and
workers, other tables at all workers, workers in place of shards, one process in place of all.
"""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from tests.launch.runs import make_recipe
from tests.xxh64 import xxh64

from satrap.config import load
from satrap.errors import ConfigError
from tools_dev.chaos.drawing import (
    COUNTS,
    LEAST_MEMORY,
    STALENESS,
    Configuration,
    cluster,
    exchange_of,
    saved,
)

BATCH = 100
ROWS, USERS, SELLERS, ITEMS, KINDS = 4000, 4000, 3000, 20, 8
TRAINED = ROWS * 8 // 10
EPOCHS = 6
EVERY, FULL_EVERY = 6, 24
MOST_HOLDERS = 3
ROOM = MOST_HOLDERS * (LEAST_MEMORY + 300 * 64)
"""Bytes of each table that evicts: three shards have room for some of its rows, one for all."""
BOUND, KEPT, FROZEN = ("user", "seller"), "item", "kind"
"""Tables that evict, each by itself; one that keeps all rows; one whose rows are in a file."""
DIMS = {"user": 4, "seller": 3, "item": 4, "kind": 2}


@cache
def frame() -> pd.DataFrame:
    """Clicks that depend mostly on the item; users and sellers come once or twice."""
    source = np.random.default_rng(0)
    users, items = source.integers(0, USERS, ROWS), source.integers(0, ITEMS, ROWS)
    chance = 1 / (1 + np.exp(-4 * np.sin(items) - np.cos(users)))
    return pd.DataFrame(
        {
            "user": [f"u{user}" for user in users],
            "seller": [f"s{seller}" for seller in source.integers(0, SELLERS, ROWS)],
            "item": [f"i{item}" for item in items],
            "kind": [f"k{item % KINDS}" for item in items],
            "price": source.exponential(10, ROWS).round(2),
            "clicked": (source.random(ROWS) < chance).astype(int),
        }
    )


@cache
def ids() -> dict[str, frozenset[int]]:
    """Return the ids that each table may have."""
    trained = frame().iloc[[i for i in range(ROWS) if i % 10 < 8]]
    return {name: frozenset(xxh64(value.encode(), 0) for value in trained[name]) for name in DIMS}


@cache
def vectors() -> np.ndarray:
    """Return the rows of the table that is frozen, by value."""
    return np.random.default_rng(1).standard_normal((KINDS, DIMS[FROZEN])).astype(np.float32)


@dataclass(frozen=True)
class Layout:
    """Who holds what: numbers as in a configuration, and the tables that are at all workers."""

    shards: int | str
    workers: int
    loaders: int
    embedding_workers: int
    replicated: tuple[str, ...] = ()

    def __str__(self) -> str:
        held = {0: "one process", "none": "workers"}.get(self.shards, f"{self.shards} shards")
        return f"{held}, {self.workers} workers" + "".join(f", {name} replicated" for name in self.replicated)


class Changes:
    """Writes the recipe of a run, for other processes each time.

    Args:
        configuration: what stays the same.
        source: of what is random.
    """

    def __init__(self, configuration: Configuration, source: random.Random) -> None:
        self._configuration, self._random = configuration, source
        self.layouts: list[Layout] = []

    def write(self, folder: Path) -> Path:
        """Write the rows and the recipe of a run that begins."""
        path = make_recipe(folder, "", frame())
        np.savez(
            folder / "vectors.npz", id=np.array([f"k{kind}" for kind in range(KINDS)]), weights=vectors()
        )
        self.again(path)
        return path

    def again(self, path: Path) -> None:
        """Write the recipe anew, so that other processes go on."""
        while True:
            layout = self._drawn()
            path.write_text(self._text(layout, path.parent), encoding="utf-8")
            try:
                load(path)
            except ConfigError:
                continue  # a combination that recipes refuse
            self.layouts.append(layout)
            return

    def _drawn(self) -> Layout:
        pick = self._random.choice
        shards = pick([0, 1, 2, 2, 3, 3, "none"])
        workers = pick([1, 2, 2]) if shards != 0 else 1
        replicated = tuple(name for name in (KEPT, FROZEN) if shards != 0 and self._random.random() < 0.6)
        loaders = pick([0, 1]) if shards != 0 else 0
        embedding = pick([0, 0, 1]) if shards not in (0, "none") and not replicated else 0
        return Layout(shards, workers, loaders, embedding, replicated)

    def _text(self, layout: Layout, folder: Path) -> str:
        c, admits = self._configuration, self._configuration["admission"] == "none"
        durability = c["durability"] if exchange_of(layout.shards) == "servers" else "snapshot"
        evicts = c["eviction"] != "none" and not c["lookahead"]
        room, extra = ROOM + (0 if admits else MOST_HOLDERS * COUNTS), 64 << 20
        own = f"memory: {room}" if evicts else "dtype: float32"
        limits = [] if admits else [f"admission: {_admission(c)}"]
        if evicts:
            chosen = "policy: ttl, ttl: 12" if c["eviction"] == "ttl" else f"policy: {c['eviction']}"
            limits += [f"eviction: {{{chosen}}}", f"memory: {len(BOUND) * room + extra}"]
        placed = ", ".join(f"{name}: replicated" for name in layout.replicated)
        return f"""\
data:
  train: rows.csv
  split: {{modulo: 10, validation: [8], test: [9]}}
  batch_size: {BATCH}
labels: [clicked]
features:
{"".join(f"  {name}: {{dim: {dim}}}" + chr(10) for name, dim in DIMS.items())}\
  price: {{numeric: true, transform: [log1p, standardize]}}
model: {{name: dnn, hidden: [8], dropout: 0.2}}
dense: {{optimizer: {{name: adam, lr: 0.01}}}}
embedding:
  optimizer: {{name: adagrad, lr: 0.1}}
  dtype: {c["rows"]}
{"".join(f"  {line}" + chr(10) for line in limits)}\
tables:
{"".join(f"  {name}: {{{own}}}" + chr(10) for name in BOUND)}\
  {KEPT}: {{eviction: null, admission: null}}
  {FROZEN}: {{rows: vectors.npz, frozen: true, dtype: float32, eviction: null}}
training:
  {{mode: {c["mode"]}, staleness: {STALENESS}, lookahead: {c["lookahead"]}, epochs: {EPOCHS}, patience: null}}
{cluster(asdict(layout), placed)}\
checkpoint: {{{saved(c, EVERY, FULL_EVERY)}, keep: 2, durability: {durability}}}
"""


def _admission(c: Configuration) -> str:
    return f"{{min_count: 2, memory: {COUNTS}}}" if c["admission"] == "count" else "{probability: 0.3}"
