"""Scores of the events of a history, computed from an event and the target by an MLP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from satrap.models.layers.common import check_hidden
from satrap.models.layers.history import spread
from satrap.models.layers.linear import Linear, linear, xavier_bound

Activation = Literal["relu", "dice"]


class Dice(nn.Module):
    """`p * x + (1 - p) * a * x` with `p = sigmoid(normalised x)` and a learned `a` per column, at first 0.

    Zhou et al., "Deep Interest Network", KDD 2018, section 5.3, with eps 1e-8. In training, x is normalised
    over the rows of the batch (if it has two or more), in evaluation by running means and variances.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, eps=1e-8, affine=False)
        self.slope = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial slopes; the normalisation sets its own statistics."""
        nn.init.zeros_(self.slope)

    def forward(self, x: Tensor) -> Tensor:
        """Return float32[rows, width] from that shape; rows may be 0."""
        norm = self.norm
        if self.training and len(x) < 2:  # one row has no variance
            normed = F.batch_norm(x, norm.running_mean, norm.running_var, eps=norm.eps)
        else:
            normed = norm(x)
        p = torch.sigmoid(normed)
        return p * x + (1 - p) * self.slope * x


ACTIVATIONS: dict[Activation, Callable[[int], nn.Module]] = {"relu": lambda _: nn.ReLU(), "dice": Dice}
"""Name -> makes the activation of a layer from its width."""


class ComparisonLinear(nn.Module):
    """A linear layer of `[e_t, e_j, e_t - e_j, e_t * e_j, c_j]`: target, event, and context of the event.

    Products with the target alone are computed once per sample, and the difference is not computed.
    Weights start as in `XavierLinear`.

    Args:
        width: columns of the target and of an event.
        extra: columns of the context.
        out: output columns.

    Attributes:
        weight: float32[out, 4 * width + extra].
        bias: float32[out].
    """

    def __init__(self, width: int, extra: int, out: int) -> None:
        super().__init__()
        self.parts = [width] * 4 + [extra]
        self.weight = nn.Parameter(torch.empty(out, sum(self.parts)))
        self.bias = nn.Parameter(torch.empty(out))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the initial weights."""
        bound = xavier_bound(self.weight.shape[1], self.weight.shape[0])
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.zeros_(self.bias)

    def forward(self, target: Tensor, events: Tensor, context: Sequence[Tensor], offsets: Tensor) -> Tensor:
        """Return float32[n, out] from targets [size, width], events [n, width], and their context."""
        of_target, of_event, of_difference, of_product, of_context = torch.split(self.weight, self.parts, 1)
        count, weights = len(events), [of_event - of_difference, of_product, of_context]
        each = torch.cat([events, events * spread(target, offsets, count), *context], dim=1)
        by_sample = linear(target, of_target + of_difference, self.bias)
        return linear(each, torch.cat(weights, dim=1), None).add_(spread(by_sample, offsets, count))


class TargetScore(nn.Module):
    """An MLP of `[e_t, e_j, e_t - e_j, e_t * e_j, c_j]` with one output: how much an event matters.

    Args:
        width: columns of the target and of an event.
        extra: columns of the context of an event.
        hidden: widths of the hidden layers.
        activation: after each hidden layer, "relu" or "dice".

    Raises:
        ConfigError: an invalid width.
    """

    def __init__(self, width: int, extra: int, hidden: Sequence[int], activation: Activation) -> None:
        super().__init__()
        check_hidden(hidden)
        first, *others = [*hidden, 1]
        self.compare = ComparisonLinear(width, extra, first)
        self.activations = nn.ModuleList(ACTIVATIONS[activation](size) for size in hidden)
        self.layers = nn.ModuleList(Linear(*sizes) for sizes in zip([first, *others], others, strict=False))

    def forward(self, target: Tensor, events: Tensor, context: Sequence[Tensor], offsets: Tensor) -> Tensor:
        """Return float32[n, 1] from targets [size, width], events [n, width], and their context."""
        x: Tensor = self.compare(target, events, context, offsets)
        for activation, layer in zip(self.activations, self.layers, strict=True):
            x = layer(activation(x))
        return x
