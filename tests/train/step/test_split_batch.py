"""Micro-batches: parts of a batch hold its samples, and together make the step of the batch."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import satrap
from satrap.batch import Batch, EmbeddedBatch, Jagged, JaggedRows
from satrap.embedding import NO_BATCH, BatchLookup, Embeddings, embeddings_of, tables_of
from satrap.errors import ConfigError
from satrap.exchange import LocalExchange
from satrap.store import StoreConfig, open_store
from satrap.train import TrainingOptions
from satrap.train.step.loss import known_weight
from satrap.train.step.split_batch import MicroBatches, parts_of
from tests.support.trainers import alone, assert_same, make_trainer, sgd
from tests.train.plain import Batches, Tower, make_batches, make_schema
from tests.train.ranks import trained


def weighted(batches: list[Batch]) -> list[Batch]:
    """Give samples weights and unknown labels; the first samples of each batch count nothing."""
    random = np.random.default_rng(7)
    for batch in batches:
        assert batch.labels is not None
        batch.weights = random.random(batch.size).astype(np.float32)
        batch.label_mask = random.random((batch.size, 1)) > 0.3
        batch.weights[: batch.size // 3] = 0
    return batches


@pytest.mark.parametrize("pooling", ["mean", "none"])
def test_parts_hold_the_samples_of_the_batch(pooling: str) -> None:
    tags = satrap.Categorical(dim=8, multi=True, pooling=pooling)  # type: ignore[arg-type]
    trainer = make_trainer(schema=make_schema(tags=tags))
    plan, embeddings = trainer.predictor.plan, trainer.predictor.embeddings
    ticket = plan.ticket(make_batches(1, size=7)[0])
    rows = embeddings.rows([torch.randn(r.rows, plan.groups[i].dim) for i, r in enumerate(ticket.requests)])
    whole, at = embeddings.embed(ticket, rows), 0
    for part, share in parts_of(ticket, 3, known_weight):
        assert part is not None
        found, size = embeddings.embed(part, rows), part.batch.size
        assert share == pytest.approx(size / 7)
        for name in ("user", "item"):
            torch.testing.assert_close(found[name], whole[name][at : at + size], rtol=0, atol=0)
        own, all_ = found.embeddings["tags"], whole.embeddings["tags"]
        if isinstance(own, JaggedRows) and isinstance(all_, JaggedRows):
            bounds = all_.offsets[at : at + size + 1]
            torch.testing.assert_close(own.offsets, bounds - bounds[0], rtol=0, atol=0)
            torch.testing.assert_close(own.values, all_.values[bounds[0] : bounds[-1]], rtol=0, atol=0)
        else:
            torch.testing.assert_close(found.flat(), whole.flat()[at : at + size], rtol=0, atol=0)
        assert found.labels is not None
        assert whole.labels is not None
        torch.testing.assert_close(found.labels, whole.labels[at : at + size], rtol=0, atol=0)
        at += size
    assert at == 7
    trainer.close()


def test_a_batch_of_few_samples_has_empty_parts() -> None:
    trainer = make_trainer()
    ticket = trainer.predictor.plan.ticket(make_batches(1, size=2)[0])
    sizes = [part.batch.size for part, _ in parts_of(ticket, 5, known_weight)]
    assert sizes == [0, 0, 1, 0, 1]
    assert sum(share for _, share in parts_of(ticket, 5, known_weight)) == 1
    assert parts_of(NO_BATCH, 2, known_weight) == [(NO_BATCH, 0.0)] * 2
    trainer.close()


def looked_up(size: int) -> tuple[BatchLookup, list[Tensor], Embeddings]:
    """A batch of features pooled and not, its rows, and what embeds them."""
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
    return ticket, rows, embeddings


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
    ticket, rows, embeddings = looked_up(size)
    expected = value(embeddings.embed(ticket, rows))
    expected.backward()
    gradients = [row.grad.clone() for row in rows if row.grad is not None]
    ticket, fresh, embeddings = looked_up(size)
    parts = MicroBatches(ticket, fresh, embeddings.embed, count)
    assert (len(parts), parts.size, sum(parts.sizes)) == (count, size, size)
    assert max(parts.sizes) - min(parts.sizes) <= 1
    found = [value(parts[number]) for number, own in enumerate(parts.sizes) if own]
    for one in found:
        one.backward()
    torch.testing.assert_close(torch.stack(found).sum(), expected)
    torch.testing.assert_close([row.grad for row in fresh], gradients)


def test_a_part_without_samples_has_the_last_one_and_counts_nothing() -> None:
    ticket, rows, embeddings = looked_up(2)
    parts = MicroBatches(ticket, rows, embeddings.embed, 4, known_weight)
    assert parts.sizes == [0, 1, 0, 1]
    assert [parts[number].size for number in range(4)] == [1] * 4
    assert parts.shares == [0.0, 0.0, 0.0, 1.0]  # sample 0 weighs 0
    assert MicroBatches(ticket, rows, embeddings.embed, 4).shares == [0, 0.5, 0, 0.5]


def test_pooled_features_are_free_once_nobody_needs_them() -> None:
    ticket, rows, embeddings = looked_up(4)
    parts = MicroBatches(ticket, rows, embeddings.embed, 2)
    gc.disable()  # it would find circles of references, some steps later
    try:
        pooled = weakref.ref(parts[0].stack())
        assert pooled() is None
    finally:
        gc.enable()


class Seen(Tower):
    """Notes the sizes of the batches that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        self.sizes.append(batch.size)
        return super().forward(batch)


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "sync"},
        {"mode": "sync", "clip_norm": 0.1},
        {"mode": "hybrid", "staleness": 2, "clip_norm": 0.1},
        {"mode": "async", "staleness": 2},
    ],
)
def test_micro_batches_make_the_step_of_the_batch(arguments: dict[str, Any]) -> None:
    data = Batches(weighted([*make_batches(12), *make_batches(3, size=2, seed=9)]))
    whole = alone(data, **arguments)
    torch.manual_seed(3)  # as `make_trainer` does for the other
    seen = Seen()
    parts = alone(data, model=seen, microbatches=5, **arguments)
    assert_same(parts, whole, 1e-5)
    assert (max(seen.sizes), len(seen.sizes)) == (7, 12 * 5 + 3 * 2)
    # The comparison notices a mean over parts in place of one over samples.
    wrong = alone(data, loss=lambda x, b: nn.functional.binary_cross_entropy_with_logits(x, b.labels))
    assert np.abs(wrong.dense - whole.dense).max() > 1e-3


