"""FinalMLP: two-stream MLP."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.common import (
    FeatureGate,
    OutputLayer,
    Ranker,
    check_whole,
    input_width,
    mlp,
    num_outputs,
)
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class FinalMLP(Ranker):
    """Two MLPs over the same input, fused by a bilinear form in `heads` subspaces.

    `b + w1 o1 + w2 o2 + sum over heads of o1_h W_h o2_h`. With `context1` or `context2`, a gate computed from
    the named features reweights each stream's input, so that the streams differ (often user against item).

    Reference: Mao et al., "FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction", AAAI 2023.

    Args:
        schema: labels and features; dims may differ.
        hidden: widths of the first stream's layers, default 256 and 128.
        hidden2: widths of the second stream's layers; default None, as `hidden`.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.
        heads: subspaces of the fusion; must divide both output widths. Default 1.
        context1, context2: categorical features that gate a stream; default none. If only one is given, the
            gate of the other stream is a learned constant.

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        hidden2: Sequence[int] | None = None,
        dropout: float = 0.0,
        batch_norm: bool = False,
        heads: int = 1,
        context1: Sequence[str] = (),
        context2: Sequence[str] = (),
    ) -> None:
        super().__init__()
        width, outputs = input_width(schema, "FinalMLP"), num_outputs(schema)
        check_whole("heads", heads)
        gated = bool(context1 or context2)
        self.gates = nn.ModuleList(FeatureGate(schema, c) for c in (context1, context2) if gated)
        self.deep1, width1 = mlp(width, hidden, dropout=dropout, batch_norm=batch_norm)
        second = hidden if hidden2 is None else hidden2
        self.deep2, width2 = mlp(width, second, dropout=dropout, batch_norm=batch_norm)
        if width1 % heads or width2 % heads:
            raise ConfigError(f"FinalMLP: heads={heads} must divide the output widths {width1} and {width2}")
        self.linear = OutputLayer(width1 + width2, schema.labels)
        self.fusion = nn.Parameter(torch.empty(heads, width1 // heads, outputs * (width2 // heads)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights of the fusion; the layers set their own."""
        heads, width1, columns = self.fusion.shape
        width2 = columns // self.linear.out_features
        nn.init.normal_(self.fusion, std=(heads * width1 * width2) ** -0.5)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        flat = batch.flat()
        inputs = [flat * gate(batch) for gate in self.gates] or [flat, flat]
        out1, out2 = self.deep1(inputs[0]), self.deep2(inputs[1])
        heads, outputs = len(self.fusion), self.linear.out_features
        left = torch.einsum("bhi,hio->bho", torch.unflatten(out1, 1, (heads, -1)), self.fusion)
        right = torch.unflatten(out2, 1, (heads, 1, -1))
        bilinear = (torch.unflatten(left, 2, (outputs, -1)) * right).sum((1, 3))
        logits: Tensor = self.linear(torch.cat([out1, out2], dim=1)) + bilinear
        return logits
