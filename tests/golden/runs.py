"""Small seeded runs, one for each way to train, and what is recorded of them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from satrap import launch
from satrap.checkpoint import Checkpoint, read_checkpoint
from satrap.config import load
from satrap.train import Observer, Progress
from tests.golden.bytes import store, wire
from tests.golden.record import Array, Record
from tests.launch.runs import frame, make_recipe
from tests.support.interruptions import KilledError

RECIPE = """\
data:
  train: rows.csv
  split: {modulo: 10, validation: [8], test: [9]}
  batch_size: 50
labels: [clicked]
features:
  user:  {dim: 4}
  item:  {dim: 4}
  tags:  {dim: 4, multi: true, separator: '|'}
  price: {numeric: true, transform: [log1p, standardize]}
model: {name: dnn, hidden: [16, 8], dropout: 0.1}
embedding: {optimizer: {name: adagrad, lr: 0.1}}
dense: {optimizer: {name: adam, lr: 0.01}}
training: {mode: sync, epochs: 4, patience: null}
"""
"""Users with many ids, items with few, lists of tags, and a number."""

SERVERS = ("cluster.exchange=servers", "cluster.shards=2")
COLLECTIVE = ("cluster.exchange=collective", "cluster.workers=2")
HYBRID = ("training.mode=hybrid", "training.staleness=3", "training.staleness_warmup=5")
FTRL = ("embedding.optimizer={name: ftrl, lr: 0.1}",)
DLRM = "model={name: dlrm, bottom: [16], hidden: [16]}"


@dataclass(frozen=True)
class Run:
    """A recipe's settings; more of them in its first two passes, and when it goes on after these."""

    settings: tuple[str, ...]
    first: tuple[str, ...] = ()
    then: tuple[str, ...] = ()


RUNS: Mapping[str, Run] = {
    "local_sync": Run(("model={name: dcnv2, hidden: [16]}", "embedding.optimizer={name: adam, lr: 0.01}")),
    "local_hybrid": Run((*HYBRID, "model={name: deepfm, hidden: [16]}", "embedding.dtype=bfloat16")),
    "servers_sync": Run((*SERVERS, "cluster.workers=2", "cluster.loaders=1")),
    "servers_hybrid": Run((*SERVERS, *HYBRID, DLRM, "embedding.optimizer={name: rowwise_adagrad, lr: 0.1}")),
    "collective_sync": Run((*COLLECTIVE, "cluster.placements={user: row_wise, item: table_wise}", DLRM)),
    "collective_hybrid": Run((*COLLECTIVE, *HYBRID, "cluster.placement=row_wise")),
    "lookahead": Run((*COLLECTIVE, "training.lookahead=2", "training.clip_norm=0.5")),
    "embedding_workers": Run((*SERVERS, "cluster.workers=2", "cluster.embedding_workers=1")),
    "replicas": Run((*SERVERS, "cluster.workers=2", "cluster.placements={item: replicated}")),
    "sharded_mesh": Run((*COLLECTIVE[:1], "dense.mesh={data: 2, tensor: 2}", "dense.sharded=true")),
    "stages": Run((*SERVERS, "dense.mesh={pipeline: 2}", "dense.microbatches=3", "model.dropout=0")),
    "tier": Run(
        (
            *(f"features.{name}.dim=32" for name in ("user", "item", "tags")),
            "embedding.memory=242000",  # with a large index; room for some 20 of 190 rows
            "embedding.optimizer={name: adam, lr: 0.01}",
            "embedding.eviction={policy: lru}",
            "embedding.admission={min_count: 2, memory: 4096}",
            "embedding.tier={path: FOLDER, size: 100000}",
            "checkpoint={every_steps: 20, delta_every_steps: 5}",
        )
    ),
    "resume": Run(
        (*SERVERS[:1], *FTRL, "checkpoint.every_steps=7", "cluster.workers=2"),
        first=("cluster.shards=2",),
        then=("cluster.shards=3",),
    ),
}


class _End(Observer):
    def evaluated(self, metrics: Mapping[str, float], progress: Progress) -> None:
        if progress.epoch == 1:
            raise KilledError


NAMES = ("store", "wire", *RUNS)


def run(name: str, folder: Path) -> Record:
    """Do what a golden file is named after, in an empty folder, and return what is to be in the file."""
    others = {"store": store, "wire": wire}
    return others[name]() if name in others else _trained(RUNS[name], folder)


def _trained(run: Run, folder: Path) -> Record:
    rows, random = frame(1001, sorts=4), np.random.default_rng(3)
    rows["tags"] = [
        "|".join(map(str, random.integers(0, 50, random.integers(0, 6)))) for _ in range(len(rows))
    ]
    path = make_recipe(folder, RECIPE, rows)
    settings = [one.replace("FOLDER", str(folder)) for one in run.settings]
    output = str(folder / "run")
    if run.first:
        with suppress(KilledError):
            launch.train(load(path, [*settings, *run.first]), output, observers=[_End()])
    outcome = launch.train(load(path, [*settings, *run.then]), output, resume=bool(run.first))
    found = Record()
    for number, metrics in enumerate(outcome.result.history, 1):
        found.numbers(f"validation {number}", metrics)
    found.numbers("test", outcome.test)
    _contents(found, read_checkpoint(str(folder / "run" / "model")))
    return found


def _contents(found: Record, checkpoint: Checkpoint) -> None:
    for name, tensor in sorted(checkpoint.model.items()):
        found.array(name, tensor.numpy())
    for index, state in sorted(checkpoint.optimizer.get("state", {}).items()):
        for key, value in sorted(state.items()):
            found.array(f"optimizer {index} {key}", value.numpy())
    chunks: dict[str, list[list[Array]]] = {}
    for table, chunk in checkpoint.chunks:
        chunks.setdefault(table, []).append([chunk.ids, chunk.weights, chunk.state])
    for table, parts in sorted(chunks.items()):
        ids, weights, state = map(np.concatenate, zip(*parts, strict=True))
        order = np.argsort(ids)
        found.exact(f"ids of {table}", ids[order])
        found.array(f"rows of {table}", weights[order])
        found.array(f"state of {table}", state[order])
