"""BERT4Rec: attention to both sides of hidden events of a history, to predict its next item."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor, nn

from satrap.batch import JaggedRows
from satrap.errors import ConfigError
from satrap.models.layers.attention import with_last
from satrap.models.layers.encoders import TransformerEncoder
from satrap.models.retrieval.next_item import NextItem, Whole
from satrap.pairs import TrainedEvents
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class BERT4Rec(NextItem):
    """A transformer that sees the whole history, and a mask in the place of the next item.

    The output at the mask is compared with vectors of items. In training, some events are replaced by the
    mask as well, and the output there is compared with the vector of the event. See `NextItem` for the
    features that it needs, and `satrap.losses` for its loss.

    Reference: Sun et al., "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations
    from Transformer", CIKM 2019.

    Args:
        schema: one label with one output, a sequence with `max_values`, and the features of the item.
        layers: number of blocks, default 2.
        heads: heads of each block, default 2; the dim of the item's table is a multiple.
        dropout: probability of zeroing a token, or an output of a block's parts, in training; default 0.2.
        masked: probability of masking an event in training, default 0.2; the paper has 0.2 to 0.6.

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
        masked: float = 0.2,
    ) -> None:
        super().__init__(schema, every_event=False)
        if not 0 <= masked < 1:
            raise ConfigError(f"BERT4Rec: masked must be >= 0 and < 1, got {masked}")
        self.masked = masked
        self.trained_events = TrainedEvents(self.pairs, first=True, share=masked) if masked else None
        self.mask = nn.Parameter(torch.empty(self.width))
        self.encoder = TransformerEncoder(
            self.width, self.longest + 1, layers=layers, heads=heads, causal=False, dropout=dropout
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial vectors of the mask and of an empty history."""
        super().reset_parameters()
        nn.init.normal_(self.mask, std=0.02)

    def encoded(self, events: JaggedRows, *, last: bool) -> Tensor:
        """See `NextItem.encoded`; without `last`, each history has one more output, at its mask."""
        bounds = events.bounds()
        masks = self.mask.expand(len(bounds) - 1, -1)
        order = torch.from_numpy(with_last(bounds)).to(events.values.device)
        tokens = torch.cat((events.values * math.sqrt(self.width), masks)).index_select(0, order)
        ends = bounds + np.arange(len(bounds))
        offsets = torch.from_numpy(ends).to(events.values.device)
        return self.encoder(JaggedRows(tokens, offsets, ends), last=last)  # type: ignore[no-any-return]

    def trained(self, events: JaggedRows) -> tuple[Tensor, Tensor, Whole]:
        """See `NextItem.trained`."""
        hidden = (torch.rand(len(events.values)) < self.masked).to(events.values.device)
        values = torch.where(hidden.unsqueeze(1), self.mask / math.sqrt(self.width), events.values)
        outputs = self.encoded(JaggedRows(values, events.offsets, events.on_host), last=False)
        bounds, places = events.bounds(), np.flatnonzero(hidden.cpu().numpy())
        histories = np.searchsorted(bounds, places, side="right") - 1
        chosen = np.concatenate((bounds[1:] + np.arange(len(bounds) - 1), places + histories))
        picked = outputs.index_select(0, torch.from_numpy(chosen).to(outputs.device))
        return picked[: len(bounds) - 1], picked[len(bounds) - 1 :], places
