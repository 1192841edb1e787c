"""Building blocks: a shallow part next to an MLP, and layers of Wukong, RankMixer, MaskNet and FinalNet."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.batch import EmbeddedBatch
from satrap.errors import ConfigError
from satrap.models.layers.common import OutputLayer, Ranker, beside, check_dropout, mlp
from satrap.models.layers.linear import Linear, XavierLinear, xavier_bound


class ShallowAndDeep(Ranker, ABC):
    """Logits of a shallow part plus the logits of an MLP: `shallow + head(deep(x))`.

    Attributes:
        deep: the MLP.
        head: from its output to logits.
        first_modules: names of the modules that `inputs` uses, for `chain`.
    """

    deep: nn.Sequential
    head: OutputLayer
    first_modules: ClassVar[tuple[str, ...]]

    @abstractmethod
    def inputs(self, batch: EmbeddedBatch) -> tuple[Tensor, Tensor]:
        """Return the shallow part's logits float32[size, outputs], and the MLP's input."""

    def chain(self) -> list[Any]:
        """Return the steps of `forward`, see `satrap.dense.parallel.stages`."""
        first = (self.inputs, *(getattr(self, name) for name in self.first_modules))
        deep = [(partial(beside, layer), layer) for layer in self.deep]
        return [first, *deep, (lambda shallow, x: shallow + self.head(x), self.head)]

    def forward(self, batch: EmbeddedBatch) -> Tensor:
        """Return logits float32[size, outputs]."""
        shallow, x = self.inputs(batch)
        logits: Tensor = shallow + self.head(self.deep(x))
        return logits


class WukongLayer(nn.Module):
    """`LN([FMB(X), LCB(X)] + R X)`: vectors from pairwise products, and linear mixtures of the input vectors.

    FMB: `MLP(LN(flat(X (X^T Y))))`, where the learned Y mixes the fields to `rank` vectors. LCB and R are
    matrices over the fields; if the shapes match, the input is added without R.
    """

    def __init__(self, fields: int, dim: int, fmb: int, lcb: int, rank: int, hidden: Sequence[int]) -> None:
        super().__init__()
        self.mix = XavierLinear(fields, rank, bias=False)
        deep, width = mlp(fields * rank, hidden)
        self.fmb = nn.Sequential(nn.LayerNorm(fields * rank), *deep, XavierLinear(width, fmb * dim))
        self.lcb = XavierLinear(fields, lcb, bias=False)
        self.residual = XavierLinear(fields, fmb + lcb, bias=False) if fields != fmb + lcb else None
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32[size, fmb + lcb, dim] from float32[size, fields, dim]."""
        turned = x.transpose(1, 2)
        pairs = torch.bmm(x, self.mix(turned)).flatten(1)
        made = torch.unflatten(self.fmb(pairs), 1, (-1, x.shape[2]))
        mixed = torch.cat([made, self.lcb(turned).transpose(1, 2)], dim=1)
        residual = x if self.residual is None else self.residual(turned).transpose(1, 2)
        normed: Tensor = self.norm(mixed + residual)
        return normed


class TokenNetworks(nn.Module):
    """A two-layer network with GELU for each token: `W2_t gelu(W1_t x_t + b1_t) + b2_t`."""

    def __init__(self, tokens: int, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.empty(tokens, width, hidden))
        self.down = nn.Parameter(torch.empty(tokens, hidden, width))
        self.up_bias = nn.Parameter(torch.empty(tokens, 1, hidden))
        self.down_bias = nn.Parameter(torch.empty(tokens, 1, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        bound = xavier_bound(*self.up.shape[1:])
        for weight, bias in ((self.up, self.up_bias), (self.down, self.down_bias)):
            nn.init.uniform_(weight, -bound, bound)
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32[size, tokens, width] from the same shape."""
        inner = F.gelu(torch.baddbmm(self.up_bias, x.transpose(0, 1), self.up))
        return torch.baddbmm(self.down_bias, inner, self.down).transpose(0, 1)


class MixerBlock(nn.Module):
    """`S = LN(mix(X) + X)`, then `LN(networks(S) + S)`.

    `mix` cuts each token into one part per token; the new token h has part h of every token.
    """

    def __init__(self, tokens: int, width: int, expansion: int) -> None:
        super().__init__()
        self.networks = TokenNetworks(tokens, width, expansion * width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Return float32[size, tokens, width] from the same shape."""
        mixed = torch.unflatten(x, 2, (x.shape[1], -1)).transpose(1, 2).flatten(2)
        x = self.norms[0](mixed + x)
        normed: Tensor = self.norms[1](self.networks(x) + x)
        return normed


class MaskBlock(nn.Module):
    """`relu(LN(W (x * mask)))` with `mask = W2 relu(W1 x0 + b1) + b2`, then dropout.

    Wang et al., "MaskNet", DLP-KDD 2021, eq. 4 to 9.

    Args:
        start: columns of x0, the network's input.
        width: columns of x.
        out: columns of the output.
        reduction: rows of W1, in units of `width`; an odd number gets one more, so that two processes can
            share them.
        dropout: probability of zeroing an output in training.
    """

    def __init__(self, start: int, width: int, out: int, *, reduction: float, dropout: float) -> None:
        super().__init__()
        rows = max(1, int(reduction * width))
        hidden, inner = mlp(start, [rows + rows % 2])
        self.mask = nn.Sequential(*hidden, Linear(inner, width))
        layers = [Linear(width, out, bias=False), nn.LayerNorm(out), nn.ReLU()]
        check_dropout(dropout)
        self.deep = nn.Sequential(*layers, *([nn.Dropout(dropout)] if dropout else []))

    def forward(self, x0: Tensor, x: Tensor) -> Tensor:
        """Return float32[size, out] from x0 float32[size, start] and x float32[size, width]."""
        deep: Tensor = self.deep(self.mask(x0) * x)
        return deep


class HalfProducts(nn.Module):
    """Turns the halves a and b of the columns into a and `a * b`."""

    def forward(self, x: Tensor) -> Tensor:
        """Return float32[size, width] from the same shape; width is even."""
        linear, factors = x.chunk(2, dim=1)
        return torch.cat([linear, linear * factors], dim=1)


def factorized_mlp(
    width: int, hidden: Sequence[int], *, dropout: float = 0.0, batch_norm: bool = False
) -> tuple[nn.Sequential, int]:
    """Return `satrap.models.layers.common.mlp` with `HalfProducts` after each linear layer, and its width.

    Zhu et al., "FINAL: Factorized Interaction Layer for CTR Prediction", SIGIR 2023. Raises as `mlp`, and for
    odd widths.
    """
    deep, last = mlp(width, hidden, dropout=dropout, batch_norm=batch_norm)
    odd = [size for size in hidden if size % 2]
    if odd:
        raise ConfigError(f"widths of factorized layers must be even, got {odd[0]}", fix=f"use {odd[0] + 1}")
    layers = ([layer, HalfProducts()] if isinstance(layer, Linear) else [layer] for layer in deep)
    return nn.Sequential(*(layer for pair in layers for layer in pair)), last
