"""Transformer blocks over padded sequences, and their positions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.errors import ConfigError
from satrap.models.layers.common import check_whole
from satrap.models.layers.linear import XavierLinear

LONGER = 1.5
"""Largest ratio of lengths in a group of sequences that are padded together."""


class TransformerBlock(nn.Module):
    """Self-attention and two linear layers, each applied to normalised input and added to it.

    `x + dropout(attention(norm(x)))`, then `x + dropout(linear(relu(linear(norm(x)))))`: Vaswani et al.,
    "Attention Is All You Need", NeurIPS 2017, with the order of Kang and McAuley, ICDM 2018.

    Args:
        width: of a token, a multiple of `heads`.
        heads: number of heads.
        hidden: width between the linear layers.
        dropout: probability of zeroing an output of either part in training.

    Raises:
        ConfigError: an invalid argument.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        for name, value in {"width": width, "heads": heads, "hidden": hidden}.items():
            check_whole(name, value)
        if width % heads:
            raise ConfigError(f"width {width} must be a multiple of heads {heads}")
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.out = XavierLinear(width, 3 * width), XavierLinear(width, width)
        self.up, self.down = XavierLinear(width, hidden), XavierLinear(hidden, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, hidden: Tensor | None = None) -> Tensor:
        """Return float32[sequences, length, width].

        Args:
            x: tokens of that shape.
            hidden: bool[sequences, length], True for padding that no token attends to; None: each token
                attends to itself and the tokens before it.
        """
        count, length, width = x.shape
        parts = self.project(self.norms[0](x)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mask = None if hidden is None else ~hidden[:, None, None, :]
        seen = F.scaled_dot_product_attention(query, key, value, mask, is_causal=hidden is None)
        x = x + self.dropout(self.out(seen.transpose(1, 2).reshape(count, length, width)))
        result: Tensor = x + self.dropout(self.down(F.relu(self.up(self.norms[1](x)))))
        return result


def groups_by_length(lengths: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the positions of sequences that are padded together, from short to long; empty ones are left out.

    Args:
        lengths: int64[sequences].
    """
    order = np.argsort(lengths, kind="stable")
    ordered = lengths[order]
    at = int(np.searchsorted(ordered, 1))
    while at < len(order):
        end = int(np.searchsorted(ordered, max(ordered[at] + 4, int(LONGER * ordered[at])), "right"))
        yield order[at:end]
        at = end


def padded(
    rows: Tensor, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[Tensor, Tensor]:
    """Return sequences padded to the longest, and their padding.

    Args:
        rows: float32[tokens, width].
        starts: int64[sequences], the first token of each.
        lengths: int64[sequences], at least 1.

    Returns:
        float32[sequences, longest, width], whose padding has rows of other tokens, and bool[sequences,
        longest], True for padding.
    """
    steps = np.arange(lengths.max())
    index = torch.from_numpy((starts[:, None] + steps).clip(max=len(rows) - 1))
    beyond = torch.from_numpy(steps >= lengths[:, None])
    return rows[index.to(rows.device)], beyond.to(rows.device)


def from_the_end(lengths: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """Return each token's distance to the last of its sequence, int64[sequences, longest]; 0 for padding."""
    places = lengths[:, None] - 1 - np.arange(lengths.max())
    return torch.from_numpy(places.clip(min=0)).to(device)
