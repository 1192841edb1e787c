"""Chooses where ids become embeddings: in this process, or in an embedding worker."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from satrap.embedding.device import DeviceEmbeddings, DevicePlan
from satrap.embedding.module import Embeddings
from satrap.embedding.plan import EmbeddingPlan
from satrap.embedding.pooled import SharedPoolingPlan
from satrap.embedding.workers import PooledEmbeddings, PooledPlan
from satrap.exchange import Exchange, TableGroup
from satrap.schema import Schema


def embeddings_of(
    exchange: Exchange, schema: Schema, groups: Sequence[TableGroup], device: torch.device
) -> tuple[EmbeddingPlan, Embeddings]:
    """Return the plan of lookups for an exchange, and the embeddings that turn its replies into tensors.

    `groups` are the table groups that hold the rows of the schema's features; `device` is the model's.
    """
    if exchange.pooling is None:
        plan = EmbeddingPlan(schema, groups)
    elif exchange.pooling.by == "owner":
        plan = SharedPoolingPlan(schema, groups, exchange.pooling)
    elif exchange.pooling.by == "device":
        plan = DevicePlan(schema, groups)
        return plan, DeviceEmbeddings(plan, device)
    else:
        plan = PooledPlan(schema, groups)
        return plan, PooledEmbeddings(plan, device)
    return plan, Embeddings(plan, device)
