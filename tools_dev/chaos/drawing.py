"""Configurations of runs, drawn so that every legal pair of settings occurs, and what each promises."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from tests.launch.runs import make_recipe

from satrap.store.memory.directory import OVERHEAD, plain_budget

Value = str | int
Pair = tuple[tuple[str, Value], tuple[str, Value]]
Configuration = Mapping[str, Value]
"""Name of a dimension -> its value."""

DIMENSIONS: dict[str, tuple[Value, ...]] = {
    "mode": ("sync", "hybrid", "async"),
    "durability": ("snapshot", "journal"),
    "deltas": ("no", "yes"),
    "tier": ("no", "yes"),
    "eviction": ("none", "lru", "lfu", "ttl"),
    "admission": ("none", "count", "probability"),
    "rows": ("float32", "bfloat16", "float16"),
    "loaders": (0, 1, 2),
    "embedding_workers": (0, 1, 2),
    "shards": (0, 1, 2, 3, "none"),
    "workers": (1, 2),
    "lookahead": (0, 2),
}
"""0 shards: one process that holds the rows itself. No shards: the workers hold the rows together."""

_ALONE = "cannot be combined with cluster.exchange: collective"
_EARLY = "cannot be combined with training.lookahead"

REFUSED: dict[tuple[tuple[str, Value], tuple[str, Value]], str] = {
    (("tier", "yes"), ("eviction", "none")): "embedding.tier needs embedding.memory and an eviction policy",
    (("tier", "yes"), ("eviction", "ttl")): "embedding.tier needs embedding.memory and an eviction policy",
    (
        ("durability", "journal"),
        ("shards", 0),
    ): "checkpoint.durability is journal, but cluster.exchange is local",
    (("shards", 0), ("workers", 2)): "cluster.workers is 2, but cluster.exchange is local",
    (("loaders", 1), ("shards", 0)): "cluster.loaders is 1, but cluster.exchange is local",
    (("loaders", 2), ("shards", 0)): "cluster.loaders is 2, but cluster.exchange is local",
    (
        ("embedding_workers", 1),
        ("shards", 0),
    ): "cluster.embedding_workers is 1, but cluster.exchange is local",
    (
        ("embedding_workers", 2),
        ("shards", 0),
    ): "cluster.embedding_workers is 2, but cluster.exchange is local",
    (("loaders", 2), ("workers", 1)): "cluster.loaders is 2, but cluster.workers is 1",
    (("embedding_workers", 2), ("workers", 1)): "cluster.embedding_workers is 2, but cluster.workers is 1",
    (("mode", "async"), ("shards", "none")): f"training.mode {_ALONE}",
    (("durability", "journal"), ("shards", "none")): f"checkpoint.durability {_ALONE}",
    (("embedding_workers", 1), ("shards", "none")): f"cluster.embedding_workers {_ALONE}",
    (("embedding_workers", 2), ("shards", "none")): f"cluster.embedding_workers {_ALONE}",
    (("mode", "hybrid"), ("lookahead", 2)): f"training.mode {_EARLY}",
    (("mode", "async"), ("lookahead", 2)): f"training.mode {_EARLY}",
    (("tier", "yes"), ("lookahead", 2)): "embedding.tier needs embedding.memory and an eviction policy",
    (("eviction", "lru"), ("lookahead", 2)): f"embedding.eviction {_EARLY}",
    (("eviction", "lfu"), ("lookahead", 2)): f"embedding.eviction {_EARLY}",
    (("eviction", "ttl"), ("lookahead", 2)): f"embedding.eviction {_EARLY}",
    (("admission", "count"), ("lookahead", 2)): f"embedding.admission {_EARLY}",
    (("admission", "probability"), ("lookahead", 2)): f"embedding.admission {_EARLY}",
    (("embedding_workers", 1), ("lookahead", 2)): f"cluster.embedding_workers {_EARLY}",
    (("embedding_workers", 2), ("lookahead", 2)): f"cluster.embedding_workers {_EARLY}",
    (("workers", 2), ("lookahead", 2)): f"cluster.workers {_EARLY}",
    (("loaders", 2), ("lookahead", 2)): "cluster.loaders is 2, but cluster.workers is 1",
}
"""Pairs that a recipe may not have -> what its error says."""

ELSEWHERE: frozenset[tuple[tuple[str, Value], tuple[str, Value]]] = frozenset(
    {(("shards", "none"), ("lookahead", 2))}
)
"""Legal pairs whose kills are tried by `tests/train/test_collective.py` alone."""

STALENESS = 3
BATCH = 20
ROWS, USERS, ITEMS = 600, 400, 20
TRAINED = ROWS * 8 // 10
"""Rows of a pass; the others are for validation and test."""

EPOCHS = 10
"""Passes of one worker; two workers, which take as many rows a step each, do twice as many."""

EVERY, FULL_EVERY = 8, 32
"""Steps between two snapshots, and between two full ones where there are deltas."""

LEAST_MEMORY = 102_456
"""Bytes of index and pages of a shard's smallest store; more of them hold rows."""

