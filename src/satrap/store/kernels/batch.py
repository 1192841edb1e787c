"""Loops over the ids of one batch: distinct ids, segment sums, pooling, and their gradients.

Every sum is taken in the order of the ids, one after another: the same input gives the same bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.store.kernels.hashing import mix
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.rows import copy_floats, fetch
from satrap.store.kernels.simd import broadcast, load_like, store

Floats = npt.NDArray[np.float32]
Inverse = npt.NDArray[np.int32]
Offsets = npt.NDArray[np.int64]
SUM, MEAN, SQRTN = 0, 1, 2
_FOUR = np.uint64(4)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_LANES = np.uint64(16)
_AHEAD = np.uint64(16)
"""How many rows ahead of their use rows are prefetched."""


@kernel
def distinct(
    ids: npt.NDArray[np.uint64],
    splits: Offsets,
    table: npt.NDArray[np.int32],
    out: npt.NDArray[np.uint64],
    out_splits: Offsets,
    inverse: Inverse,
) -> int:
    """Write the distinct ids of each segment in order of first appearance; return how many there are.

    `table` is scratch: a power of two, at least twice the longest segment.
    """
    count = 0
    out_splits[0] = 0
    for t in range(splits.shape[0] - 1):
        size = 16
        while size < 2 * (splits[t + 1] - splits[t]):
            size *= 2
        table[:size] = 0
        mask = np.uint64(size - 1)
        for i in range(splits[t], splits[t + 1]):
            key = ids[i]
            place = mix(key) & mask
            while True:
                entry = table[place]
                if entry == 0:
                    out[count] = key
                    inverse[i] = count
                    count += 1
                    table[place] = count
                    break
                if out[entry - 1] == key:
                    inverse[i] = entry - 1
                    break
                place = (place + np.uint64(1)) & mask
        out_splits[t + 1] = count
    return count


@helper
def add_scaled(source: np.uint64, target: np.uint64, dim: np.uint64, factor: np.float32) -> None:
    """`target += factor * source`, `dim` floats."""
    full = dim & ~np.uint64(15)
    factors = broadcast(factor)
    for k in range(_ZERO, full, _LANES):
        at = k * _FOUR
        store(target + at, load_like(factors, target + at) + factors * load_like(factors, source + at))
    for k in range(full, dim):
        at = k * _FOUR
        store(target + at, load_like(factor, target + at) + factor * load_like(factor, source + at))


@helper
def divide(target: np.uint64, dim: np.uint64, divisor: np.float32) -> None:
    """`target /= divisor`, `dim` floats."""
    full = dim & ~np.uint64(15)
    divisors = broadcast(divisor)
    for k in range(_ZERO, full, _LANES):
        store(target + k * _FOUR, load_like(divisors, target + k * _FOUR) / divisors)
    for k in range(full, dim):
        store(target + k * _FOUR, load_like(divisor, target + k * _FOUR) / divisor)


@kernel
def segment_sum(gradients: np.uint64, inverse: Inverse, dim: np.uint64, out: np.uint64) -> None:
    """Add row i of `gradients` to row `inverse[i]` of `out`, in the order of i."""
    n, size = np.uint64(inverse.shape[0]), dim * _FOUR
    for i in range(n):
        if i + _AHEAD < n:
            fetch(out + np.uint64(inverse[i + _AHEAD]) * size, size)
        add_to(gradients + i * size, out + np.uint64(inverse[i]) * size, dim)


@kernel
def gather_features(
    rows: np.uint64, inverse: Inverse, features: int, dim: np.uint64, out: np.uint64, out_stride: np.uint64
) -> None:
    """Copy row `inverse[f * batch + b]` to row f of the block at `out + b * out_stride`."""
    size, width = dim * _FOUR, np.uint64(features)
    batch = np.uint64(inverse.shape[0]) // width
    for b in range(batch):
        if b + _ONE < batch:
            for f in range(width):
                fetch(rows + np.uint64(inverse[f * batch + b + _ONE]) * size, size)
        for f in range(width):
            source = rows + np.uint64(inverse[f * batch + b]) * size
            copy_floats(source, out + b * out_stride + f * size, dim)


@helper
def add_to(source: np.uint64, target: np.uint64, dim: np.uint64) -> None:
    """`target += source`, `dim` floats."""
    full = dim & ~np.uint64(15)
    like = broadcast(np.float32(0))
    for k in range(_ZERO, full, _LANES):
        at = k * _FOUR
        store(target + at, load_like(like, target + at) + load_like(like, source + at))
    for k in range(full, dim):
        at = k * _FOUR
        store(target + at, load_like(np.float32(0), target + at) + load_like(np.float32(0), source + at))


@kernel
def gather_features_backward(
    gradients: np.uint64, stride: np.uint64, inverse: Inverse, features: int, dim: np.uint64, out: np.uint64
) -> None:
    """Add row f of the block at `gradients + b * stride` to row `inverse[f * batch + b]`, block by block."""
    size, width = dim * _FOUR, np.uint64(features)
    batch = np.uint64(inverse.shape[0]) // width
    for b in range(batch):
        if b + _ONE < batch:
            for f in range(width):
                fetch(out + np.uint64(inverse[f * batch + b + _ONE]) * size, size)
        for f in range(width):
            source = gradients + b * stride + f * size
            add_to(source, out + np.uint64(inverse[f * batch + b]) * size, dim)


@kernel
def inside(inverse: Inverse, u: int) -> bool:
    """Return True if every value is one of 0..u-1."""
    largest = np.uint32(0)
    for i in range(inverse.shape[0]):
        largest = max(largest, np.uint32(inverse[i]))
    return inverse.shape[0] == 0 or bool(largest < u)


@helper
def divisor_of(weights: Floats, low: int, high: int, mode: int) -> np.float32:
    """Return what the sum of a bag is divided by; 1 instead of 0."""
    if mode == SUM:
        return np.float32(1)
    total = np.float32(0)
    if weights.shape[0] == 0:
        total = np.float32(high - low)
    else:
        for i in range(low, high):
            total += weights[i] * weights[i] if mode == SQRTN else weights[i]
    if mode == SQRTN:
        total = np.float32(np.sqrt(total))
    return total if total != np.float32(0) else np.float32(1)


@kernel
def pool(
    rows: np.uint64,
    inverse: Inverse,
    offsets: Offsets,
    weights: Floats,
    mode: int,
    dim: np.uint64,
    out: np.uint64,
    out_stride: np.uint64,
) -> None:
    """Write the pooled row of each bag to `out + b * out_stride`; no `weights` means all 1."""
    size = dim * _FOUR
    zero = np.float32(0)
    zeros = broadcast(zero)
    for b in range(offsets.shape[0] - 1):
        low, high = offsets[b], offsets[b + 1]
        target = out + np.uint64(b) * out_stride
        for k in range(_ZERO, dim & ~np.uint64(15), _LANES):
            store(target + k * _FOUR, zeros)
        for k in range(dim & ~np.uint64(15), dim):
            store(target + k * _FOUR, zero)
        for i in range(low, high):
            weight = np.float32(1) if weights.shape[0] == 0 else weights[i]
            add_scaled(rows + np.uint64(inverse[i]) * size, target, dim, weight)
        divisor = divisor_of(weights, low, high, mode)
        if divisor != np.float32(1):
            divide(target, dim, divisor)


@kernel
def pool_backward(
    gradients: np.uint64,
    gradient_stride: np.uint64,
    inverse: Inverse,
    offsets: Offsets,
    weights: Floats,
    mode: int,
    dim: np.uint64,
    out: np.uint64,
) -> None:
    """Add to row `inverse[i]` of `out` the gradient that bag b passes to its i-th row."""
    size = dim * _FOUR
    for b in range(offsets.shape[0] - 1):
        low, high = offsets[b], offsets[b + 1]
        divisor = divisor_of(weights, low, high, mode)
        for i in range(low, high):
            weight = np.float32(1) if weights.shape[0] == 0 else weights[i]
            source = gradients + np.uint64(b) * gradient_stride
            add_scaled(source, out + np.uint64(inverse[i]) * size, dim, np.float32(weight / divisor))


@kernel
def pool_max(
    rows: np.uint64,
    inverse: Inverse,
    offsets: Offsets,
    weights: Floats,
    dim: np.uint64,
    out: np.uint64,
    out_stride: np.uint64,
    chosen: npt.NDArray[np.int32],
) -> None:
    """Write the largest weighted value of each bag and column, and which id it came from (-1: none)."""
    size = dim * _FOUR
    for b in range(offsets.shape[0] - 1):
        target = out + np.uint64(b) * out_stride
        for k in range(dim):
            at = np.uint64(k) * _FOUR
            best, which = np.float32(0), np.int32(-1)
            for i in range(offsets[b], offsets[b + 1]):
                value = load_like(np.float32(0), rows + np.uint64(inverse[i]) * size + at)
                if weights.shape[0] > 0:
                    value = np.float32(value * weights[i])
                if which < 0 or value > best:
                    best, which = value, np.int32(i)
            store(target + at, best)
            chosen[b, k] = which


@kernel
def pool_max_backward(
    gradients: np.uint64,
    stride: np.uint64,
    inverse: Inverse,
    weights: Floats,
    chosen: npt.NDArray[np.int32],
    out: np.uint64,
) -> None:
    """Pass the gradient of each pooled value to the row it came from."""
    size = np.uint64(chosen.shape[1]) * _FOUR
    for b in range(chosen.shape[0]):
        for k in range(chosen.shape[1]):
            i = chosen[b, k]
            if i >= 0:
                at = np.uint64(k) * _FOUR
                factor = np.float32(1) if weights.shape[0] == 0 else weights[i]
                value = load_like(np.float32(0), gradients + np.uint64(b) * stride + at)
                target = out + np.uint64(inverse[i]) * size + at
                store(target, np.float32(load_like(np.float32(0), target) + value * factor))
