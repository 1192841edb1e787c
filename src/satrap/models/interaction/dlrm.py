"""DLRM: deep learning recommendation model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.common import OutputLayer, Ranker, mlp
from satrap.models.layers.fields import EqualWidth
from satrap.models.layers.interaction import DotInteraction
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class DLRM(Ranker):
    """A bottom MLP turns the numbers into a vector; a top MLP reads the dot products of all pairs of vectors.

    The top MLP also reads the bottom MLP's output, if the schema has numbers.

    Reference: Naumov et al., "Deep Learning Recommendation Model for Personalization and Recommendation
    Systems", arXiv 1906.00091, 2019.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the top MLP's hidden layers, default 256 and 128.
        bottom: widths of the bottom MLP's hidden layers, default 128 and 64; one of `vector_width` follows.
        dropout: probability of zeroing a hidden activation of the top MLP in training, default 0.
        batch_norm: normalise before each ReLU of both MLPs, default off.
        vector_width: width of the vectors; a feature of another dim gets a learned matrix. Default: the
            largest dim.

    Raises:
        ConfigError: no labels, no categorical feature, fewer than two vectors, a feature with pooling "none",
            or an invalid argument.
    """

    needs = ("ids",)
    one_width = True

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        bottom: Sequence[int] = (128, 64),
        dropout: float = 0.0,
        batch_norm: bool = False,
        vector_width: int | None = None,
    ) -> None:
        super().__init__()
        self.vectors = EqualWidth(schema, "DLRM", vector_width)
        dim, numbers = self.vectors.width, schema.numeric_width
        fields = len(schema.categorical) + (numbers > 0)
        if fields < 2:
            raise ConfigError("DLRM needs at least two vectors to multiply", fix="add a feature, or use dnn")
        self.bottom = mlp(numbers, [*bottom, dim], batch_norm=batch_norm)[0] if numbers else None
        self.interaction = DotInteraction(fields)
        columns = fields * (fields - 1) // 2 + (dim if numbers else 0)
        self.top, last = mlp(columns, hidden, dropout=dropout, batch_norm=batch_norm)
        self.head = OutputLayer(last, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        used = [] if self.bottom is None else [self.bottom]
        return [(self._products, self.interaction, *used, self.vectors), *self.top, self.head]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        logits: Tensor = self.head(self.top(self._products(batch)))
        return logits

    def _products(self, batch: EmbeddedBatch) -> Tensor:
        first = None if self.bottom is None else self.bottom(batch.numeric)
        products: Tensor = self.interaction(self.vectors(batch), first)
        return products
