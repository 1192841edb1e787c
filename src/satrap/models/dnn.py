"""Deep neural network over concatenated embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import OutputLayer, Ranker, input_width, mlp
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class DNN(Ranker):
    """One MLP over concatenated embeddings and numbers; labels share all layers but the last.

    Reference: Covington et al., "Deep Neural Networks for YouTube Recommendations", RecSys 2016.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

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
        width = input_width(schema, "DNN")
        self.deep, width = mlp(width, hidden, dropout=dropout, batch_norm=batch_norm)
        self.head = OutputLayer(width, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        return [EmbeddedBatch.flat, *self.deep, self.head]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        logits: Tensor = self.head(self.deep(batch.flat()))
        return logits
