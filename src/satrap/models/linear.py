"""A linear layer that uses the faster of PyTorch's two matrix libraries."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
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
            _product(gradient.T.contiguous(), x.T) if of_weight else None,
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
        if _onednn is None or not self._suits(input):
            return F.linear(input, self.weight, self.bias)
        return _Linear.apply(input, self.weight, self.bias)  # type: ignore[no-any-return,no-untyped-call]

    def _suits(self, x: Tensor) -> bool:
        plain = type(x) is Tensor and type(self.weight) is nn.Parameter
        return (
            plain
            and x.ndim == 2
            and x.dtype == self.weight.dtype == torch.float32
            and x.device.type == self.weight.device.type == "cpu"
            and len(x) * self.weight.numel() >= _SMALLEST
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )
