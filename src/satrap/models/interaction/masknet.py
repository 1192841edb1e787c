"""MaskNet: layers whose inputs are multiplied by masks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.blocks import MaskBlock
from satrap.models.layers.common import OutputLayer, Ranker, check_whole, input_width, mlp
from satrap.models.layers.fields import FieldNorm
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class MaskNet(Ranker):
    """Blocks that multiply their input by a mask computed from all features, so that products are explicit.

    A block is `relu(LN(W (x * mask)))` with `mask = W2 relu(W1 x0)`, x0 all vectors and numbers. The first
    input x is x0 with each feature's vector normalised. Serial blocks follow each other; parallel blocks all
    read the first input, and an MLP reads their outputs side by side.

    Reference: Wang et al., "MaskNet: Introducing Feature-Wise Multiplication to CTR Ranking Models by
    Instance-Guided Mask", DLP-KDD 2021.

    Args:
        schema: labels and features; dims may differ.
        blocks: output width of each block, default three blocks of width 64.
        structure: "parallel" (default) or "serial".
        reduction: hidden width of a mask, in units of its output width, default 0.5.
        hidden: widths of the MLP after the blocks, default 256 and 128. The paper's serial model has none.
        dropout: probability of zeroing an output of a block, or a hidden activation, in training, default 0.
        normalise: normalise the vectors that the first blocks read, default on.

    Raises:
        ConfigError: no labels, a feature with pooling "none", or an invalid argument.
    """

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        blocks: Sequence[int] = (64, 64, 64),
        structure: Literal["parallel", "serial"] = "parallel",
        reduction: float = 0.5,
        hidden: Sequence[int] = (256, 128),
        dropout: float = 0.0,
        normalise: bool = True,
    ) -> None:
        super().__init__()
        if structure not in ("parallel", "serial"):
            raise ConfigError(f"structure must be parallel or serial, got {structure!r}")
        if not blocks or not reduction > 0:
            raise ConfigError(f"MaskNet needs blocks and reduction > 0, got {blocks!r} and {reduction!r}")
        for size in blocks:
            check_whole("the width of a block", size)
        columns = input_width(schema, "MaskNet")
        dims = [feature.dim for feature in schema.categorical.values()]
        self.norm = FieldNorm(dims, schema.numeric_width) if normalise and dims else nn.Identity()
        self.parallel = structure == "parallel"
        inputs = [columns] * len(blocks) if self.parallel else [columns, *blocks[:-1]]
        self.blocks = nn.ModuleList(
            MaskBlock(columns, width, out, reduction=reduction, dropout=dropout)
            for width, out in zip(inputs, blocks, strict=True)
        )
        self.deep, last = mlp(sum(blocks) if self.parallel else blocks[-1], hidden, dropout=dropout)
        self.head = OutputLayer(last, schema.labels)

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        step = _added if self.parallel else _replaced
        blocks = [(partial(step, block), block) for block in self.blocks]
        return [(self._inputs, self.norm), *blocks, self._joined, *self.deep, self.head]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        step, state = _added if self.parallel else _replaced, self._inputs(batch)
        for block in self.blocks:
            state = step(block, *state)
        logits: Tensor = self.head(self.deep(self._joined(*state)))
        return logits

    def _inputs(self, batch: EmbeddedBatch) -> tuple[Tensor, ...]:
        x0 = batch.flat()
        return x0, self.norm(x0)

    def _joined(self, x0: Tensor, x: Tensor, *outputs: Tensor) -> Tensor:
        return torch.cat(outputs, dim=1) if self.parallel else x


def _added(block: nn.Module, x0: Tensor, x: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
    return x0, x, *outputs, block(x0, x)


def _replaced(block: nn.Module, x0: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    return x0, block(x0, x)
