"""From ids to embeddings: distinct ids, lookup request, pooled rows on the device, and back to gradients.

`EmbeddingPlan` turns a `Batch` into a `Ticket`, the requests for its rows; `Embeddings` turns the ticket and
the rows into the `EmbeddedBatch` that a model gets. Rows are autograd leaves: after `loss.backward()` each
holds exactly one gradient per distinct id.
"""

from satrap.embedding.module import Embeddings
from satrap.embedding.plan import EmbeddingPlan, Ticket, tables_of
from satrap.embedding.select import embeddings_of

__all__ = ["EmbeddingPlan", "Embeddings", "Ticket", "embeddings_of", "tables_of"]
