"""SASRec: self-attention over a history, to predict its next item."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from satrap.models.layers.common import check_whole
from satrap.models.layers.transformer import TransformerBlock, from_the_end
from satrap.models.retrieval.next_item import NextItem, Whole
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class SASRec(NextItem):
    """A causal transformer over the events of a history; its last output is compared with vectors of items.

    A token is the row of its event times the root of the width, plus a vector of its position, counted from
    the last event. See `NextItem` for the features that it needs, and `satrap.losses` for its loss.

    Reference: Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018; trained with a sampled
    softmax as in Klenitskiy and Vasilev, "Turning Dross Into Gold Loss: is BERT4Rec really better than
    SASRec?", RecSys 2023.

    Args:
        schema: one label with one output, a sequence with `max_values`, and the features of the item.
        layers: number of blocks, default 2.
        heads: heads of each block, default 2; the dim of the item's table is a multiple.
        hidden: width between the linear layers of a block; default: the dim.
        dropout: probability of zeroing a token, or an output of a block's parts, in training; default 0.2.
        every_event: also predict each event of the history; default False, see `NextItem`.

    Raises:
        ConfigError: the schema does not fit, see `NextItem`, or an invalid argument.
    """

    needs = ("sequence", "shared table", "one label")

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        layers: int = 2,
        heads: int = 2,
        hidden: int | None = None,
        dropout: float = 0.2,
        every_event: bool = False,
    ) -> None:
        super().__init__(schema, every_event=every_event)
        check_whole("layers", layers)
        self.places = nn.Parameter(torch.empty(self.longest, self.width))
        self.dropout = nn.Dropout(dropout)
        width, inner = self.width, hidden or self.width
        self.blocks = nn.ModuleList(TransformerBlock(width, heads, inner, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial vectors of positions and of an empty history."""
        super().reset_parameters()
        nn.init.normal_(self.places, std=0.02)

    def encoded(self, events: Tensor, lengths: Whole, padding: Tensor) -> Tensor:
        """See `NextItem.encoded`."""
        places = self.places[from_the_end(lengths, events.device)]
        x = self.dropout(events * math.sqrt(self.width) + places)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.norm(x)
        return result