COUNTS = 4096
"""Bytes of a store for counts of ids that are not admitted yet; part of its memory."""

DENSE_ROW = 64 * 4 * 3 + 4 + OVERHEAD
"""Bytes that the network's table has per row in `async`, and by which it takes its share of the memory."""


def pairs(configuration: Configuration) -> Iterator[Pair]:
    """Yield all pairs of its settings, each in the order of the dimensions."""
    chosen = [(name, configuration[name]) for name in DIMENSIONS if name in configuration]
    yield from itertools.combinations(chosen, 2)


def legal_pairs() -> set[Pair]:
    every: set[Pair] = set()
    for one, other in itertools.combinations(DIMENSIONS, 2):
        every |= {((one, a), (other, b)) for a in DIMENSIONS[one] for b in DIMENSIONS[other]}
    return every - REFUSED.keys() - ELSEWHERE


def draw(seed: int) -> list[Configuration]:
    """Return configurations in which every legal pair occurs: greedily, each with many new pairs."""
    source = random.Random(seed)
    missing, drawn = legal_pairs(), []
    while missing:
        drawn.append(max((_candidate(source, missing) for _ in range(30)), key=lambda c: _new(c, missing)))
        missing -= set(pairs(drawn[-1]))
    return drawn


def _candidate(source: random.Random, missing: set[Pair]) -> Configuration:
    """Begin with a pair that is missing; choose the value of each other dimension that adds most new ones."""
    chosen: dict[str, Value] = dict(source.choice(sorted(missing, key=repr)))
    for name in source.sample(list(DIMENSIONS), len(DIMENSIONS)):
        if name not in chosen:
            values = source.sample(DIMENSIONS[name], len(DIMENSIONS[name]))
            options = [{**chosen, name: value} for value in values]
            allowed = [option for option in options if not (REFUSED.keys() | ELSEWHERE) & set(pairs(option))]
            chosen = max(allowed, key=lambda option: _new(option, missing))
    return {name: chosen[name] for name in DIMENSIONS}


def _new(configuration: Configuration, missing: set[Pair]) -> int:
    return len(missing & set(pairs(configuration)))


def is_exact(configuration: Configuration) -> bool:
    """Whether `docs/guarantees.md` promises that a killed run ends with the bytes of an undisturbed one."""
    c = configuration
    if c["mode"] == "sync":
        ordered = c["eviction"] != "none" or c["admission"] != "none"
        return not (c["workers"] == 2 and c["embedding_workers"] and ordered)
    return c["mode"] == "hybrid" and c["workers"] == 1


def forgets(configuration: Configuration) -> bool:
    """Whether rows are evicted for good."""
    return configuration["eviction"] != "none" and configuration["tier"] == "no"


def frame(seed: int = 0) -> pd.DataFrame:
    """Clicks that depend mostly on the item; users come once or twice, so that there are rows to evict."""
    source = np.random.default_rng(seed)
    users, items = source.integers(0, USERS, ROWS), source.integers(0, ITEMS, ROWS)
    chance = 1 / (1 + np.exp(-4 * np.sin(items) - np.cos(users)))
    return pd.DataFrame(
        {
            "user": [f"u{user}" for user in users],
            "item": items,
            "price": source.exponential(10, ROWS).round(2),
            "clicked": (source.random(ROWS) < chance).astype(int),
        }
    )


