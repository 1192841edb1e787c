"""DIEN, the Deep Interest Evolution Network: interests evolve from event to event towards the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import OutputLayer, Ranker, flat_width, mlp
from satrap.models.layers.history import TargetedHistory, joined, last_of, segment_softmax
from satrap.models.layers.recurrent import GRU, steps_of
from satrap.models.layers.target_attention import ACTIVATIONS, Activation, TargetScore
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class DIEN(Ranker):
    """A recurrent network over the events of a history, and a second one whose steps the target weighs.

    A GRU reads the events `[e_j, c_j]` from the first to the last; its states h_j are as wide as e_j. A
    second GRU reads the h_j, its update gates multiplied by `a_j = softmax_j MLP[e_t, h_j, e_t - h_j,
    e_t * h_j]` (AUGRU). An MLP of its last state and all features outside the history computes the logits.
    Features find their target as in `DIN`, whose e_j, c_j and e_t these are; histories should be from the
    oldest to the latest event, and may be empty.

    Reference: Zhou et al., "Deep Interest Evolution Network for Click-Through Rate Prediction", AAAI 2019,
    arXiv 1809.03672. The auxiliary loss of the paper, which draws events that did not happen, is left out: a
    model here has no loss of its own, and the best published runs (BARS) give it the weight 0. Published size
    (FuxiCTR): attention 256-128, MLP 1024-512-256. Long histories are slow, because steps follow one another.

    Args:
        schema: labels and features; one sequence, with `max_values`.
        attention: widths of the hidden layers of the weights' MLP, default 64.
        softmax: weights of a history have the sum 1, default on; off: each weight is a sigmoid.
        activation: of both MLPs, "relu" or "dice", default "relu"; see `DIN`.
        context: features of the history that are not compared with the target, default none.
        hidden: widths of the MLP's hidden layers, default 128.
        dropout: probability of zeroing a hidden activation of the MLP in training, default 0.

    Raises:
        ConfigError: as in `DIN`.
    """

    needs = ("sequence", "target")

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        attention: Sequence[int] = (64,),
        softmax: bool = True,
        activation: Activation = "relu",
        context: Sequence[str] = (),
        hidden: Sequence[int] = (128,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.history, self.softmax = TargetedHistory(schema, "DIEN", context), softmax
        width = self.history.width
        self.interests = GRU(width + self.history.extra, width)
        self.score = TargetScore(width, 0, attention, activation)
        self.evolution = GRU(width, width)
        self.deep, last = mlp(
            flat_width(schema) + width, hidden, dropout=dropout, activation=ACTIVATIONS[activation]
        )
        self.head = OutputLayer(last, schema.labels)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        events = self.history.events(batch)
        steps = steps_of(events.bounds(), events.values.device)
        states = self.interests(joined([events.values, *self.history.described(batch)]), steps)
        scores = self.score(self.history.target(batch), states, [], events.offsets)
        weights = segment_softmax(scores, events.offsets) if self.softmax else torch.sigmoid(scores)
        last = last_of(self.evolution(states, steps, weights), events.offsets)
        logits: Tensor = self.head(self.deep(torch.cat([batch.flat(), last], dim=1)))
        return logits
