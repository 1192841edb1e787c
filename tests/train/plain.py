"""The oracle: the same model and schedule in plain PyTorch, with dense tables and delayed updates."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import Batch, EmbeddedBatch, Jagged
from satrap.store import StoreConfig
from satrap.train import TrainingOptions, WorkerContext

VOCABULARY = 50
"""Ids of the test data are 0 .. 49, so that a dense table of 50 rows is the whole store."""


_PARTS: dict[str, tuple[type, dict[str, str]]] = {
    "store": (StoreConfig, {"embedding_dtype": "dtype", "rows_on": "device"}),
    "training": (TrainingOptions, {}),
    "place": (WorkerContext, {}),
}


def grouped(**arguments: Any) -> dict[str, Any]:
    """Return the arguments of a trainer; those of its parts, such as `memory`, are put into them.

    Staleness is full from the first step on, since runs of tests are short.
    """
    if "training" not in arguments:
        arguments.setdefault("staleness_warmup", 0)
    for part, (kind, renamed) in _PARTS.items():
        own = {field.name: field.name for field in fields(kind)} | renamed
        own = {name: field for name, field in own.items() if name in renamed or field not in renamed.values()}
        given = {own[name]: arguments.pop(name) for name in own.keys() & arguments.keys()}
        if given:
            arguments[part] = kind(**given)
    return arguments


class Batches:
    """A data set of ready-made batches."""

    def __init__(self, batches: Sequence[Batch]) -> None:
        self.items = list(batches)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        return iter(self.items)

    def num_rows(self) -> int:
        return sum(batch.size for batch in self.items)


def make_schema(**kinds: Any) -> satrap.Schema:
    features = {
        "user": satrap.Categorical(dim=8),
        "item": satrap.Categorical(dim=8),
        "tags": satrap.Categorical(dim=8, multi=True, pooling="mean"),
        "price": satrap.Numeric(),
    }
    return satrap.Schema(labels=["clicked"], features={**features, **kinds})


def make_batches(count: int, size: int = 32, seed: int = 0) -> list[Batch]:
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        lengths = rng.integers(0, 5, size)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        made.append(
            Batch(
                size=size,
                ids={
                    "user": Jagged(_ids(rng, size)),
                    "item": Jagged(_ids(rng, size)),
                    "tags": Jagged(_ids(rng, int(offsets[-1])), offsets),
                },
                numeric=rng.standard_normal((size, 1)).astype(np.float32),
                labels=rng.integers(0, 2, (size, 1)).astype(np.float32),
            )
        )
    return made


def _ids(rng: np.random.Generator, n: int) -> np.ndarray:
    # A skewed draw: every batch holds duplicates, within and across samples.
    return (rng.random(n) ** 2 * VOCABULARY).astype(np.uint64)


class Tower(nn.Module):
    """A small network on the pooled embeddings."""

    def __init__(self, inputs: int = 25, outputs: int = 1) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, outputs))

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        return self.net(batch.flat())


class PlainModel:
    """Dense `nn.EmbeddingBag` tables; lookups see updates `staleness` steps late.

    With `warmup`, staleness grows by one each time so many steps are done.
    """

    def __init__(
        self, tower: Tower, tables: dict[str, np.ndarray], staleness: int, loss: Any = None, warmup: int = 0
    ) -> None:
        self.tower, self.staleness, self.warmup = tower, staleness, warmup
        self.loss = loss or nn.functional.binary_cross_entropy_with_logits
        self.bags = {
            name: nn.EmbeddingBag.from_pretrained(torch.tensor(rows), freeze=False, mode="mean", sparse=False)
            for name, rows in tables.items()
        }

    def train(self, batches: Sequence[Batch], optimizers: dict[str, Any], dense: Any) -> None:
        # The rows a lookup returns are those of `staleness` updates ago; the gradient is taken there and
        # applied to the newest rows.
        seen = {name: deque([bag.weight.detach().clone()]) for name, bag in self.bags.items()}
        for step, batch in enumerate(batches, 1):
            stale = {name: versions[0].clone().requires_grad_() for name, versions in seen.items()}
            loss = self._loss(batch, stale)
            dense.zero_grad()
            loss.backward()
            dense.step()
            for name, bag in self.bags.items():
                optimizers[name](bag.weight, stale[name].grad, _touched(batch, name))
                seen[name].append(bag.weight.detach().clone())
                now = min(self.staleness, step // self.warmup) if self.warmup else self.staleness
                while len(seen[name]) > now + 1:
                    seen[name].popleft()

    def _loss(self, batch: Batch, tables: dict[str, Tensor]) -> Tensor:
        loss: Tensor = self.loss(self.outputs(batch, tables), torch.tensor(batch.labels))
        return loss

    def outputs(self, batch: Batch, tables: dict[str, Tensor] | None = None) -> Tensor:
        """Return what the network gives, with the newest rows by default."""
        tables = tables or {name: bag.weight for name, bag in self.bags.items()}
        pooled = []
        for name, table in tables.items():
            jagged = batch.ids[name]
            offsets = np.arange(batch.size + 1) if jagged.offsets is None else jagged.offsets
            pooled.append(
                nn.functional.embedding_bag(
                    torch.tensor(jagged.values.astype(np.int64)),
                    table,
                    torch.tensor(offsets),
                    mode="mean",
                    include_last_offset=True,
                )
            )
        found: Tensor = self.tower.net(torch.cat([*pooled, torch.tensor(batch.numeric)], dim=1))
        return found


def _touched(batch: Batch, name: str) -> Tensor:
    return torch.tensor(np.unique(batch.ids[name].values).astype(np.int64))


def lazy(make: Any) -> Any:
    """A `torch.optim` optimizer with a parameter for each row; it leaves rows alone that are not touched."""
    rows: list[Tensor] = []
    optimizers: list[Any] = []

    def step(weight: Tensor, gradient: Tensor, touched: Tensor) -> None:
        if not rows:
            rows.extend(row.clone().requires_grad_() for row in weight.detach())
            optimizers.append(make(rows))
        indices = touched.tolist()
        for index in indices:
            rows[index].grad = gradient[index].clone()
        optimizers[0].step()
        with torch.no_grad():
            for index in indices:
                weight[index], rows[index].grad = rows[index], None

    return step


def rowwise_adagrad(lr: float, eps: float = 1e-10) -> Any:
    """Row-wise Adagrad by its definition: one accumulator of mean squared gradients per row."""
    accumulators: dict[int, float] = {}

    def step(weight: Tensor, gradient: Tensor, touched: Tensor) -> None:
        with torch.no_grad():
            for index in touched.tolist():
                g = gradient[index]
                accumulators[index] = accumulators.get(index, 0.0) + float((g.double() ** 2).mean())
                weight[index] -= lr * g / (accumulators[index] ** 0.5 + eps)

    return step
