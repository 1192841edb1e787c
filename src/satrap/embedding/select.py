"""Where ids become embeddings: in this process, or in an embedding worker."""

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
    """Return what asks an exchange for the embeddings of a batch, and what makes tensors of its answers.

    Args:
        exchange: that is asked.
        schema: the features.
        groups: the table groups that hold their rows.
        device: where the model computes.
    """
    if isinstance(exchange, PooledExchange):
        plan = PooledPlan(schema, groups)
        return plan, PooledEmbeddings(plan, device)
    if isinstance(exchange, CollectiveExchange) and exchange.pooled:
        own: EmbeddingPlan = SharedPoolingPlan(schema, groups, exchange.pooled, exchange.wire)
    else:
        own = EmbeddingPlan(schema, groups)
    return own, Embeddings(own, device)
