"""Linear layers that use the faster of PyTorch's two matrix libraries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

_SMALLEST = 1 << 20
"""From so many multiplications on, oneDNN's larger cost per call pays."""

_onednn: Any = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


def _product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return `left @ right.T + bias`."""
    assert _onednn is not None
    result: Tensor = _onednn(left, right, bias, "none", [], "")
    return result


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        [gradient] = gradients
        if torch.is_grad_enabled():  # for a second gradient, which only PyTorch's operations have
            return gradient @ weight, gradient.T @ x, gradient.sum(0)
        of_x, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.T) if of_x else None,
            _product(gradient.T.contiguous(), x.contiguous().T) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


class Linear(nn.Linear):
    """`torch.nn.Linear`, on CPUs by oneDNN instead of the BLAS library PyTorch was built with.

    Same parameters, same result up to rounding. PyTorch's CPU builds multiply float32 matrices with MKL,
    which uses AVX-512 only on Intel's processors; elsewhere oneDNN was measured 2 to 4 times faster. Other
    types and devices, autocast and compilation use PyTorch's own operation.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Return float32[size, out_features] from float32[size, in_features]."""
        return linear(input, self.weight, self.bias)


class GroupedLinear(nn.Module):
    """Several linear layers of the same shape, each with an input of its own.

    Args:
        layers: at least one.

    Attributes:
        weight: float32[count * out_features, in_features], one layer below the other.
        bias: float32[count * out_features].
    """

    def __init__(self, layers: Sequence[nn.Linear]) -> None:
        super().__init__()
        self.out_features = layers[0].out_features
        self.weight = nn.Parameter(torch.cat([layer.weight.detach() for layer in layers]))
        self.bias = nn.Parameter(torch.cat([layer.bias.detach() for layer in layers]))

    def forward(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return float32[size, out_features] of each layer; one input alone is that of all.

        A process that has some of the layers takes the inputs of these, and returns their outputs.
        """
        weights, biases = (torch.split(_own(p), self.out_features) for p in (self.weight, self.bias))
        inputs = inputs if len(inputs) > 1 else [*inputs] * len(biases)
        return [linear(*each) for each in zip(inputs, weights, biases, strict=True)]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `x @ weight.T + bias`, see `Linear`."""
    if _onednn is None or not _suits(x, weight):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias)  # type: ignore[no-any-return,no-untyped-call]


def _suits(x: Tensor, weight: Tensor) -> bool:
    plain = type(x) is Tensor and type(weight) in (Tensor, nn.Parameter)
    return (
        plain
        and x.ndim == 2
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == weight.device.type == "cpu"
        and len(x) * weight.numel() >= _SMALLEST
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


def _own(parameter: Tensor) -> Tensor:
    """Return the part of a parameter that this process has."""
    own: Tensor = parameter.to_local() if isinstance(parameter, DTensor) else parameter
    return own