def distinct_ids() -> int:
    """Rows of a store that keeps all it was ever asked for: distinct users and items of the training rows."""
    trained = frame().iloc[[i for i in range(ROWS) if i % 10 < 8]]
    return int(trained["user"].nunique() + trained["item"].nunique())


def holders(configuration: Configuration) -> int:
    """Return how many processes hold rows."""
    shards = configuration["shards"]
    return int(configuration["workers"]) if shards == "none" else max(int(shards), 1)


def epochs(configuration: Configuration) -> int:
    return EPOCHS * int(configuration["workers"])


def exchange_of(shards: object) -> str:
    """Return the exchange of so many shards; "none": workers hold the rows, 0: one process does all."""
    return {0: "local", "none": "collective"}.get(shards, "servers")


def saved(configuration: Configuration, every: int, full_every: int) -> str:
    """Return when snapshots are taken, every so many steps: all full, or some of them."""
    if configuration["deltas"] == "yes":
        return f"every_steps: {full_every}, delta_every_steps: {every}"
    return f"every_steps: {every}"


def cluster(processes: Mapping[str, Any], placements: str = "") -> str:
    """Return the section `cluster` of a recipe, for so many processes of each role."""
    exchange = exchange_of(processes["shards"])
    return f"""\
cluster:
  exchange: {exchange}
  shards: {processes["shards"] if exchange == "servers" else 1}
  workers: {processes["workers"]}
  loaders: {processes["loaders"]}
  embedding_workers: {processes["embedding_workers"]}
  placement: row_wise
  placements: {{{placements}}}
  wire: {{forward: float32, backward: float32}}
  restarts: 1000
  deadline: 120
"""


def write_recipe(
    folder: Path, configuration: Configuration, *, every: int | None = None, keep: int = 2
) -> Path:
    """Write rows and recipe; `every`: take full snapshots at such steps, whatever the configuration says."""
    c = configuration
    checkpoint = saved(c, EVERY, FULL_EVERY) if every is None else f"every_steps: {every}"
    length = f"epochs: {epochs(c)}, patience: null, plateau: 0.9"
    text = f"""\
data:
  train: rows.csv
  split: {{modulo: 10, validation: [8], test: [9]}}
  batch_size: {BATCH}
labels: [clicked]
features:
  user:  {{dim: 4}}
  item:  {{dim: 4}}
  price: {{numeric: true, transform: [log1p, standardize]}}
model: {{name: dnn, hidden: [8], dropout: 0.2}}
dense: {{optimizer: {{name: adam, lr: 0.01}}}}
embedding:
  optimizer: {{name: adagrad, lr: 0.1}}
  dtype: {c["rows"]}
{_bounds(c, folder)}\
training: {{mode: {c["mode"]}, staleness: {STALENESS}, lookahead: {c["lookahead"]}, {length}}}
{cluster(c)}checkpoint: {{{checkpoint}, keep: {keep}, durability: {c["durability"]}}}
"""
    return make_recipe(folder, text, frame())


def _bounds(c: Configuration, folder: Path) -> str:
    """Return the lines about which rows there are; memory is for about half of them."""
    stores = holders(c)
    kept, record = distinct_ids() // stores, 32 if c["rows"] == "float32" else 24
    memory, lines = LEAST_MEMORY + kept // 2 * 64, []
    scale = 1 + DENSE_ROW / (2 * (record + OVERHEAD)) if c["mode"] == "async" else 1.0
    if c["admission"] != "none":
        chosen = f"min_count: 2, memory: {COUNTS}" if c["admission"] == "count" else "probability: 0.3"
        memory += COUNTS if c["admission"] == "count" else 0
        lines.append(f"admission: {{{chosen}}}")
    if c["tier"] == "yes":
        slots = 2 * kept  # shards have not just as many rows each
        memory += plain_budget(slots, 2)[1]
        folder.mkdir(parents=True, exist_ok=True)
        lines.append(f"tier: {{path: {folder}, size: {round(scale * stores * slots * record)}}}")
    if c["eviction"] == "ttl":
        lines.append("eviction: {policy: ttl, ttl: 12}")
    elif c["eviction"] != "none":
        lines += [f"eviction: {{policy: {c['eviction']}}}", f"memory: {round(scale * stores * memory)}"]
    return "".join(f"  {line}\n" for line in lines)
