"""Parts of a batch are what slicing plain tensors gives, and their gradients reach the rows."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import satrap
from satrap.batch import Batch, EmbeddedBatch, Jagged, JaggedRows
from satrap.embedding import embeddings_of, tables_of
from satrap.exchange import LocalExchange
from satrap.store import StoreConfig
from satrap.store.shard import open_store
from satrap.train.step.loss import known_weight
from satrap.train.step.microbatches import MicroBatches
from tests.train.plain import make_batches, make_schema


def embedded(size: int) -> tuple[EmbeddedBatch, list[Tensor]]:
    """A batch of features pooled and not, and its rows."""
    tags = satrap.Categorical(dim=8, multi=True, pooling="none", sequence="past")
    schema = make_schema(tags=tags, paid=satrap.Numeric(sequence="past"))
    store = StoreConfig(initial_scale=0.5)
    exchange = LocalExchange(open_store(store, tables_of(schema, satrap.optim.SGD(lr=1.0), None, store)))
    plan, embeddings = embeddings_of(exchange, schema, exchange.groups, torch.device("cpu"))
    [batch] = make_batches(1, size=size)
    batch.weights = np.arange(size, dtype=np.float32)
    offsets = batch.ids["tags"].offsets
    assert offsets is not None
    batch.events = {"paid": Jagged(np.arange(offsets[-1], dtype=np.float32), offsets)}
    ticket = plan.ticket(batch)
    rows = embeddings.rows(exchange.lookup(ticket.requests, create=True).result())
    exchange.close()
    return embeddings.embed(ticket, rows), rows


def value(batch: EmbeddedBatch) -> Tensor:
    """A number that depends on everything in a batch."""
    tags = batch.embeddings["tags"]
    assert isinstance(tags, JaggedRows)
    padded, mask = JaggedRows(tags.values * batch.events["paid"].values, tags.offsets).padded(5)
    assert batch.weights is not None
    each = (
        torch.tanh(batch.flat()).sum(1) * batch.stack()[:, 0].sum(1) + (padded**2).sum((1, 2)) + mask.sum(1)
    )
    return (each * batch.weights).sum()


@pytest.mark.parametrize(("size", "count"), [(12, 4), (7, 3), (5, 1), (2, 5)])
def test_parts_together_are_the_batch_and_so_are_their_gradients(size: int, count: int) -> None:
    whole, rows = embedded(size)
    expected = value(whole)
    expected.backward()
    gradients = [row.grad.clone() for row in rows if row.grad is not None]
    again, fresh = embedded(size)
    parts = MicroBatches(again, count)
    assert sum(parts.sizes) == size
    assert max(parts.sizes) - min(parts.sizes) <= 1
    found = [value(part) for part, own in zip(parts.batches, parts.sizes, strict=True) if own]
    for one in found:
        one.backward()
    assert parts.backward()
    torch.testing.assert_close(torch.stack(found).sum(), expected)
    torch.testing.assert_close([row.grad for row in fresh], gradients)


def test_a_part_without_samples_has_the_last_one_and_counts_nothing() -> None:
    parts = MicroBatches(embedded(2)[0], 4)
    assert parts.sizes == [0, 1, 0, 1]
    assert [part.size for part in parts.batches] == [1] * 4
    assert parts.weights(known_weight) == [0.0, 0.0, 0.0, 1.0]  # sample 0 weighs 0

    def size(batch: Batch) -> Any:
        return batch.size

    assert parts.weights(size) == [0, 1, 0, 1]


def test_what_nobody_asks_for_is_not_pooled() -> None:
    batch, rows = embedded(4)
    parts = MicroBatches(batch, 2)
    parts.batches[0].numeric.sum()
    assert not parts.backward()
    assert [row.grad for row in rows] == [None] * len(rows)


def test_a_batch_is_free_once_nobody_needs_it() -> None:
    batch, _ = embedded(4)
    parts = MicroBatches(batch, 2)
    pooled = weakref.ref(parts.batches[0].stack())
    gc.disable()  # it would find circles of references, some steps later
    try:
        del parts
        assert pooled() is None
    finally:
        gc.enable()
