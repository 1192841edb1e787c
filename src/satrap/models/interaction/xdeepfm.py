"""xDeepFM: compressed interactions and an MLP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.blocks import ShallowAndDeep
from satrap.models.layers.common import (
    FirstOrder,
    OutputLayer,
    check_whole,
    mlp,
    num_outputs,
    with_linear,
)
from satrap.models.layers.fields import CompressedInteraction, EqualWidth, NumberVectors
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class XDeepFM(ShallowAndDeep):
    """A linear model, a compressed interaction network (CIN) of all fields, and an MLP, summed.

    Layer k of the CIN has products of degree k + 1 of the vectors, column by column. Its memory for a sample
    is `fields * width * (fields + sum of the inner layers)` numbers. Rows are `[vector | first-order weight
    per output]` (`embedding_dims`). A number is a field of the CIN: a learned vector times its value; the MLP
    reads it unchanged; scale it.

    Reference: Lian et al., "xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender
    Systems", KDD 2018, with identity activations, and all vectors of a layer both to the next and the output.

    Args:
        schema: labels and features; dims may differ.
        cin: number of vectors in each layer of the CIN, default 16 and 16.
        hidden: widths of the hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.
        vector_width: width of the vectors; a feature of another dim gets a learned matrix. Default: the
            largest dim.

    Raises:
        ConfigError: no labels, no categorical feature, one with pooling "none", or an invalid argument.
    """

    needs = ("ids",)
    one_width = True
    first_modules = ("first", "cin", "explicit", "numbers", "vectors")

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        cin: Sequence[int] = (16, 16),
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
        vector_width: int | None = None,
    ) -> None:
        super().__init__()
        if not cin:
            raise ConfigError("cin must have at least one layer", fix="cin: [16, 16], or use wide_deep")
        for size in cin:
            check_whole("the width of a layer of cin", size)
        self.vectors = EqualWidth(schema, "XDeepFM", vector_width, tail=num_outputs(schema))
        self.embedding_dims = with_linear(schema)
        dim, numbers = self.vectors.width, schema.numeric_width
        self.numbers = NumberVectors(numbers, dim)
        self.first = FirstOrder(schema)
        features = len(schema.categorical)
        self.cin = CompressedInteraction(features + numbers, cin)
        self.deep, last = mlp(features * dim + numbers, hidden, dropout=dropout, batch_norm=batch_norm)
        self.explicit = OutputLayer(sum(cin), schema.labels, bias=False)
        self.head = OutputLayer(last, schema.labels, bias=False)

    def inputs(self, batch: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        """See `ShallowAndDeep.inputs`."""
        rows, dim, numeric = self.vectors(batch), self.vectors.width, batch.numeric
        vectors = rows[..., :dim]
        first = self.first(rows[..., dim:].sum(1), numeric)
        explicit = self.explicit(self.cin(self.numbers(vectors, numeric)))
        return first + explicit, torch.cat([vectors.flatten(1), numeric], dim=1)
