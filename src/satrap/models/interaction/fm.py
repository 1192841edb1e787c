"""Factorization machine."""

from __future__ import annotations

from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import FirstOrder, Ranker, SecondOrder, num_outputs, with_linear
from satrap.models.layers.fields import EqualWidth
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class FM(Ranker):
    """Factorization machine: logistic regression plus the dot product of every pair of feature vectors.

    Rows are `[vector | first-order weight per output]`, so they are wider than the schema's dim by the
    number of outputs (`embedding_dims`). Numbers contribute a learned vector times their value; scale them
    (log1p, standardize). The model has no hidden layers.

    Reference: Rendle, "Factorization Machines", ICDM 2010.

    Args:
        schema: labels and features; dims may differ.
        vector_width: width of the vectors; a feature of another dim gets a learned matrix. Default: the
            largest dim.

    Raises:
        ConfigError: no labels, no categorical feature, one with pooling "none", or an invalid width.
    """

    needs = ("ids",)
    one_width = True

    @checked()
    def __init__(self, schema: Schema, *, vector_width: int | None = None) -> None:
        super().__init__()
        self.vectors = EqualWidth(schema, type(self).__name__, vector_width, tail=num_outputs(schema))
        self.embedding_dims = with_linear(schema)
        self.dim = self.vectors.width
        self.first, self.second = FirstOrder(schema), SecondOrder(schema, self.dim)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        rows = self.vectors(batch)
        return self.shallow(rows[..., : self.dim], rows[..., self.dim :], batch.numeric)

    def shallow(self, vectors: Tensor, weights: Tensor, numeric: Tensor) -> Tensor:
        """Return logits from vectors [size, features, dim], weights [size, features, outputs] and numbers."""
        logits: Tensor = self.first(weights.sum(1), numeric) + self.second(vectors, numeric)
        return logits