def test_the_loss_that_is_reported_is_that_of_the_batch() -> None:
    losses = []
    for count in (1, 4):
        trainer = make_trainer(mode="sync", microbatches=count)
        trainer.fit(Batches(weighted(make_batches(1))))
        losses.append(trainer.run.progress.loss)
        trainer.close()
    assert losses[1] == pytest.approx(losses[0], rel=1e-6)


def test_a_part_that_is_not_finite_refuses_the_whole_step() -> None:
    [bad] = make_batches(1)
    assert bad.numeric is not None
    bad.numeric[0] = np.inf  # in the first part
    data = make_batches(4)
    answer = alone(Batches([*data, bad]), mode="sync", microbatches=4)
    assert answer.result.refused == 1
    assert_same(answer, alone(Batches(data), mode="sync", microbatches=4))


@pytest.mark.parametrize("mode", ["sync", "hybrid"])
def test_two_workers_with_micro_batches_learn_what_they_learn_without(mode: str) -> None:
    parts = [make_batches(12, size=16), make_batches(11, size=3, seed=1)]
    arguments: dict[str, Any] = {"mode": mode, "staleness": 2, "dense_optimizer": sgd}
    data = [Batches(part) for part in parts]
    whole, cut = (trained(2, data.__getitem__, microbatches=n, **arguments) for n in (1, 4))
    assert_same(cut, whole, 1e-5)


def test_batch_normalisation_and_impossible_numbers_are_refused() -> None:
    model = Tower()
    model.net.insert(1, nn.BatchNorm1d(16))
    with pytest.raises(ConfigError, match=r"batch normalization: net\.1"):
        make_trainer(model=model, microbatches=2)
    with pytest.raises(ConfigError, match="microbatches must be >= 1"):
        TrainingOptions(microbatches=0)
