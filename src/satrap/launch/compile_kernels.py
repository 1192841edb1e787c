"""Compiles kernels ahead of time, so that no run and no server request waits for a compilation."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from satrap import optim
from satrap.config import load
from satrap.errors import ConfigError
from satrap.exchange.resharding.reshard_shard import rehearse
from satrap.exchange.servers import ShardMap
from satrap.exchange.servers.config import ShardConfig
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.wire.formats import CODES
from satrap.launch.training import train
from satrap.runtime.numba_cache import processor
from satrap.schema import Table
from satrap.store import Admission, Eviction, StoreConfig
from satrap.store.kernels.jit import CACHE_FOLDER, WIDTHS

_ROWS = 2_000
_RECIPE = """
data: {{train: {file}, split: {{modulo: 10, validation: [8], test: [9]}}, batch_size: 100, shuffle: true}}
labels: [clicked]
features:
  user: {{dim: 16}}
  item: {{dim: 8}}
  price: {{numeric: true, transform: [log1p, standardize]}}
model: {{name: dnn, hidden: [8]}}
embedding: {{optimizer: {{name: adagrad, lr: 0.1}}}}
dense: {{optimizer: {{name: adam, lr: 0.01}}}}
training: {{mode: sync, steps: 4}}
cluster: {cluster}
"""
_CLUSTERS = ("{}", "{exchange: servers, shards: 1}", "{exchange: collective, workers: 2}")


@dataclass(frozen=True, slots=True)
class Compiled:
    """The number of newly compiled functions, and of all cached functions."""

    folder: str
    processor: str
    new: int
    kept: int
    seconds: float


def compile_ahead() -> Compiled:
    """Compile the functions of shards, workers and readers for each optimizer, row width and wire format.

    It runs them with a few rows, so only functions in use are compiled. Not included are short row formats,
    tiers, and combinations of admission and eviction: the first run that needs them compiles them.

    Raises:
        ConfigError: machine code cannot be cached.
    """
    if CACHE_FOLDER is None:
        raise ConfigError(
            "compiled code cannot be cached",
            why="every process would compile it again",
            fix="set NUMBA_CACHE_DIR to a writable folder",
        )
    folder, start = Path(CACHE_FOLDER).parent, time.monotonic()
    before = _count(folder)
    for hello in _hellos():
        rehearse(Service(), hello)
    with tempfile.TemporaryDirectory() as place:
        for file in _data(Path(place)):
            for number, cluster in enumerate(_CLUSTERS):
                recipe = file.with_name(f"{file.name}.{number}.yaml")
                recipe.write_text(_RECIPE.format(file=file.name, cluster=cluster))
                train(load(recipe), str(recipe.with_suffix("")), notice=lambda _: None)
    cached = _count(folder)
    return Compiled(str(folder), processor(), cached - before, cached, time.monotonic() - start)


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.glob("*/**/*.nbc"))


def _hellos() -> Iterator[dict[str, object]]:
    """Yield workers' first messages to shards, with tables of every optimizer and width."""
    kinds = [optim.from_dict({"name": name, "lr": 0.1}) for name in optim.names()]
    for optimizer in [*kinds, optim.SGD(lr=0.1, momentum=0.9)]:
        yield _hello(optimizer, (8, *WIDTHS), StoreConfig(), "float16", "bfloat16")
    for wire in CODES:
        yield _hello(kinds[0], (8,), StoreConfig(), wire, wire)
    few = StoreConfig(memory=3_000_000, eviction=Eviction("lru"), admission=Admission(2, 1.0, 4096))
    yield _hello(kinds[0], (8,), few, "float16", "bfloat16")


def _hello(
    optimizer: optim.Optimizer, dims: Sequence[int], store: StoreConfig, forward: str, backward: str
) -> dict[str, object]:
    tables = [Table(f"of dim {dim}", dim=dim, optimizer=optimizer) for dim in dims]
    config = ShardConfig(tables, store, 0, ShardMap(2))
    worker = {"forward": forward, "rehearsal": backward, "mode": "sync", "rank": 0, "world": 2}
    return config.to_dict() | worker


def _data(folder: Path) -> Iterator[Path]:
    """Yield files of the same rows in two formats."""
    rng = np.random.default_rng(1)
    rows = pa.table(
        {
            "user": rng.integers(0, 100, _ROWS),
            "item": [f"item {i}" for i in rng.integers(0, 50, _ROWS)],
            "price": rng.random(_ROWS),
            "clicked": rng.integers(0, 2, _ROWS),
        }
    )
    csv.write_csv(rows, folder / "rows.csv")
    parquet.write_table(rows, folder / "rows.parquet")
    yield folder / "rows.csv"
    yield folder / "rows.parquet"
