"""RankMixer: feature tokens that exchange parts, and a network for each token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.blocks import MixerBlock
from satrap.models.layers.common import OutputLayer, Ranker, check_whole, input_width, mlp
from satrap.models.layers.linear import XavierLinear
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class RankMixer(Ranker):
    """Blocks over feature tokens: each mixes the tokens without weights, then applies a network per token.

    Nearly all time is spent in large matrix products. The features, in schema order, and then the numbers are
    cut into `tokens` pieces of nearly equal width, so place related features next to each other.

    Reference: Zhu et al., "RankMixer: Scaling Up Ranking Models in Industrial Recommenders", arXiv
    2507.15551, 2025, without its sparse mixture of experts. The blocks have about `2 * expansion * layers *
    tokens * width^2` weights. Published sizes: 2 layers of 16 tokens of width 768, and 2 layers of 32 tokens
    of width 1536, a billion weights.

    Args:
        schema: labels and features; dims may differ.
        layers: number of blocks, default 2.
        tokens: number of tokens, at most the columns of all features, default 4.
        width: width of a token, a multiple of `tokens`, default 64.
        expansion: hidden width of a token's network, in units of `width`, default 4.
        hidden: widths of an MLP on the mean of the tokens, default none.
        dropout: probability of zeroing a hidden activation of that MLP in training, default 0.

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        layers: int = 2,
        tokens: int = 4,
        width: int = 64,
        expansion: int = 4,
        hidden: Sequence[int] = (),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        sizes = {"layers": layers, "tokens": tokens, "width": width, "expansion": expansion}
        for name, value in sizes.items():
            check_whole(name, value)
        columns = input_width(schema, "RankMixer")
        if tokens > columns or width % tokens:
            raise ConfigError(
                f"RankMixer cannot make {tokens} tokens of width {width} from {columns} columns of features",
                fix=f"set tokens to at most {columns}, and width to a multiple of tokens",
            )
        pieces = [len(piece) for piece in torch.tensor_split(torch.arange(columns), tokens)]
        self.project = nn.ModuleList(XavierLinear(piece, width) for piece in pieces)
        self.blocks = nn.Sequential(*(MixerBlock(tokens, width, expansion) for _ in range(layers)))
        self.deep, last = mlp(width, hidden, dropout=dropout)
        self.head = OutputLayer(last, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        mean = partial(torch.mean, dim=1)
        return [(self._tokens, self.project), *self.blocks, mean, *self.deep, self.head]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        logits: Tensor = self.head(self.deep(self.blocks(self._tokens(batch)).mean(1)))
        return logits

    def _tokens(self, batch: EmbeddedBatch) -> Tensor:
        pieces = torch.tensor_split(batch.flat(), len(self.project), dim=1)
        return torch.stack([project(x) for project, x in zip(self.project, pieces, strict=True)], dim=1)
