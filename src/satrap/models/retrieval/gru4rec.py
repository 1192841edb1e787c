"""GRU4Rec: a recurrent network over a history, to predict its next item."""

from __future__ import annotations

from torch import Tensor, nn

from satrap.batch import JaggedRows
from satrap.models.layers.common import check_dropout
from satrap.models.layers.encoders import GRUEncoder
from satrap.models.layers.history import last_of
from satrap.models.layers.linear import XavierLinear
from satrap.models.retrieval.next_item import NextItem
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class GRU4Rec(NextItem):
    """GRUs over the events of a history; the last state is compared with vectors of items.

    See `NextItem` for the features that it needs, and `satrap.losses` for its loss; `BPR` is the paper's.

    Reference: Hidasi et al., "Session-based Recommendations with Recurrent Neural Networks", ICLR 2016; Tan
    et al., "Improved Recurrent Neural Networks for Session-based Recommendations", DLRS 2016, for dropout of
    events.

    Args:
        schema: one label with one output, a sequence with `max_values`, and the features of the item.
        layers: number of GRUs, default 1.
        hidden: columns of a state, default 128; a linear layer brings it to the dim of the item's table.
        dropout: probability of zeroing a number of an event in training, default 0.2.
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
        layers: int = 1,
        hidden: int = 128,
        dropout: float = 0.2,
        every_event: bool = False,
    ) -> None:
        super().__init__(schema, every_event=every_event)
        check_dropout(dropout)
        self.dropout = nn.Dropout(dropout)
        self.encoder = GRUEncoder(self.width, hidden, layers=layers)
        self.project = XavierLinear(hidden, self.width)
        self.reset_parameters()

    def encoded(self, events: JaggedRows, *, last: bool) -> Tensor:
        """See `NextItem.encoded`."""
        dropped = JaggedRows(self.dropout(events.values), events.offsets, events.on_host)
        states = self.encoder(dropped)
        chosen = last_of(states, events.offsets) if last else states
        result: Tensor = self.project(chosen)
        return result
