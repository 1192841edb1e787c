"""DIN, the Deep Interest Network: a sum of events, each weighted by how much it matters for the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import OutputLayer, Ranker, flat_width, mlp
from satrap.models.layers.history import TargetedHistory, joined, segment_softmax, segment_sum
from satrap.models.layers.target_attention import ACTIVATIONS, Activation, TargetScore
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class DIN(Ranker):
    """The interest in a target: `v = sum_j a_j [e_j, c_j]` over the events j of a history.

    `a_j = 1 + MLP[e_t, e_j, e_t - e_j, e_t * e_j, c_j]` with one output; because of the 1, v starts as about
    the sum of the events. e_j are an event's rows, e_t the target's: each feature of the history is compared
    with the feature outside it that shares its table, so set `table: item` in the items seen. c_j are numbers
    of the event, and features in `context`, which have no target. An MLP of v and all features outside the
    history computes the logits. By default weights are not normalised, so that v also shows how strong the
    interest is. Histories may be empty.

    Reference: Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018, arXiv
    1706.06978. Published size (FuxiCTR): attention 512-256, MLP 1024-512-256, rows of 64, up to 100 events.

    Args:
        schema: labels and features; one sequence, with `max_values`.
        attention: widths of the hidden layers of the weights' MLP, default 64.
        softmax: normalise the weights of a history to the sum 1, default off.
        activation: of both MLPs, "relu" or "dice", default "relu". Dice normalises over the batch in
            training, as batch normalization does.
        context: features of the history that are not compared with the target, default none.
        hidden: widths of the MLP's hidden layers, default 128.
        dropout: probability of zeroing a hidden activation of the MLP in training, default 0.

    Raises:
        ConfigError: no labels, not exactly one sequence, no `max_values`, a feature of the sequence that
            neither shares a table with one outside nor is in `context`, another feature with pooling "none",
            or an invalid argument.
    """

    needs = ("sequence", "target")

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        attention: Sequence[int] = (64,),
        softmax: bool = False,
        activation: Activation = "relu",
        context: Sequence[str] = (),
        hidden: Sequence[int] = (128,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.history, self.softmax = TargetedHistory(schema, "DIN", context), softmax
        width, extra = self.history.width, self.history.extra
        self.score = TargetScore(width, extra, attention, activation)
        self.deep, last = mlp(
            flat_width(schema) + width + extra, hidden, dropout=dropout, activation=ACTIVATIONS[activation]
        )
        self.head = OutputLayer(last, schema.labels)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        events, context = self.history.events(batch), self.history.described(batch)
        weights = 1 + self.score(self.history.target(batch), events.values, context, events.offsets)
        if self.softmax:
            weights = segment_softmax(weights, events.offsets)
        interest = segment_sum(weights * joined([events.values, *context]), events.offsets)
        logits: Tensor = self.head(self.deep(torch.cat([batch.flat(), interest], dim=1)))
        return logits
