"""Embedding workers: processes between workers and shards that handle ids, so that workers need not.

A worker sends the ids of a batch as they are. Its embedding worker makes them distinct, looks their rows up,
pools them and answers dense tensors; later it takes the gradients of these and pushes one gradient per
distinct row. It is the worker's own `Embeddings` in another process, cut at the pooled tensors.
"""

from satrap.embedding.workers.client import PooledExchange
from satrap.embedding.workers.lanes import Lanes
from satrap.embedding.workers.plan import PooledEmbeddings, PooledPlan
from satrap.embedding.workers.service import EmbeddingService

__all__ = ["EmbeddingService", "Lanes", "PooledEmbeddings", "PooledExchange", "PooledPlan"]
