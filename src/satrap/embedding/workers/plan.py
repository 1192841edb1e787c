"""Requests of a worker to its embedding worker, and the embeddings from its replies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from satrap.batch import Batch
from satrap.embedding.lazy import Block
from satrap.embedding.module import Embeddings
from satrap.embedding.plan import BatchLookup, EmbeddingPlan
from satrap.exchange import LookupRequest


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
    """Requests pooled tensors: one per table group, then one per feature that is not pooled."""

    def ticket(self, batch: Batch) -> BatchLookup:
        """Return the requests of a batch; its ids are not read."""
        share = UniqueRatio()
        dims = {name: group.dim for i, group in enumerate(self.groups) for name in self.features_of(i)}
        pooled = [(batch.size, len(names), self.groups[i].dim) for i, names in self.pooled]
        jagged = [(len(batch.ids[name].values), dims[name]) for name in self.jagged]
        requests = [PooledRequest(-1, _NO_IDS, _NO_SPLITS, s, batch, share) for s in [*pooled, *jagged]]
        return PooledBatchLookup(batch, requests, (), {}, found=share)

    def distinct(self, ticket: BatchLookup) -> Sequence[LookupRequest]:
        """Return the requests that the embedding worker derives from a ticket."""
        return super().ticket(ticket.batch).requests


class PooledEmbeddings(Embeddings):
    """Builds `EmbeddedBatch` objects from the tensors that a `PooledPlan` requests."""

    def __init__(self, plan: PooledPlan, device: torch.device) -> None:
        super().__init__(plan, device)
        self.whole = False
        # only the embedding worker knows which tables are frozen
        self._learns = [True] * (len(plan.pooled) + len(plan.jagged))

    def blocks(self, ticket: BatchLookup, rows: Sequence[Tensor]) -> list[Block]:
        """Return the tensors of the table groups, which arrive pooled."""
        return [(names, rows[i]) for i, (_, names) in enumerate(self._plan.pooled)]

    def unpooled(self, ticket: BatchLookup, name: str, rows: Sequence[Tensor]) -> Tensor:
        """Return the tensor of a feature that is not pooled."""
        return rows[len(self._plan.pooled) + self._plan.jagged.index(name)]


_NO_IDS: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
_NO_SPLITS: npt.NDArray[np.int64] = np.zeros(1, np.int64)
