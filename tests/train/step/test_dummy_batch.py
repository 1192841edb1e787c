"""The batch of a worker that has none."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import satrap
from satrap import models
from satrap.embedding import embeddings_of, tables_of
from satrap.exchange import LocalExchange
from satrap.store import StoreConfig
from satrap.store.shard import open_store
from satrap.train.step.dummy_batch import SIZE, blank_batch, buffers_kept
from satrap.train.step.loss import LabelLoss
from tests.models.retrieval.histories import NAMES as NEXT_ITEM
from tests.models.sequence.histories import NAMES as HISTORIES


def make_schema(**options: str) -> satrap.Schema:
    features = {
        "user": satrap.Categorical(dim=4),
        "tags": satrap.Categorical(dim=4, multi=True, pooling="mean"),
        "seen": satrap.Categorical(dim=4, multi=True, pooling="max"),
        "price": satrap.Numeric(),
    }
    return satrap.Schema(labels=["clicked", "bought"], features=features, **options)


@pytest.mark.parametrize("options", [{}, {"weight": "w", "group": "user_id"}])
@pytest.mark.parametrize(
    "name", [name for name in models.names() if name not in (*NEXT_ITEM, "two_tower")]
)  # one output
def test_every_model_has_a_finite_loss_and_no_gradient_of_weight_0(
    name: str, options: dict[str, str]
) -> None:
    schema = make_schema(**options)
    if name in HISTORIES:
        past = satrap.Categorical(
            dim=4, table="user", multi=True, pooling="none", sequence="past", max_values=3
        )
        paid = satrap.Numeric(sequence="past")
        features = {**schema.features, "past": past, "paid": paid}
        schema = satrap.Schema(schema.labels, features, weight=schema.weight, group=schema.group)
    model = models.create(name, schema)
    tables = tables_of(schema, satrap.optim.SGD(lr=1.0), getattr(model, "embedding_dims", None))
    exchange = LocalExchange(open_store(StoreConfig(), tables))
    plan, embeddings = embeddings_of(exchange, schema, exchange.groups, torch.device("cpu"))
    batch = blank_batch(plan, embeddings)
    logits = model(batch)
    assert logits.shape == (SIZE, 2)
    loss = LabelLoss(schema.labels)(logits, batch)
    assert torch.isfinite(loss)
    (loss * 0.0).backward()
    for parameter in model.parameters():
        assert parameter.grad is None or not parameter.grad.any()
    assert exchange.telemetry.statistics().rows == 0
    exchange.close()


def test_a_feature_without_pooling_has_rows_too() -> None:
    schema = satrap.Schema(
        labels=["y"], features={"seen": satrap.Categorical(dim=4, multi=True, pooling="none")}
    )
    exchange = LocalExchange(open_store(StoreConfig(), tables_of(schema, satrap.optim.SGD(lr=1.0))))
    plan, embeddings = embeddings_of(exchange, schema, exchange.groups, torch.device("cpu"))
    rows = blank_batch(plan, embeddings).embeddings["seen"]
    assert rows.values.shape == (SIZE, 4)  # type: ignore[union-attr]
    assert rows.offsets.tolist() == [0, 1, 2]  # type: ignore[union-attr]
    exchange.close()


def test_statistics_of_batch_normalisation_stay_as_they_were() -> None:
    model = nn.BatchNorm1d(3)
    before = [buffer.clone() for buffer in model.buffers()]
    with buffers_kept(model):
        model(torch.randn(4, 3))
        assert int(model.num_batches_tracked) == 1  # type: ignore[arg-type]
    for kept, buffer in zip(before, model.buffers(), strict=True):
        assert torch.equal(kept, buffer)
