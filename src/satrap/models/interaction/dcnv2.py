"""DCN-V2: deep and cross network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.common import (
    CrossLayer,
    OutputLayer,
    Ranker,
    beside,
    check_whole,
    input_width,
    mlp,
)
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class DCNv2(Ranker):
    """Cross layers, which multiply features explicitly up to degree `cross_layers + 1`, and an MLP.

    Reference: Wang et al., "DCN V2: Improved Deep & Cross Network", WWW 2021. Structure "stacked" with
    `bottom` and `rank` is DLRM-DCNv2 of MLPerf Training: github.com/mlcommons/training,
    recommendation_v2/torchrec_dlrm.

    If all labels start at their means (`Label.mean`, `start_at_mean`), cross layers start at 0. With
    structure "parallel", the network then first learns a linear model of its input.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the hidden layers, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.
        cross_layers: number of cross layers, default 3.
        rank: rank of the cross matrices; default None, full rank. A quarter of the input width halves the
            cost.
        bottom: widths of a ReLU MLP on the numbers, whose output replaces them. Default: none. MLPerf's last
            width is the dim of the features.
        structure: "parallel" (default; cross and MLP read the input) or "stacked" (the MLP reads the cross).

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

    _gated = False

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
        cross_layers: int = 3,
        rank: int | None = None,
        bottom: Sequence[int] = (),
        structure: Literal["parallel", "stacked"] = "parallel",
    ) -> None:
        super().__init__()
        check_whole("cross_layers", cross_layers)
        check_whole("rank", 1 if rank is None else rank)
        if structure not in ("parallel", "stacked"):
            raise ConfigError(f"structure must be parallel or stacked, got {structure!r}")
        numbers = schema.numeric_width
        self.bottom, bottom_width = mlp(numbers, bottom if numbers else (), batch_norm=batch_norm)
        width = input_width(schema, type(self).__name__) - numbers + bottom_width
        zero = all(label.first_output is not None for label in schema.labels)
        layers = (CrossLayer(width, rank, zero=zero, gated=self._gated) for _ in range(cross_layers))
        self.cross = nn.ModuleList(layers)
        self.deep, deep_width = mlp(width, hidden, dropout=dropout, batch_norm=batch_norm)
        self.parallel = structure == "parallel"
        self.head = OutputLayer(deep_width + width * self.parallel, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        cross = [(partial(_crossed, layer), layer) for layer in self.cross]
        if self.parallel:
            deep = [(partial(beside, layer), layer) for layer in self.deep]
            head = (lambda x, deep: self.head(torch.cat([x, deep], dim=1)), self.head)
            return [(self._twice, self.bottom), *cross, lambda x0, x: (x, x0), *deep, head]
        return [(self._twice, self.bottom), *cross, lambda x0, x: x, *self.deep, self.head]

    def _twice(self, batch: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        """Return the input x0 of all cross layers, twice: also as the x of the first."""
        if len(self.bottom):
            batch = replace(batch, numeric=self.bottom(batch.numeric), beside=None)
        x0 = batch.flat()
        return x0, x0

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        x0, x = self._twice(batch)
        for layer in self.cross:
            x = layer(x0, x)
        logits: Tensor = self.head(torch.cat([x, self.deep(x0)], dim=1) if self.parallel else self.deep(x))
        return logits


def _crossed(layer: nn.Module, x0: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return x0, layer(x0, x)
