"""Products of all pairs of vectors, for DLRM."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

_KERNELS_ON = {"cuda"}
"""Types of devices with kernels; tests add "cpu", for Triton's interpreter."""

_TRITON = find_spec("triton") is not None


class DotInteraction(nn.Module):
    """The dot products of all pairs of a sample's vectors, float32[size, F * (F - 1) / 2] of F fields.

    Products of two fields come in the order of the lower triangle of a matrix, row by row. On a CUDA device
    with Triton, a kernel computes them and another their gradients (not the gradients of these), for up to 64
    fields, dims from 16 to 256, and all types but float64.
    """

    lower: Tensor
    pairs: Tensor

    def __init__(self, fields: int) -> None:
        super().__init__()
        self.fields = fields
        for name, size in (("lower", fields * (fields - 1) // 2), ("pairs", fields * fields)):
            self.register_buffer(name, torch.empty(size, dtype=torch.int64), persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the buffers."""
        row, column = np.tril_indices(self.fields, -1)
        count = len(row)
        pairs = np.full((self.fields, self.fields), count)  # the diagonal has no product
        pairs[row, column] = pairs[column, row] = np.arange(count)
        self.lower.copy_(torch.from_numpy(row * self.fields + column))
        self.pairs.copy_(torch.from_numpy(pairs.reshape(-1)))

    def forward(self, vectors: Tensor, first: Tensor | None = None) -> Tensor:
        """Return all products.

        Args:
            vectors: float32[size, F, dim], or with `first` the other vectors, [size, F - 1, dim].
            first: float32[size, dim], the first field's vector, returned before the products; or None.
        """
        fused = _fused(vectors, first)
        if fused is not None:
            return fused
        if first is None:
            return self._products(vectors)
        others = vectors.to(first.dtype)  # autocast would join in float32
        return torch.cat([first, self._products(torch.cat([first.unsqueeze(1), others], dim=1))], dim=1)

    def _products(self, vectors: Tensor) -> Tensor:
        return _Products.apply(vectors, self.lower, self.pairs)  # type: ignore[no-any-return,no-untyped-call]


def _fused(vectors: Tensor, first: Tensor | None) -> Tensor | None:
    """Return the kernel's result; None if it cannot compute it, or an exported program would need satrap."""
    device = vectors.device.type
    if not _TRITON or device not in _KERNELS_ON or torch.compiler.is_exporting():
        return None
    from satrap.models.kernels import dot_interaction as kernels

    dtype = vectors.dtype if first is None else first.dtype
    if torch.is_autocast_enabled(device) and dtype == torch.float32:
        dtype = torch.get_autocast_dtype(device)
    if not kernels.suits(vectors, first, dtype):
        return None
    first = None if first is None else first.contiguous()
    result: Tensor = kernels.dot_interaction(vectors.contiguous(), first, dtype)
    return result


class _Products(torch.autograd.Function):
    """Selects the products with `gather`, the fastest way to index as measured.

    The gradient g of a product goes to both vectors, as g times the other vector. With each g at both
    positions in a matrix, one matrix product gives all gradients; autograd would take one per factor.
    """

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, lower: Tensor, pairs: Tensor) -> Tensor:
        device = vectors.device.type
        if torch.is_autocast_enabled(device) and vectors.dtype == torch.float32:
            vectors = vectors.to(torch.get_autocast_dtype(device))  # once, instead of both factors in `bmm`
        products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
        ctx.save_for_backward(vectors, pairs)
        return _gathered(products, lower)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        vectors, pairs = ctx.saved_tensors
        fields = vectors.shape[1]
        padded = F.pad(gradients[0], (0, 1))  # the zero is for the diagonal
        placed = _gathered(padded, pairs)
        return torch.bmm(placed.view(-1, fields, fields), vectors), None, None


def _gathered(rows: Tensor, columns: Tensor) -> Tensor:
    """Return columns of every row.

    16-bit numbers are gathered as integers, unless gradients are enabled, because PyTorch on the CPU would
    copy them to 32 bits and back.
    """
    everywhere = columns.expand(rows.shape[0], -1)  # `len` would fix the batch of an exported network
    if rows.element_size() == 2 and not torch.is_grad_enabled():
        return rows.view(torch.int16).gather(1, everywhere).view(rows.dtype)
    return rows.gather(1, everywhere)
