"""Encoders of sequences of different lengths: a vector for each event, from its sequence."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from satrap.batch import JaggedRows
from satrap.errors import ConfigError
from satrap.models.layers.attention import TransformerBlock, layout
from satrap.models.layers.common import check_dropout, check_whole
from satrap.models.layers.recurrent import GRU, steps_of


class TransformerEncoder(nn.Module):
    """Transformer blocks over the events of each sequence, with vectors of positions.

    A position is the number of events after an event, so the last event has the same one in sequences of any
    length. No padding to the longest sequence.

    Args:
        width: columns of an event, a multiple of `heads`.
        length: most events of a sequence.
        layers: number of blocks, default 2.
        heads: heads of each block, default 2.
        causal: an event attends to itself and earlier events only, as in SASRec (Kang and McAuley, ICDM
            2018); off: to all events, as in BERT4Rec (Sun et al., CIKM 2019).
        activation: of the blocks, default GELU.
        norm_first: see `TransformerBlock`; then also the output is normalised. Default on.
        dropout: probability of zeroing a number of a token, or an output of a block's parts, in training;
            default 0.

    Raises:
        ConfigError: an invalid size.
    """

    def __init__(
        self,
        width: int,
        length: int,
        *,
        layers: int = 2,
        heads: int = 2,
        causal: bool,
        activation: type[nn.Module] = nn.GELU,
        norm_first: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        for name, value in {"layers": layers, "width": width, "heads": heads}.items():
            check_whole(name, value)
        check_dropout(dropout)
        if width % heads:
            raise ConfigError(f"width {width} must be a multiple of heads {heads}")
        self.causal = causal
        self.positions = nn.Parameter(torch.empty(length, width))
        self.blocks = nn.ModuleList(
            TransformerBlock(width, heads, activation(), norm_first=norm_first, dropout=dropout)
            for _ in range(layers)
        )
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width) if norm_first else nn.Identity()
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial vectors of positions; the layers set their own weights."""
        nn.init.zeros_(self.positions)

    def forward(self, events: JaggedRows, *, last: bool = False) -> Tensor:
        """Return float32[n, width] of all events; with `last`, float32[size, width] of the last events.

        Args:
            events: float32[n, width].
            last: compute only the last event of each sample; no sample may be empty.
        """
        bounds, device = events.bounds(), events.values.device
        lengths = np.diff(bounds)
        lengths = lengths[lengths > 0]
        places = torch.from_numpy(after(bounds)).to(device)
        x = self.dropout(events.values + self.positions.index_select(0, places))
        seen = [layout(lengths, device, last=only, causal=self.causal) for only in (False, last)]
        for number, block in enumerate(self.blocks, 1):
            x = block(x, seen[number == len(self.blocks)])
        outputs: Tensor = self.norm(x)
        return outputs


class GRUEncoder(nn.Module):
    """GRUs one above the other over the events of each sequence, as in GRU4Rec (Hidasi et al., ICLR 2016).

    Args:
        inputs: columns of an event.
        width: columns of a state.
        layers: number of GRUs, default 1.

    Raises:
        ConfigError: an invalid size.
    """

    def __init__(self, inputs: int, width: int, *, layers: int = 1) -> None:
        super().__init__()
        for name, value in {"layers": layers, "width": width}.items():
            check_whole(name, value)
        self.layers = nn.ModuleList(GRU(inputs if n == 0 else width, width) for n in range(layers))

    def forward(self, events: JaggedRows) -> Tensor:
        """Return the state after each event, float32[n, width], from float32[n, inputs]."""
        x = events.values
        steps = steps_of(events.bounds(), x.device)
        for layer in self.layers:
            x = layer(x, steps)
        return x


def after(bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the number of events after each event of its sequence, int64[n].

    Args:
        bounds: int64[sequences + 1], see `JaggedRows`.
    """
    left: npt.NDArray[np.int64] = np.repeat(bounds[1:], np.diff(bounds)) - np.arange(bounds[-1]) - 1
    return left
