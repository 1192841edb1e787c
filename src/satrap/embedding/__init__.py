"""From ids to embeddings: unique ids, lookup requests, pooled rows on the device, and gradients.

`EmbeddingPlan` turns a `Batch` into a `BatchLookup`, the requests for its rows; `Embeddings` turns the ticket
and the rows into the `EmbeddedBatch` for the model. Rows are autograd leaves: after `loss.backward()` each
has exactly one gradient per unique id.
"""

from satrap.embedding.factory import embeddings_of
from satrap.embedding.module import Embeddings
from satrap.embedding.plan import NO_BATCH, BatchLookup, EmbeddingPlan, tables_of

__all__ = ["NO_BATCH", "BatchLookup", "EmbeddingPlan", "Embeddings", "embeddings_of", "tables_of"]
