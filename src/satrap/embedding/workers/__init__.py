"""Embedding workers: processes between workers and shards that handle ids on behalf of workers.

A worker sends the raw ids of a batch. Its embedding worker removes duplicates, looks up the rows, pools them
and returns dense tensors; later it receives the gradients of these tensors and pushes one gradient per unique
row. It runs the worker's `Embeddings` in another process, up to the pooled tensors.
"""

from satrap.embedding.workers.client import PooledExchange
from satrap.embedding.workers.client_threads import ClientThreads
from satrap.embedding.workers.plan import PooledEmbeddings, PooledPlan
from satrap.embedding.workers.service import EmbeddingService

__all__ = ["ClientThreads", "EmbeddingService", "PooledEmbeddings", "PooledExchange", "PooledPlan"]
