"""The vectors of fields: brought to one width, made from numbers, and their interactions."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import check_categorical, check_pooled, check_whole
from satrap.models.layers.linear import XavierLinear
from satrap.schema import Schema


class EqualWidth(nn.Module):
    """The vectors of all categorical features at one width: a learned matrix for each feature of another dim.

    If all dims are equal to the width, the module has no weights and returns `batch.stack()`.

    Ginart et al., "Mixed Dimension Embeddings with Application to Memory-Efficient Recommendation Systems",
    ISIT 2021.

    Args:
        schema: the features.
        model: the model's name, for errors.
        width: width of the vectors; default None, the largest dim.
        tail: number of last columns of each row that are not part of its vector; they stay as they are.

    Attributes:
        width: width of the vectors.

    Raises:
        ConfigError: no categorical feature, one with pooling "none", or an invalid width.
    """

    def __init__(self, schema: Schema, model: str, width: int | None = None, *, tail: int = 0) -> None:
        super().__init__()
        check_pooled(schema, model)
        check_categorical(schema, model)
        dims = {name: feature.dim for name, feature in schema.categorical.items()}
        self.width = max(dims.values()) if width is None else width
        check_whole("width", self.width)
        self.tail = tail
        self.places = {name: place for place, name in enumerate(k for k, d in dims.items() if d != self.width)}
        self.maps = nn.ModuleList(XavierLinear(dims[name], self.width, bias=False) for name in self.places)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return float32[size, features, width + tail]."""
        if not self.places:
            return batch.stack()
        return torch.stack([self._mapped(name, batch[name]) for name in batch.pooled()], dim=1)

    def _mapped(self, name: str, rows: Tensor) -> Tensor:
        if name not in self.places:
            return rows
        project = self.maps[self.places[name]]
        if not self.tail:
            return project(rows)  # type: ignore[no-any-return]
        vectors, rest = rows[:, : -self.tail], rows[:, -self.tail :]
        return torch.cat([project(vectors), rest], dim=1)
