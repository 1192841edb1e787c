"""The dummy batch of a worker without a batch, for forward passes that are collectives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from satrap.batch import Batch, EmbeddedBatch, Jagged
from satrap.embedding import BatchLookup, EmbeddingPlan, Embeddings

SIZE = 2
"""Samples of a dummy batch: batch normalization needs two."""


def blank_ticket(plan: EmbeddingPlan) -> BatchLookup:
    """Return the requests of dummy samples: one id per feature, all numbers are 1."""
    schema = plan.schema
    return plan.ticket(
        Batch(
            size=SIZE,
            ids={name: Jagged(np.zeros(SIZE, np.uint64)) for name in schema.categorical},
            numeric=np.ones((SIZE, schema.numeric_width), np.float32) if schema.numeric_width else None,
            labels=np.zeros((SIZE, len(schema.labels)), np.float32),
            weights=None if schema.weight is None else np.ones(SIZE, np.float32),
            groups=None if schema.group is None else np.zeros(SIZE, np.uint64),
            events={
                name: Jagged(np.ones(SIZE, np.float32)) for name, n in schema.numeric.items() if n.sequence
            },
        )
    )


def blank_rows(plan: EmbeddingPlan, embeddings: Embeddings) -> tuple[BatchLookup, list[Tensor]]:
    """Return a `blank_ticket` and rows of ones for it; no row is looked up.

    The rows are ones, since a model may divide by a norm, or take a logarithm.
    """
    ticket = blank_ticket(plan)
    rows = [
        np.ones((request.rows, plan.groups[i].dim), np.float32) for i, request in enumerate(ticket.requests)
    ]
    return ticket, embeddings.rows(rows)


def blank_batch(plan: EmbeddingPlan, embeddings: Embeddings) -> EmbeddedBatch:
    """Return the batch of `blank_rows`."""
    return embeddings.embed(*blank_rows(plan, embeddings))


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Restore buffers at the end of the context, such as the statistics of batch normalization."""
    values = [buffer.clone() for buffer in model.buffers()]
    yield
    with torch.no_grad():
        for buffer, value in zip(model.buffers(), values, strict=True):
            buffer.copy_(value)
