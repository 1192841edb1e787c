"""Pool the rows of many features into one block float32[size, features, dim].

On the CPU this uses the store's kernels, with gradients summed in a fixed order; on other devices PyTorch's
`embedding_bag`. Both give the same values up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from satrap.runtime.finite_gradients import note_finite
from satrap.store import (
    floats,
    gather_features,
    gather_features_backward,
    pool,
    pool_backward,
    sum_features,
)

Mode = Literal["sum", "mean", "max", "sqrtn"]


@dataclass(frozen=True, slots=True)
class Bag:
    """The ids of one feature, as positions of unique rows.

    Args:
        inverses: int32, position of each id's row, of all features of a group.
        start: first id of this feature in `inverses`.
        stop: one past the last.
        offsets: int64[size + 1] bounds of the samples, or None for exactly one id each.
        weights: float32 per id, or None.
        mode: pooling of a sample's rows: "sum", "mean" (divided by the sum of weights), "max" (weights are
            ignored), "sqrtn" (sum divided by the square root of the sum of squared weights). An empty bag
            gives zeros.
        features: > 1 for a run of features with one id per sample each and contiguous ids.
    """

    inverses: npt.NDArray[np.int32]
    start: int
    stop: int
    offsets: npt.NDArray[np.int64] | None = None
    weights: npt.NDArray[np.float32] | None = None
    mode: Mode = "sum"
    features: int = 1

    @property
    def inverse(self) -> npt.NDArray[np.int32]:
        """Positions of this feature's rows."""
        return self.inverses[self.start : self.stop]

    @property
    def plain(self) -> bool:
        """True if every sample has one id and weight 1, so pooling is a gather."""
        return self.offsets is None and self.weights is None

    @property
    def size(self) -> int:
        """Number of samples."""
        return (self.stop - self.start) // self.features if self.offsets is None else len(self.offsets) - 1


def merge_runs(bags: Sequence[Bag]) -> list[Bag]:
    """Join consecutive bags that are plain and adjacent in `inverses`, so that one call pools them."""
    merged: list[Bag] = []
    for bag in bags:
        last = merged[-1] if merged else None
        if last is not None and last.plain and bag.plain and last.stop == bag.start:
            merged[-1] = replace(last, stop=bag.stop, features=last.features + bag.features)
        else:
            merged.append(bag)
    return merged


def pool_features(rows: Tensor, bags: Sequence[Bag]) -> Tensor:
    """Return float32[size, features, dim]: each feature's rows pooled per sample.

    Args:
        rows: float32[unique, dim], differentiable.
        bags: the features in order, all with the same number of samples.
    """
    if rows.device.type == "cpu":
        return _KernelPooling.apply(rows, bags, None)  # type: ignore[no-any-return,no-untyped-call]
    return torch.cat([_torch_pool(rows, bag) for bag in bags], dim=1)


def pool_beside(rows: Tensor, bags: Sequence[Bag], numeric: Tensor) -> Tensor:
    """Return float32[size, features * dim + numbers]: concatenated pooled features, then the numbers.

    Pools in place: neither forward nor backward copies the pooled features. CPU only.

    Args:
        rows: float32[unique, dim], differentiable.
        bags: the features in order.
        numeric: float32[size, numbers], constant.
    """
    return _KernelPooling.apply(rows, bags, numeric)  # type: ignore[no-any-return,no-untyped-call]


def pool_into(
    rows: npt.NDArray[np.float32], bags: Sequence[Bag], target: npt.NDArray[np.float32]
) -> list[Any]:
    """Write each feature's rows, pooled per sample, to float32[size, features, dim]; samples may be strided.

    Returns:
        For each bag, the positions of the largest values if its mode is "max", else None.
    """
    first, argmaxes = 0, []
    for bag in bags:
        argmax = None
        if bag.plain:
            gather_features(rows, bag.inverse, bag.features, out=target[:, first : first + bag.features])
        else:
            argmax = pool(
                rows,
                bag.inverse,
                bag.offsets,
                mode=bag.mode,
                weights=bag.weights,
                out=target[:, first],
            )[1]
        argmaxes.append(argmax)
        first += bag.features
    return argmaxes


