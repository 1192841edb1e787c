"""FinalNet: factorized interaction layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.blocks import factorized_mlp
from satrap.models.layers.common import OutputLayer, Ranker, beside, input_width
from satrap.models.layers.fields import EqualWidth, FieldGate
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class FinalNet(Ranker):
    """Two MLPs whose layers also multiply: `relu([a, a * b])` with a and b the halves of `W x + b`.

    Each layer doubles the degree of the products. The logit is the mean of the logits of both blocks. The
    paper also teaches each block the prediction of both, by a loss of its own. That is not part of this
    model, because a model here returns logits and the loss belongs to the trainer.

    Reference: Zhu et al., "FINAL: Factorized Interaction Layer for CTR Prediction", SIGIR 2023.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the first block's layers, even numbers, default 256 and 128.
        hidden2: widths of the second block's layers; default None, as `hidden`.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off. The published results have it.
        gate: the first block also reads the vectors times a gate for each field and column, computed from
            all fields; needs a categorical feature, and brings vectors to the largest dim. Default off.

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        hidden2: Sequence[int] | None = None,
        dropout: float = 0.0,
        batch_norm: bool = False,
        gate: bool = False,
    ) -> None:
        super().__init__()
        columns = input_width(schema, "FinalNet")
        self.vectors = EqualWidth(schema, "FinalNet") if gate else None
        fields = len(schema.categorical)
        self.gate = FieldGate(fields) if gate else None
        first = 2 * fields * self.vectors.width + schema.numeric_width if self.vectors else columns
        self.deep1, last1 = factorized_mlp(first, hidden, dropout=dropout, batch_norm=batch_norm)
        second = hidden if hidden2 is None else hidden2
        self.deep2, last2 = factorized_mlp(columns, second, dropout=dropout, batch_norm=batch_norm)
        self.head1, self.head2 = OutputLayer(last1, schema.labels), OutputLayer(last2, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        gate = [] if self.vectors is None or self.gate is None else [self.gate, self.vectors]
        deep1, deep2 = ([(partial(beside, x), x) for x in deep] for deep in (self.deep1, self.deep2))
        turn = (lambda flat, x: (self.head1(x), flat), self.head1)
        last = (lambda first, x: (first + self.head2(x)) / 2, self.head2)
        return [(self._inputs, *gate), *deep1, turn, *deep2, last]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        flat, first = self._inputs(batch)
        logits: Tensor = (self.head1(self.deep1(first)) + self.head2(self.deep2(flat))) / 2
        return logits

    def _inputs(self, batch: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        flat = batch.flat()
        if self.vectors is None or self.gate is None:
            return flat, flat
        gated = self.gate(self.vectors(batch)).flatten(1)
        return flat, torch.cat([gated, batch.numeric], dim=1)
