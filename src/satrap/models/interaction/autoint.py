"""AutoInt: self-attention over fields."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import OutputLayer, Ranker, beside, check_whole, mlp
from satrap.models.layers.fields import EqualWidth, FieldAttention, NumberVectors
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class AutoInt(Ranker):
    """Layers of multi-head self-attention over the fields, and an MLP on the vectors and numbers (AutoInt+).

    A number is a field: a learned vector times its value; scale it.

    Reference: Song et al., "AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural
    Networks", CIKM 2019: layers without layer normalization.

    Args:
        schema: labels and features; dims may differ.
        layers: number of attention layers, default 3.
        heads: heads of each layer, default 2.
        head_width: width of a head, default 16.
        layer_norm: normalise before the ReLU of each attention layer, default off.
        hidden: widths of the MLP's layers, default 256 and 128; none: AutoInt without the MLP.
        dropout: probability of zeroing a hidden activation of the MLP in training, default 0.
        batch_norm: normalise before each ReLU of the MLP, default off.
        vector_width: width of the vectors; a feature of another dim gets a learned matrix. Default: the
            largest dim.

    Raises:
        ConfigError: no labels, no categorical feature, one with pooling "none", or an invalid argument.
    """

    needs = ("ids",)
    one_width = True

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        layers: int = 3,
        heads: int = 2,
        head_width: int = 16,
        layer_norm: bool = False,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
        vector_width: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in {"layers": layers, "heads": heads, "head_width": head_width}.items():
            check_whole(name, value)
        self.vectors = EqualWidth(schema, "AutoInt", vector_width)
        dim, numbers = self.vectors.width, schema.numeric_width
        self.numbers = NumberVectors(numbers, dim)
        inputs = [dim] + [heads * head_width] * (layers - 1)
        self.attention = nn.Sequential(
            *(FieldAttention(size, heads, head_width, layer_norm=layer_norm) for size in inputs)
        )
        features = len(schema.categorical)
        self.deep, last = mlp(features * dim + numbers, hidden, dropout=dropout, batch_norm=batch_norm)
        deep = last if len(self.deep) else 0
        self.head = OutputLayer((features + numbers) * heads * head_width + deep, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        attention, deep = ([(partial(beside, x), x) for x in xs] for xs in (self.attention, self.deep))
        head = (self._head, self.head)
        return [(self._fields, self.numbers, self.vectors), *attention, _turned, *deep, head]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        flat, fields = self._fields(batch)
        return self._head(self.attention(fields).flatten(1), self.deep(flat))

    def _fields(self, batch: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        vectors = self.vectors(batch)
        flat = torch.cat([vectors.flatten(1), batch.numeric], dim=1)
        return flat, self.numbers(vectors, batch.numeric)

    def _head(self, attended: Tensor, deep: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.cat([attended, deep], dim=1) if len(self.deep) else attended)
        return logits


def _turned(flat: Tensor, fields: Tensor) -> tuple[Tensor, Tensor]:
    return fields.flatten(1), flat
