"""MMoE: multi-gate mixture of experts."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.models.layers.common import Ranker, input_width, num_outputs
from satrap.models.multitask.experts import Experts, MixtureGate, Towers
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class MMoE(Ranker):
    """Experts shared by all labels; each label has its own gate, which mixes the experts, and its own tower.

    `y_k = tower_k(sum over i of softmax(G_k x)_i E_i(x))`. With `experts=1`, this is the shared-bottom model.

    Reference: Ma et al., "Modeling Task Relationships in Multi-task Learning with Multi-gate
    Mixture-of-Experts", KDD 2018.

    Args:
        schema: labels and features; dims may differ.
        experts: number of experts, default 3.
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
        experts: int = 3,
        expert_hidden: Sequence[int] = (256, 128),
        hidden: Sequence[int] = (64,),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        num_outputs(schema)  # raises ConfigError if there are no labels
        width, labels = input_width(schema, "MMoE"), schema.labels
        self.experts = Experts(experts, width, expert_hidden, dropout=dropout, batch_norm=batch_norm)
        self.gates = nn.ModuleList(MixtureGate(width, experts) for _ in labels)
        self.towers = Towers(labels, self.experts.width, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        flat = batch.flat()
        outputs = self.experts(flat)
        logits: Tensor = self.towers([gate(flat, outputs) for gate in self.gates])
        return logits
