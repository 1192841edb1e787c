"""SASRec: self-attention over a history, to predict its next item."""

from __future__ import annotations

import math
from dataclasses import replace

from torch import Tensor

from satrap.batch import JaggedRows
from satrap.models.layers.encoders import TransformerEncoder
from satrap.models.retrieval.next_item import NextItem
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class SASRec(NextItem):
    """A causal transformer over the events of a history; its last output is compared with vectors of items.

    A token is the row of its event times the root of the width, plus a vector of its position, counted from
    the last event. See `NextItem` for the features that it needs, and `satrap.losses` for its loss.

    Reference: Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018. For its training with
    a softmax over many negatives, see Klenitskiy and Vasilev, "Turning Dross Into Gold Loss: is BERT4Rec
    really better than SASRec?", RecSys 2023.

    Args:
        schema: one label with one output, a sequence with `max_values`, and the features of the item.
        layers: number of blocks, default 2.
        heads: heads of each block, default 2; the dim of the item's table is a multiple.
        dropout: probability of zeroing a token, or an output of a block's parts, in training; default 0.2.
        every_event: training also predicts each event of the history from earlier ones; for data with one row
            per history. Default False, for data with one row per event.

    Raises:
        ConfigError: the schema does not fit, see `NextItem`, or an invalid argument.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.2,
        every_event: bool = False,
    ) -> None:
        super().__init__(schema, every_event=every_event)
        self.encoder = TransformerEncoder(
            self.width, self.longest, layers=layers, heads=heads, causal=True, dropout=dropout
        )
        self.reset_parameters()

    def encoded(self, events: JaggedRows, *, last: bool) -> Tensor:
        """See `NextItem.encoded`."""
        scaled = replace(events, values=events.values * math.sqrt(self.width))
        return self.encoder(scaled, last=last)  # type: ignore[no-any-return]
