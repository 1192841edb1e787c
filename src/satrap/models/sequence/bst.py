"""BST, the Behavior Sequence Transformer: self-attention over a history and the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.attention import TransformerBlock, layout, with_last
from satrap.models.layers.common import OutputLayer, Ranker, check_whole, mlp
from satrap.models.layers.history import TargetedHistory
from satrap.models.layers.linear import XavierLinear
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class BST(Ranker):
    """A transformer over the events of a history and the target, which is the last token.

    A token is `W e + p`, for events `W e_j + V c_j + p`: e_j, c_j and the target e_t are those of `DIN`, p is
    a vector of the position, counted from the target backwards. All tokens attend to each other, with
    softmax. An MLP of the output of the target, or of all tokens, and of all features outside the history
    computes the logits. Histories may be empty.

    Reference: Chen et al., "Behavior Sequence Transformer for E-commerce Recommendation in Alibaba", DLP-KDD
    2019, arXiv 1905.06874. Published size (FuxiCTR): 1 layer, 8 heads, the output of the target, MLP
    1024-512-256, rows of 64, without W.

    Args:
        schema: labels and features; one sequence, with `max_values`.
        layers: number of blocks, default 1.
        width: width of a token, a multiple of `heads`, default 64.
        heads: heads of each block, default 2.
        pooling: "target" (default; the output of the target) or "flat" (the outputs of all tokens, one after
            another; zeros for tokens that a shorter history lacks).
        context: features of the history that are not compared with the target, default none.
        hidden: widths of the MLP's hidden layers, default 128.
        dropout: probability of zeroing a hidden activation of the MLP in training, default 0.

    Raises:
        ConfigError: as in `DIN`, or `width` is not a multiple of `heads`.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        layers: int = 1,
        width: int = 64,
        heads: int = 2,
        pooling: Literal["target", "flat"] = "target",
        context: Sequence[str] = (),
        hidden: Sequence[int] = (128,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, value in {"layers": layers, "width": width, "heads": heads}.items():
            check_whole(name, value)
        if width % heads:
            raise ConfigError(f"BST: width {width} must be a multiple of heads {heads}")
        history = self.history = TargetedHistory(schema, "BST", context)
        self.tokens, self.flat = history.length + 1, pooling == "flat"
        self.project = XavierLinear(history.width, width, bias=False)
        self.describe = XavierLinear(history.beside, width, bias=False) if history.beside else None
        self.positions = nn.Parameter(torch.empty(self.tokens, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, nn.LeakyReLU()) for _ in range(layers))
        outside = sum(f.dim for f in schema.categorical.values() if not f.sequence) + schema.numeric_width
        self.deep, last = mlp(outside + width * (self.tokens if self.flat else 1), hidden, dropout=dropout)
        self.head = OutputLayer(last, schema.labels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial vectors of positions; the layers set their own weights."""
        nn.init.zeros_(self.positions)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        jagged = self.history.events(batch)
        bounds, device = jagged.bounds(), jagged.values.device
        events = self.project(jagged.values)
        if self.describe is not None:
            events = events + self.describe(torch.cat(self.history.described(batch), dim=1))
        lengths = np.diff(bounds) + 1
        after = np.repeat(np.cumsum(lengths), lengths) - np.arange(lengths.sum()) - 1  # tokens after each
        order, distance = (torch.from_numpy(x).to(device) for x in (with_last(bounds), after))
        x = torch.cat([events, self.project(self.history.target(batch))]).index_select(0, order)
        x = x + self.positions.index_select(0, distance)
        every, only = (layout(lengths, device, last=last, causal=False) for last in (False, not self.flat))
        for number, block in enumerate(self.blocks, 1):
            x = block(x, only if number == len(self.blocks) else every)
        if self.flat:
            place = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths)).to(device) * self.tokens
            blank = x.new_zeros(len(lengths) * self.tokens, x.shape[1])
            x = blank.index_copy(0, place + distance, x).view(len(lengths), self.tokens * x.shape[1])
        logits: Tensor = self.head(self.deep(torch.cat([x, batch.flat()], dim=1)))
        return logits
