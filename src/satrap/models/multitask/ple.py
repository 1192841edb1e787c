"""PLE: progressive layered extraction."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import Ranker, check_whole, input_width, num_outputs
from satrap.models.multitask.experts import Experts, Level, Towers
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class PLE(Ranker):
    """Shared experts and separate experts per label, so that conflicting labels interfere less.

    Reference: Tang et al., "Progressive Layered Extraction (PLE): A Novel Multi-Task Learning (MTL) Model for
    Personalized Recommendations", RecSys 2020.

    Args:
        schema: labels and features; dims may differ.
        levels: levels of experts, default 2.
        own_experts, shared_experts: experts per level, for each label and shared by all, default 2 each.
        expert_hidden: widths of each expert's layers, default 256 and 128.
        hidden: widths of the hidden layers of each label's tower, default 64.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        levels: int = 2,
        own_experts: int = 2,
        shared_experts: int = 2,
        expert_hidden: Sequence[int] = (256, 128),
        hidden: Sequence[int] = (64,),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        check_whole("levels", levels)
        num_outputs(schema)  # raises ConfigError if there are no labels
        width, labels = input_width(schema, "PLE"), schema.labels
        self.levels = nn.ModuleList()
        for level in range(levels):
            counts = [own_experts] * len(labels) + [shared_experts]
            experts = [
                Experts(n, width, expert_hidden, dropout=dropout, batch_norm=batch_norm) for n in counts
            ]
            self.levels.append(Level(experts, width, last=level == levels - 1))
            width = experts[0].width
        self.towers = Towers(labels, width, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        streams = [batch.flat()] * (len(self.towers.towers) + 1)
        for level in self.levels:
            streams = level(streams)
        logits: Tensor = self.towers(streams)
        return logits
