"""ESMM: entire space multi-task model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.common import Ranker, input_width
from satrap.models.multitask.experts import Towers
from satrap.runtime.arguments import checked
from satrap.schema import Label, Schema


class ESMM(Ranker):
    """Clicks and conversions, both learned from all impressions: p(both) = p(click) p(conversion | click).

    The first label is the click. The second is 1 for impressions that were clicked and converted, and 0, not
    missing, for all others. One tower has the logit a of a click, another the logit b of a conversion after
    a click. Outputs are a and the logit of the product, `-log(exp(-a) + exp(-b) + exp(-a - b))`, so the usual
    loss teaches both. The conversion rate after a click is the second prediction divided by the first.

    Reference: Ma et al., "Entire Space Multi-Task Model: An Effective Approach for Estimating Post-Click
    Conversion Rate", SIGIR 2018.

    Args:
        schema: two binary labels, the click and then the conversion, and features; dims may differ.
        hidden: widths of the hidden layers of each tower, default 256 and 128.
        dropout: probability of zeroing a hidden activation in training, default 0.
        batch_norm: normalise before each ReLU, default off.

    Raises:
        ConfigError: other labels, more conversions than clicks, a feature with pooling "none", or an invalid
            argument.
    """

    needs = ("click, conversion",)

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        labels, width = _of_towers(schema.labels), input_width(schema, "ESMM")
        self.towers = Towers(labels, width, hidden, dropout=dropout, batch_norm=batch_norm)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, 2]: of a click, and of a click with a conversion."""
        click, conversion = self.towers([batch.flat()] * 2).unbind(1)
        both = -torch.logsumexp(torch.stack([-click, -conversion, -click - conversion]), dim=0)
        return torch.stack([click, both.to(click.dtype)], dim=1)


def _of_towers(labels: Sequence[Label]) -> list[Label]:
    """Return the labels of the towers: the click, and the conversion of clicked impressions."""
    if len(labels) != 2 or any(label.kind != "binary" for label in labels):
        listed = ", ".join(f"{label.name} ({label.kind})" for label in labels) or "no labels"
        raise ConfigError(
            f"ESMM needs two binary labels, the click and then the conversion, but the schema has {listed}",
            fix="list both columns, such as labels: [clicked, bought], or use dnn, mmoe or ple",
        )
    click, conversion = labels
    if not click.mean or not conversion.mean:
        return [click, conversion]
    if conversion.mean > click.mean:
        shares = (f"{label.name} is 1 in {label.mean:.3%}" for label in labels)
        raise ConfigError(
            f"ESMM has more conversions than clicks: {', '.join(shares)} of the rows",
            why="a conversion needs a click, so the first label must be the more frequent",
            fix=f"list the click first, and let {conversion.name} be 0 in rows without a click",
        )
    rate = conversion.mean / click.mean
    return [click, replace(conversion, mean=rate if rate < 1 else None)]