def _as_block(flat: npt.NDArray[np.float32], features: int, dim: int) -> npt.NDArray[np.float32]:
    """Return the first columns of float32[size, ...] as a view float32[size, features, dim]."""
    return flat[:, : features * dim].reshape(len(flat), features, dim)


class _KernelPooling(torch.autograd.Function):
    """Pooling by the store's kernels."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, bags: Sequence[Bag], numeric: Tensor | None) -> Tensor:
        source, (distinct, dim) = rows.detach().numpy(), rows.shape
        ctx.bags, ctx.argmaxes, ctx.distinct, ctx.dim = bags, None, distinct, dim
        ctx.leaf = rows
        if numeric is None and len(bags) == 1 and bags[0].plain:  # the usual batch
            return torch.from_numpy(gather_features(source, bags[0].inverse, bags[0].features))
        features = sum(bag.features for bag in bags)
        if numeric is None:
            out = target = floats(bags[0].size, features, dim)
        else:
            out = floats(bags[0].size, features * dim + numeric.shape[1])
            out[:, features * dim :] = numeric.numpy()
            target = _as_block(out, features, dim)
        ctx.argmaxes = pool_into(source, bags, target)
        return torch.from_numpy(out)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor, None, None]:
        gradient = outputs[0].contiguous().numpy()
        if gradient.ndim == 2:
            gradient = _as_block(gradient, sum(bag.features for bag in ctx.bags), ctx.dim)
        if len(ctx.bags) == 1 and ctx.bags[0].plain:
            alone, finite = sum_features(gradient, ctx.bags[0].inverse, ctx.distinct)
            if finite:
                note_finite(ctx.leaf, alone)
            return torch.from_numpy(alone), None, None
        into = floats(ctx.distinct, ctx.dim)
        into[:] = 0
        first = 0
        for bag, argmax in zip(ctx.bags, ctx.argmaxes, strict=True):
            part = gradient[:, first : first + bag.features]
            if bag.plain:
                gather_features_backward(part, bag.inverse, ctx.distinct, into=into)
            else:
                pool_backward(
                    part[:, 0],
                    bag.inverse,
                    bag.offsets,
                    ctx.distinct,
                    mode=bag.mode,
                    weights=bag.weights,
                    argmax=argmax,
                    into=into,
                )
            first += bag.features
        return torch.from_numpy(into), None, None


def _torch_pool(rows: Tensor, bag: Bag) -> Tensor:
    """Return float32[size, features, dim] of one bag, in plain PyTorch."""
    inverse = torch.from_numpy(bag.inverse).to(rows.device)
    if bag.plain:
        return F.embedding(inverse.view(bag.features, -1).T, rows)
    bounds = np.arange(bag.size + 1) if bag.offsets is None else bag.offsets
    offsets = torch.from_numpy(bounds.astype(np.int32)).to(rows.device)
    if bag.mode == "max":
        return F.embedding_bag(inverse, rows, offsets, mode="max", include_last_offset=True).unsqueeze(1)
    weights = None if bag.weights is None else torch.from_numpy(bag.weights).to(rows.device)
    summed = F.embedding_bag(
        inverse, rows, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True
    )
    return (summed / _divisor(offsets, weights, bag.mode).unsqueeze(1)).unsqueeze(1)


def _divisor(offsets: Tensor, weights: Tensor | None, mode: Mode) -> Tensor:
    """Return float32[size]: the divisor of each bag's sum; 1 for an empty bag."""
    counts = offsets.diff()
    if weights is None:
        total = counts.float()
    else:
        mass = weights if mode == "mean" else weights * weights
        sample = torch.repeat_interleave(torch.arange(len(counts), device=offsets.device), counts)
        total = torch.zeros(len(counts), device=offsets.device).index_add_(0, sample, mass)
    total = torch.where((total == 0) | (mode == "sum"), torch.ones_like(total), total)
    return total if mode == "mean" else total.sqrt()
