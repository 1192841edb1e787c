"""Building blocks of large networks: a Wukong layer, a RankMixer block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.models.layers.common import mlp
from satrap.models.layers.linear import XavierLinear, xavier_bound


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
