"""Chooses where ids become embeddings: in this process, or in an embedding worker."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from satrap.embedding.module import Embeddings
from satrap.embedding.plan import EmbeddingPlan
from satrap.embedding.pooled import SharedPoolingPlan
from satrap.embedding.workers import PooledEmbeddings, PooledExchange, PooledPlan
from satrap.exchange import Exchange, TableGroup
from satrap.exchange.collective import CollectiveExchange
from satrap.schema import Schema


def embeddings_of(
    exchange: Exchange, schema: Schema, groups: Sequence[TableGroup], device: torch.device
) -> tuple[EmbeddingPlan, Embeddings]:
    """Return the plan of lookups for an exchange, and the embeddings that turn its replies into tensors.

    Args:
        exchange: the exchange.
        schema: the features.
        groups: the table groups that hold their rows.
        device: the model's device.
    """
    if isinstance(exchange, PooledExchange):
        plan = PooledPlan(schema, groups)
        return plan, PooledEmbeddings(plan, device)
    if isinstance(exchange, CollectiveExchange) and exchange.pooled:
        local: EmbeddingPlan = SharedPoolingPlan(schema, groups, exchange.pooled, exchange.wire)
    else:
        local = EmbeddingPlan(schema, groups)
    return local, Embeddings(local, device)
