"""Requests of whole batches to a store on a device, and the network's input from its responses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from satrap.batch import Batch
from satrap.embedding.lazy import Block
from satrap.embedding.module import Embeddings
from satrap.embedding.plan import BatchLookup, EmbeddingPlan
from satrap.embedding.workers.plan import PooledBatchLookup
from satrap.exchange import TableGroup
from satrap.exchange.lookup import BatchRequest
from satrap.schema import Schema
from satrap.store.arrays import FeatureIds


class DevicePlan(EmbeddingPlan):
    """Requests all ids of a batch as they come, one `BatchRequest` per table group."""

    of_batches = True

    def __init__(self, schema: Schema, groups: Sequence[TableGroup]) -> None:
        super().__init__(schema, groups)
        pooled = dict(self.pooled)
        self.unpooled = [
            [name for name in self.jagged if name in self.features_of(group)] for group in range(len(groups))
        ]
        # the largest values are chosen at the lookup, and a snapshot does not save which
        self.replayable = all(f.pooling != "max" for f in schema.categorical.values())
        self._order = [[*pooled.get(group, ()), *names] for group, names in enumerate(self.unpooled)]

    def ticket(self, batch: Batch) -> BatchLookup:
        """Return the requests of a batch; its duplicate ids stay."""
        kinds, requests = self.schema.categorical, []
        for number, group in enumerate(self.groups):
            ids, spans, splits = self.joined(number, batch.ids)
            features = []
            for name in self._order[number]:
                (_, start, stop), jagged = spans[name], batch.ids[name]
                features.append(FeatureIds(start, stop, jagged.offsets, jagged.weights, kinds[name].pooling))
            requests.append(BatchRequest(group.index, ids, splits, size=batch.size, features=features))
        return PooledBatchLookup(batch, requests, (), {})


class DeviceEmbeddings(Embeddings):
    """Builds `EmbeddedBatch` objects from the responses to the requests of a `DevicePlan`.

    The rows of a table group are one leaf: the pooled vectors, sample by sample, which are the group's block,
    then the rows of features that are not pooled.
    """

    as_tensors = True

    def __init__(self, plan: DevicePlan, device: torch.device) -> None:
        super().__init__(plan, device)
        self.whole, self._requested = False, plan

    def blocks(self, ticket: BatchLookup, rows: Sequence[Tensor]) -> list[Block]:
        """Return the pooled features of each table group, float32[size, features, dim]."""
        size = ticket.batch.size
        return [
            (names, rows[group][: size * len(names)].view(size, len(names), rows[group].shape[1]))
            for group, names in self._requested.pooled
        ]

    def unpooled(self, ticket: BatchLookup, name: str, rows: Sequence[Tensor]) -> Tensor:
        """Return the rows of a feature that is not pooled, times its weights."""
        batch, pooled = ticket.batch, dict(self._requested.pooled)
        for group, names in enumerate(self._requested.unpooled):
            at = batch.size * len(pooled.get(group, ()))
            for other in names:
                jagged, first = batch.ids[other], at
                at += len(jagged.values)
                if other == name:
                    values = rows[group][first:at]
                    if jagged.weights is not None:
                        values = values * torch.from_numpy(jagged.weights).to(self.device).unsqueeze(1)
                    return values
        raise AssertionError(name)
