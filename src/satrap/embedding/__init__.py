"""From ids to embeddings: distinct ids, lookup request, pooled rows on the device, and back to gradients.

`EmbeddingPlan` turns a `Batch` into a `Ticket` (what to ask the exchange for); `Embeddings` turns the
ticket and the rows that came back into the `EmbeddedBatch` a model sees. Rows are autograd leaves: after
`loss.backward()` each holds exactly one gradient per distinct id.
"""

from satrap.embedding.module import Embeddings
from satrap.embedding.plan import EmbeddingPlan, Ticket, tables_of
from satrap.embedding.seam import embeddings_of

__all__ = ["EmbeddingPlan", "Embeddings", "Ticket", "embeddings_of", "tables_of"]
