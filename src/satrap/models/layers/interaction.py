"""Products of all pairs of vectors, for DLRM."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DotInteraction(nn.Module):
    """The dot products of all pairs of a sample's vectors, float32[size, F * (F - 1) / 2] of F fields.

    Products of two fields come in the order of the lower triangle of a matrix, row by row.
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

    def forward(self, vectors: Tensor) -> Tensor:
        """Return all products, from float32[size, F, dim]."""
        return _Products.apply(vectors, self.lower, self.pairs)  # type: ignore[no-any-return,no-untyped-call]


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
