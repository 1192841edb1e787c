"""FiBiNET: weighted fields and bilinear products of their pairs."""

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
from satrap.models.layers.fields import (
    BilinearInteraction,
    EqualWidth,
    NumberVectors,
    Sharing,
    SqueezeExcitation,
)
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class FiBiNET(ShallowAndDeep):
    """A linear model plus an MLP on the products `(W x_i) * x_j` of all pairs of fields, computed twice.

    Once from the vectors, once from the vectors times weights of the fields (squeeze and excitation). Rows
    are `[vector | first-order weight per output]` (`embedding_dims`). A number is a field: a learned vector
    times its value; scale it. The MLP's input has `fields * (fields - 1) * width` columns.

    Reference: Huang et al., "FiBiNET: Combining Feature Importance and Bilinear feature Interaction for
    Click-Through Rate Prediction", RecSys 2019. As in FuxiCTR, both computations share the matrices.

    Args:
        schema: labels and features; dims may differ.
        bilinear: the pairs that share a matrix W: "all", "each" (default; pairs with the same first field),
            or "pair" (none). The paper's names are field-all, field-each and field-interaction.
        reduction: fields for each hidden unit of the squeeze-excitation network, default 3.
        hidden: widths of the hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.
        vector_width: width of the vectors; a feature of another dim gets a learned matrix. Default: the
            largest dim.

    Raises:
        ConfigError: no labels, no categorical feature, fewer than two fields, a feature with pooling "none",
            or an invalid argument.
    """

    needs = ("ids",)
    one_width = True
    first_modules = ("first", "weigh", "products", "numbers", "vectors")

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        bilinear: Sharing = "each",
        reduction: int = 3,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
        vector_width: int | None = None,
    ) -> None:
        super().__init__()
        self.vectors = EqualWidth(schema, "FiBiNET", vector_width, tail=num_outputs(schema))
        self.embedding_dims = with_linear(schema)
        dim, fields = self.vectors.width, len(schema.categorical) + schema.numeric_width
        check_whole("reduction", reduction)
        if fields < 2:
            raise ConfigError(
                "FiBiNET needs at least two fields to multiply", fix="add a feature, or use dnn"
            )
        self.numbers = NumberVectors(schema.numeric_width, dim)
        self.weigh = SqueezeExcitation(fields, reduction)
        self.products = BilinearInteraction(fields, dim, bilinear)
        self.first = FirstOrder(schema)
        self.deep, last = mlp(fields * (fields - 1) * dim, hidden, dropout=dropout, batch_norm=batch_norm)
        self.head = OutputLayer(last, schema.labels, bias=False)

    def inputs(self, batch: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        """See `ShallowAndDeep.inputs`."""
        rows, dim = self.vectors(batch), self.vectors.width
        first = self.first(rows[..., dim:].sum(1), batch.numeric)
        fields = self.numbers(rows[..., :dim], batch.numeric)
        pairs = [self.products(x) for x in (fields, self.weigh(fields))]
        return first, torch.cat(pairs, dim=1).flatten(1)
