"""DeepFM."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.interaction.fm import FM
from satrap.models.layers.common import OutputLayer, mlp
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class DeepFM(FM):
    """A factorization machine and an MLP that share the feature vectors, summed.

    Rows are `[vector | first-order weight per output]` (`embedding_dims`). Numbers enter the factorization
    machine as a learned vector times their value, and the MLP unchanged; scale them.

    Reference: Guo et al., "DeepFM: A Factorization-Machine based Neural Network for CTR Prediction",
    IJCAI 2017.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.
        vector_width: width of the vectors; a feature of another dim gets a learned matrix. Default: the
            largest dim.

    Raises:
        ConfigError: no labels, no categorical feature, one with pooling "none", or an invalid argument.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
        vector_width: int | None = None,
    ) -> None:
        super().__init__(schema, vector_width=vector_width)
        columns = len(schema.categorical) * self.dim + schema.numeric_width
        self.deep, last = mlp(columns, hidden, dropout=dropout, batch_norm=batch_norm)
        self.head = OutputLayer(last, schema.labels, bias=False)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        rows, numeric = self.vectors(batch), batch.numeric
        vectors = rows[..., : self.dim]
        shallow = self.shallow(vectors, rows[..., self.dim :], numeric)
        logits: Tensor = shallow + self.head(self.deep(torch.cat([vectors.flatten(1), numeric], dim=1)))
        return logits
