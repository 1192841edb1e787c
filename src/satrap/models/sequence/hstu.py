"""HSTU: attention over a history, with the item to rank as the query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from satrap.batch import EmbeddedBatch, JaggedRows
from satrap.errors import ConfigError
from satrap.models.layers.attention import HSTUBlock, layout, sight, with_last
from satrap.models.layers.common import OutputLayer, Ranker, check_whole, flat_width, history_of, mlp
from satrap.models.layers.linear import XavierLinear
from satrap.runtime.arguments import checked
from satrap.schema import Schema


class HSTU(Ranker):
    """Attention over a history: its events are tokens, and the sample's other features the last token.

    A token is the sum of its features' rows and numbers, each multiplied by a matrix. Features of one table
    share the matrix, so the items of a history and the item to rank should share a table. In a block, each
    token attends to the tokens before it. An MLP computes the logits from the output of the last token, the
    target, and the other features. Histories may be empty.

    Reference: `satrap.models.layers.attention.HSTUBlock`. A block has about `5 * width^2` weights. Published
    size (the ranker DLRMv3 of MLPerf Inference): 5 layers of width 512 with 4 heads; the default is for a
    CPU. The time grows quadratically with the history's length, linearly with `window`.

    Args:
        schema: labels and features; one sequence, with `max_values`.
        layers: number of blocks, default 2.
        width: width of a token, a multiple of `heads`, default 64.
        heads: heads of each block, default 2.
        window: number of tokens that a token attends to, itself and those just before it; default: all.
        global_tokens: with `window`, number of first events of the history that every token also attends to;
            default 0.
        hidden: widths of the MLP's hidden layers, default 128.
        dropout: probability of zeroing a hidden activation of the MLP in training, default 0.

    Raises:
        ConfigError: no labels, not exactly one sequence, no `max_values`, another feature with pooling
            "none", or an invalid argument.
    """

    needs = ("sequence",)

    @checked()
    def __init__(
        self,
        schema: Schema,
        *,
        layers: int = 2,
        width: int = 64,
        heads: int = 2,
        window: int | None = None,
        global_tokens: int | None = None,
        hidden: Sequence[int] = (128,),
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.seen = sight(window, global_tokens)
        for name, value in {"layers": layers, "width": width, "heads": heads}.items():
            check_whole(name, value)
        if width % heads:
            raise ConfigError(f"HSTU: width {width} must be a multiple of heads {heads}")
        group, length = history_of(schema, "HSTU")
        self.events, self.numbers = group.ids, group.numbers
        dims = {schema.table_of(name): feature.dim for name, feature in schema.categorical.items()}
        self.tables = {name: list(dims).index(schema.table_of(name)) for name in schema.categorical}
        self.project = nn.ModuleList(XavierLinear(dim, width, bias=False) for dim in dims.values())
        self.kinds = nn.Parameter(torch.empty(2, width))  # one vector of all events, one of all targets
        counts = {"0": len(group.numbers), "1": schema.numeric_width}
        self.scales = nn.ModuleDict({k: XavierLinear(n, width, bias=False) for k, n in counts.items() if n})
        self.blocks = nn.ModuleList(HSTUBlock(width, heads, length + 1) for _ in range(layers))
        self.deep, last = mlp(width + flat_width(schema), hidden, dropout=dropout)
        self.head = OutputLayer(last, schema.labels)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial vectors of both kinds of tokens; the layers set their own weights."""
        nn.init.zeros_(self.kinds)

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        history = {name: batch.embeddings[name] for name in self.events}
        rows = {name: jagged.values for name, jagged in history.items() if isinstance(jagged, JaggedRows)}
        bounds = history[self.events[0]].bounds()  # type: ignore[union-attr]
        numbers = [batch.events[name].values for name in self.numbers]
        events = self._tokens(0, int(bounds[-1]), rows, numbers)
        target = self._tokens(1, batch.size, {k: batch[k] for k in batch.pooled()}, [batch.numeric])
        lengths, device = np.diff(bounds) + 1, target.device
        order = torch.from_numpy(with_last(bounds)).to(device)
        x = torch.cat([events, target]).index_select(0, order)
        every, only = (layout(lengths, device, last=last, causal=True, **self.seen) for last in (False, True))
        for number, block in enumerate(self.blocks, 1):  # only the target of the last block is used
            x = block(x, only if number == len(self.blocks) else every)
        logits: Tensor = self.head(self.deep(torch.cat([x, batch.flat()], dim=1)))
        return logits

    def _tokens(self, kind: int, count: int, rows: Mapping[str, Tensor], numbers: list[Tensor]) -> Tensor:
        tokens = self.kinds[kind].expand(count, -1)
        for name, values in rows.items():
            tokens = tokens + self.project[self.tables[name]](values)
        if str(kind) in self.scales:
            tokens = tokens + self.scales[str(kind)](torch.cat(numbers, dim=1))
        return tokens
