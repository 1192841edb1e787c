"""Factorization machine."""

from __future__ import annotations

from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import FirstOrder, Ranker, SecondOrder, equal_dim, with_linear
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class FM(Ranker):
    """Factorization machine: logistic regression plus the dot product of every pair of feature vectors.

    Rows are `[vector | first-order weight per output]`, so they are wider than the schema's dim by the
    number of outputs (`embedding_dims`). Numbers contribute a learned vector times their value; scale them
    (log1p, standardize). The model has no hidden layers and takes no arguments but the schema.

    Reference: Rendle, "Factorization Machines", ICDM 2010.

    Args:
        schema: labels and features, all categorical ones of one dim.

    Raises:
        ConfigError: no labels, unequal dims, no categorical feature, or one with pooling "none".
    """

    @checked()
    def __init__(self, schema: Schema) -> None:
        super().__init__()
        self.dim = equal_dim(schema, type(self).__name__)
        self.embedding_dims = with_linear(schema)
        self.first, self.second = FirstOrder(schema), SecondOrder(schema, self.dim)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        rows = batch.stack()
        return self.shallow(rows[..., : self.dim], rows[..., self.dim :], batch.numeric)

    def shallow(self, vectors: Tensor, weights: Tensor, numeric: Tensor) -> Tensor:
        """Return logits from vectors [size, features, dim], weights [size, features, outputs] and numbers."""
        logits: Tensor = self.first(weights.sum(1), numeric) + self.second(vectors, numeric)
        return logits
