"""Fake batches with the right shapes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.embedding import BatchLookup, EmbeddingPlan
from satrap.embedding.lazy import Block, LazyBlocks, LazyFeatures
from satrap.schema import Schema


@dataclass(frozen=True, slots=True)
class Inputs:
    """Sizes of the network's inputs in a batch of one worker.

    Args:
        size: samples.
        rows: (unique rows, dim) of each table group.
        pooled: group -> its features with one vector per sample.
        jagged: feature with a vector per id -> (group, number of ids of each sample).
        events: feature with a number per event -> a feature of `jagged` with the same number of ids.
        features: all categorical features, in schema order.
        numeric: columns of numbers.
        labels: columns of labels.
        weights: whether samples have weights.
    """

    size: int
    rows: tuple[tuple[int, int], ...]
    pooled: Mapping[int, tuple[str, ...]]
    jagged: Mapping[str, tuple[int, npt.NDArray[np.int64]]]
    events: Mapping[str, str]
    features: tuple[str, ...]
    numeric: int
    labels: int
    weights: bool

    @classmethod
    def of(cls, schema: Schema, plan: EmbeddingPlan, ticket: BatchLookup, size: int) -> Inputs:
        """Return the sizes of `size` samples, from one batch; a short batch has too few unique rows."""
        pooled, jagged = dict[int, tuple[str, ...]](), dict[str, tuple[int, npt.NDArray[np.int64]]]()
        for group in range(len(plan.groups)):
            names = plan.features_of(group)
            pooled[group] = tuple(name for name in names if schema.categorical[name].pooling != "none")
            for name in set(names) - set(pooled[group]):
                offsets = ticket.batch.ids[name].offsets
                counts = np.ones(size, np.int64) if offsets is None else np.diff(offsets)
                jagged[name] = group, np.resize(counts, size)  # repeat the samples' counts
        return cls(
            size,
            tuple((r.rows, group.dim) for r, group in zip(ticket.requests, plan.groups, strict=True)),
            {group: names for group, names in pooled.items() if names},
            jagged,
            {name: group.ids[0] for group in schema.sequences.values() for name in group.numbers},
            tuple(schema.categorical),
            schema.numeric_width,
            len(schema.labels),
            schema.weight is not None,
        )

    @property
    def row_bytes(self) -> int:
        """Bytes of the rows of a batch; their gradients take the same."""
        return sum(count * dim * 4 for count, dim in self.rows)

    def leaves(self) -> list[Tensor]:
        """Return tensors that stand for the looked-up rows."""
        return [torch.empty(shape, requires_grad=True) for shape in self.rows]

    def batch(self, leaves: Sequence[Tensor], size: int | None = None) -> EmbeddedBatch:
        """Return the network's input for `size` samples, by default all; features are created when used."""
        count = self.size if size is None else size
        numeric = torch.empty(count, self.numeric)
        blocks = LazyBlocks(partial(self._blocks, leaves, count))
        whole = len(self.pooled) == 1 and not self.jagged
        return EmbeddedBatch(
            size=count,
            embeddings=LazyFeatures(self.features, blocks, partial(self._jagged, leaves, count)),
            numeric=numeric,
            blocks=blocks,
            labels=torch.zeros(count, self.labels),
            weights=torch.ones(count) if self.weights else None,
            beside=partial(self._beside, leaves, count) if whole else None,
            events={
                name: self._ragged(of, count, lambda rows: torch.empty(rows, 1))
                for name, of in self.events.items()
            },
        )

    def parts(self, leaves: Sequence[Tensor], count: int) -> FakeParts:
        """Return `count` microbatches."""
        return FakeParts(self, leaves, count)

    def _blocks(self, leaves: Sequence[Tensor], size: int) -> list[Block]:
        return [
            (names, _pooled(leaves[group], (size, len(names), self.rows[group][1])))
            for group, names in self.pooled.items()
        ]

    def _jagged(self, leaves: Sequence[Tensor], size: int) -> dict[str, JaggedRows]:
        def made(group: int, rows: int) -> Tensor:
            return _pooled(leaves[group], (rows, self.rows[group][1]))

        return {
            name: self._ragged(name, size, partial(made, group)) for name, (group, _) in self.jagged.items()
        }

    def _ragged(self, name: str, size: int, make: Callable[[int], Tensor]) -> JaggedRows:
        bounds = np.append(0, np.cumsum(self.jagged[name][1][:size]))
        return JaggedRows(make(int(bounds[-1])), torch.zeros(size + 1, dtype=torch.int64), bounds)

    def _beside(self, leaves: Sequence[Tensor], size: int) -> Tensor:
        [(group, names)] = self.pooled.items()
        return _pooled(leaves[group], (size, len(names) * self.rows[group][1] + self.numeric))


class FakeParts:
    """The microbatches of a fake batch, see `satrap.train.step.split_batch.MicroBatches`."""

    def __init__(self, inputs: Inputs, leaves: Sequence[Tensor], count: int) -> None:
        self.inputs, self.rows = inputs, leaves
        self.sizes = [inputs.size * (n + 1) // count - inputs.size * n // count for n in range(count)]
        self.shares = [1 / count] * count

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, number: int) -> EmbeddedBatch:
        return self.inputs.batch(self.rows, max(1, self.sizes[number]))


class _Pooling(torch.autograd.Function):
    """Maps rows to a tensor of some shape, and its gradient to the gradient of the rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        ctx.rows = rows.shape
        return rows.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_empty(ctx.rows), None


def _pooled(rows: Tensor, shape: tuple[int, ...]) -> Tensor:
    return _Pooling.apply(rows, shape)  # type: ignore[no-any-return,no-untyped-call]
