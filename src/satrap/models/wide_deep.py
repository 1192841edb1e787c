"""Wide & Deep."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import (
    FirstOrder,
    OutputLayer,
    Ranker,
    check_categorical,
    input_width,
    mlp,
    num_outputs,
    with_linear,
)
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class WideDeep(Ranker):
    """A linear model that memorises (wide) and an MLP over embeddings that generalises (deep), summed.

    Rows are `[vector | first-order weight per output]` (`embedding_dims`). Hand-made crosses for the wide
    part are features with `cross`.

    Reference: Cheng et al., "Wide & Deep Learning for Recommender Systems", DLRS 2016.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.

    Raises:
        ConfigError: no labels, no categorical feature, one with pooling "none", or an invalid argument.
    """

    needs = ("ids",)

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_categorical(schema, "WideDeep")
        self.outputs = num_outputs(schema)
        self.embedding_dims = with_linear(schema)
        # Columns of batch.flat(): vector, weights, vector, weights, ..., numbers.
        dims = [feature.dim for feature in schema.categorical.values()]
        self.pieces = [size for dim in dims for size in (dim, self.outputs)] + [schema.numeric_width]
        self.wide = FirstOrder(schema)
        width = input_width(schema, "WideDeep")
        self.deep, width = mlp(width, hidden, dropout=dropout, batch_norm=batch_norm)
        self.head = OutputLayer(width, schema.labels, bias=False)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        pieces = torch.split(batch.flat(), self.pieces, dim=1)
        summed = torch.unflatten(torch.cat(pieces[1::2], dim=1), 1, (-1, self.outputs)).sum(1)
        logits: Tensor = self.wide(summed, batch.numeric) + self.head(
            self.deep(torch.cat(pieces[::2], dim=1))
        )
        return logits
