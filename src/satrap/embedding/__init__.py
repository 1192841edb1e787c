"""From ids to embeddings: unique ids, lookup requests, pooled rows on the device, and gradients.

`EmbeddingPlan` turns a `Batch` into a `Ticket`, the requests for its rows; `Embeddings` turns the ticket and
the rows into the `EmbeddedBatch` for the model. Rows are autograd leaves: after `loss.backward()` each has
exactly one gradient per unique id.
"""

from satrap.embedding.module import Embeddings
from satrap.embedding.plan import EmbeddingPlan, Ticket, tables_of
from satrap.embedding.select import embeddings_of

__all__ = ["EmbeddingPlan", "Embeddings", "Ticket", "embeddings_of", "tables_of"]
