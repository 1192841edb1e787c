"""Logistic regression."""

from __future__ import annotations

from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import FirstOrder, Ranker, check_pooled, num_outputs
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class LR(Ranker):
    """Logistic regression: one weight per id and output, one per number, a bias.

    The baseline for deeper models. Rows have one column per output, regardless of the schema's dims
    (`embedding_dims`). The model has no hidden layers and takes no arguments but the schema.

    Reference: Richardson et al., "Predicting Clicks", WWW 2007.

    Args:
        schema: labels and features.

    Raises:
        ConfigError: no labels, or a feature with pooling "none".
    """

    @checked()
    def __init__(self, schema: Schema) -> None:
        super().__init__()
        check_pooled(schema, "LR")
        self.outputs = num_outputs(schema)
        self.embedding_dims = dict.fromkeys(schema.categorical, self.outputs)
        self.first = FirstOrder(schema)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        numeric = batch.numeric
        rows = batch.stack().sum(1) if self.embedding_dims else numeric.new_zeros(batch.size, self.outputs)
        logits: Tensor = self.first(rows, numeric)
        return logits
