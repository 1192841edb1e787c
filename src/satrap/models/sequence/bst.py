"""BST, the Behavior Sequence Transformer: self-attention over a history and the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.models.layers.attention import with_last
from satrap.models.layers.common import OutputLayer, Ranker, check_whole, flat_width, mlp
from satrap.models.layers.encoders import TransformerEncoder, after
from satrap.models.layers.history import TargetedHistory, joined
from satrap.models.layers.linear import XavierLinear
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class BST(Ranker):
    """A transformer over the events of a history and the target, which is the last token.

    A token is `W e + p`, for events `W e_j + V c_j + p`: e_j, c_j and the target e_t are as in `DIN`, p is
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

    needs = ("sequence", "target")

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
        history = self.history = TargetedHistory(schema, "BST", context)
        self.tokens, self.flat = history.length + 1, pooling == "flat"
        check_whole("width", width)
        self.project = XavierLinear(history.width, width, bias=False)
        self.describe = XavierLinear(history.extra, width, bias=False) if history.extra else None
        self.encoder = TransformerEncoder(
            width,
            self.tokens,
            layers=layers,
            heads=heads,
            causal=False,
            activation=nn.LeakyReLU,
            norm_first=False,
        )
        self.deep, last = mlp(
            flat_width(schema) + width * (self.tokens if self.flat else 1), hidden, dropout=dropout
        )
        self.head = OutputLayer(last, schema.labels)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        rows = self.history.events(batch)
        events = self.project(rows.values)
        if self.describe is not None:
            events = events + self.describe(joined(self.history.described(batch)))
        bounds, device = rows.bounds(), events.device
        order = torch.from_numpy(with_last(bounds)).to(device)
        tokens = torch.cat([events, self.project(self.history.target(batch))]).index_select(0, order)
        one_more = np.arange(len(bounds))
        jagged = JaggedRows(tokens, rows.offsets + torch.from_numpy(one_more).to(device), bounds + one_more)
        x = self.encoder(jagged, last=not self.flat)
        if self.flat:
            bounds = jagged.bounds()
            place = np.repeat(np.arange(batch.size), np.diff(bounds)) * self.tokens + after(bounds)
            blank = x.new_zeros(batch.size * self.tokens, x.shape[1])
            x = blank.index_copy(0, torch.from_numpy(place).to(device), x)
            x = x.view(batch.size, self.tokens * x.shape[1])
        logits: Tensor = self.head(self.deep(torch.cat([x, batch.flat()], dim=1)))
        return logits
