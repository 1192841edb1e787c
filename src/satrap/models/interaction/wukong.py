"""Wukong: stacked factorization machines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.models.layers.blocks import WukongLayer
from satrap.models.layers.common import OutputLayer, Ranker, check_whole, mlp
from satrap.models.layers.fields import EqualWidth
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class Wukong(Ranker):
    """Layers of factorization machines, each of which doubles the order of the products, then an MLP.

    The model is designed to scale in width (`fmb`, `lcb`, `fmb_hidden`) and depth (`layers`). A bottom MLP
    turns the numbers into a vector, as in DLRM.

    Reference: Zhang et al., "Wukong: Towards a Scaling Law for Large-Scale Recommendation", arXiv 2403.02545,
    2024, with a learned mixture of fields in each factorization machine.

    Args:
        schema: labels and features; dims may differ.
        layers: number of layers, default 3.
        fmb, lcb: output vectors of each layer from products and from mixtures, default 16 each.
        rank: number of vectors to which a factorization machine mixes its fields, default 8.
        fmb_hidden: widths of the hidden layers in each layer, default 64.
        bottom: widths of the bottom MLP's hidden layers, default 64; one of `vector_width` follows.
        hidden: widths of the last MLP's hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation of the last MLP in training, default 0.
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
        fmb: int = 16,
        lcb: int = 16,
        rank: int = 8,
        fmb_hidden: Sequence[int] = (64,),
        bottom: Sequence[int] = (64,),
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        vector_width: int | None = None,
    ) -> None:
        super().__init__()
        for name, value in {"layers": layers, "fmb": fmb, "lcb": lcb, "rank": rank}.items():
            check_whole(name, value)
        self.vectors = EqualWidth(schema, "Wukong", vector_width)
        dim, numbers = self.vectors.width, schema.numeric_width
        self.bottom = mlp(numbers, [*bottom, dim])[0] if numbers else None
        fields = [len(schema.categorical) + (numbers > 0)] + [fmb + lcb] * (layers - 1)
        self.layers = nn.Sequential(*(WukongLayer(n, dim, fmb, lcb, rank, fmb_hidden) for n in fields))
        self.top, last = mlp((fmb + lcb) * dim, hidden, dropout=dropout)
        self.head = OutputLayer(last, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        used = [] if self.bottom is None else [self.bottom]
        return [
            (self._fields, *used, self.vectors),
            *self.layers,
            partial(torch.flatten, start_dim=1),
            *self.top,
            self.head,
        ]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        logits: Tensor = self.head(self.top(self.layers(self._fields(batch)).flatten(1)))
        return logits

    def _fields(self, batch: EmbeddedBatch) -> Tensor:
        vectors: Tensor = self.vectors(batch)
        if self.bottom is not None:
            vectors = torch.cat([self.bottom(batch.numeric).unsqueeze(1), vectors], dim=1)
        return vectors
