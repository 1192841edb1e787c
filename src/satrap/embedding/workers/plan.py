"""Requests of a worker to its embedding worker, and the embeddings from its replies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch, EmbeddedBatch, exact
from satrap.embedding.lazy import LazyBlocks, LazyFeatures
from satrap.embedding.module import Embeddings, Ragged
from satrap.embedding.plan import BatchLookup, EmbeddingPlan
from satrap.exchange import LookupRequest, TableGroup
from satrap.schema import Schema


@dataclass(slots=True)
class UniqueRatio:
    """Unique ids / ids of a batch; NaN before the embedding worker's reply."""

    ratio: float = math.nan


@dataclass(frozen=True, slots=True)
class PooledRequest(LookupRequest):
    """One tensor of the pooled batch. `group`, `ids` and `splits` are unused: the batch has the ids.

    Args:
        shape: shape of the tensor: [size, features, dim], or [ids, dim] of a feature that is not pooled.
        batch: the samples, shared by all requests of one lookup.
        found: receives the share of unique ids; shared by all requests of one lookup.
    """

    shape: tuple[int, ...] = ()
    batch: Batch | None = None
    found: UniqueRatio = field(default_factory=UniqueRatio)


@dataclass(frozen=True, slots=True)
class PooledBatchLookup(BatchLookup):
    """A batch whose duplicate ids are removed by an embedding worker."""

    found: UniqueRatio = field(default_factory=UniqueRatio)

    @property
    def distinct_ratio(self) -> float:
        """Unique ids / ids, over all groups; NaN before the lookup's reply."""
        return self.found.ratio


class PooledPlan(EmbeddingPlan):
    """Requests pooled tensors: one per table group, then one per feature that is not pooled.

    Args:
        schema: the features.
        groups: the exchange's table groups, in order.
    """

    def __init__(self, schema: Schema, groups: Sequence[TableGroup]) -> None:
        super().__init__(schema, groups)
        self._dims = {table: group.dim for group in groups for table in group.tables}
        features = schema.categorical
        self.jagged = [name for name, f in features.items() if f.pooling == "none"]
        by_group = [
            [n for n, f in features.items() if f.pooling != "none" and schema.table_of(n) in tables]
            for tables in (set(group.tables) for group in groups)
        ]
        self.pooled = [
            (group.dim, tuple(names)) for group, names in zip(groups, by_group, strict=True) if names
        ]

    def ticket(self, batch: Batch) -> BatchLookup:
        """Return the requests of a batch; its ids are not read."""
        share = UniqueRatio()
        shapes = [(batch.size, len(names), dim) for dim, names in self.pooled]
        jagged = [
            (len(batch.ids[name].values), self._dims[self.schema.table_of(name)]) for name in self.jagged
        ]
        requests = [PooledRequest(-1, _NO_IDS, _NO_SPLITS, s, batch, share) for s in [*shapes, *jagged]]
        return PooledBatchLookup(batch, requests, (), {}, found=share)

    def distinct(self, ticket: BatchLookup) -> Sequence[LookupRequest]:
        """Return the requests that the embedding worker derives from a ticket."""
        return super().ticket(ticket.batch).requests


class PooledEmbeddings(Embeddings):
    """Builds `EmbeddedBatch` objects from pooled tensors.

    Args:
        plan: the plan of the requests.
        device: the model's device.
    """

    def __init__(self, plan: PooledPlan, device: torch.device) -> None:
        super().__init__(plan, device)
        self._plan = plan
        # only the embedding worker knows which tables are frozen
        self._learns = [True] * (len(plan.pooled) + len(plan.jagged))

    def embed(self, ticket: BatchLookup, rows: Sequence[Tensor]) -> EmbeddedBatch:
        """Return the model's input.

        Args:
            ticket: the batch.
            rows: the pooled tensors, as `rows` returns them.
        """
        batch, numbers = ticket.batch, self._to_device(ticket.batch.numeric)
        blocks = [(names, rows[i]) for i, (_, names) in enumerate(self._plan.pooled)]
        ragged = Ragged(batch, self._schema, self.device)
        jagged = zip(self._plan.jagged, rows[len(blocks) :], strict=True)
        unpooled = {name: ragged.rows(name, values) for name, values in jagged}
        return EmbeddedBatch(
            size=batch.size,
            embeddings=LazyFeatures(self._order, LazyBlocks(lambda: blocks), lambda: unpooled),
            numeric=torch.zeros(batch.size, 0, device=self.device) if numbers is None else numbers,
            blocks=blocks,
            labels=self._to_device(batch.labels, np.float32),
            label_mask=self._to_device(batch.label_mask),
            weights=self._to_device(batch.weights),
            exact_labels=self._to_device(batch.labels) if exact(batch.labels) else None,
            source=batch,
            events=ragged.events(),
        )


_NO_IDS: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
_NO_SPLITS: npt.NDArray[np.int64] = np.zeros(1, np.int64)
