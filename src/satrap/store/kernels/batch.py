"""Loops over the ids of one batch: unique ids, segment sums, pooling, and their gradients.

Every sum adds in the order of the ids, one after another, so equal inputs give bit-identical results.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from satrap.store.arrays import Floats, Ids, Inverse, Offsets
from satrap.store.kernels.hashing import mix
from satrap.store.kernels.jit import by_width, helper, kernel
from satrap.store.kernels.rows import copy_floats, fetch, fetch_write
from satrap.store.kernels.simd import (
    broadcast,
    finite,
    larger,
    load_like,
    prefetch,
    settle,
    store,
    store_aside,
)

SUM, MEAN, SQRTN = 0, 1, 2
_FOUR = np.uint64(4)
_ZERO = np.uint64(0)
_LANES = np.uint64(16)
_AHEAD = np.uint64(32)
"""Prefetch distance of rows, in rows."""
_IDS_AHEAD = np.uint64(16)
"""Prefetch distance of entries of `distinct`'s table, in ids."""
ASIDE = 16 << 20
"""Bytes above which a block of rows is written past the caches: half of a typical last-level cache."""


@kernel
def distinct(
    ids: Ids,
    splits: Offsets,
    table: Inverse,
    table_at: np.uint64,
    out: Ids,
    out_splits: Offsets,
    inverse: Inverse,
) -> int:
    """Write the unique ids of each segment in order of first appearance; return their number.

    `table`, at the address `table_at`, is scratch: a power of two, at least twice the longest segment. The
    first table entry to probe for an id is computed in advance, stored in `inverse` and prefetched.
    """
    count, one = _ZERO, np.uint64(1)
    out_splits[0] = 0
    for t in range(splits.shape[0] - 1):
        size = 16
        while size < 2 * (splits[t + 1] - splits[t]):
            size *= 2
        table[:size] = 0
        mask = np.uint64(size - 1)
        first, end = np.uint64(splits[t]), np.uint64(splits[t + 1])
        for i in range(first, min(first + _IDS_AHEAD, end)):
            inverse[i] = np.int64(mix(ids[i]) & mask)
        for i in range(first, end):
            later = i + _IDS_AHEAD
            if later < end:
                place = mix(ids[later]) & mask
                inverse[later] = np.int64(place)
                prefetch(table_at + place * _FOUR)
            key = ids[i]
            out[count] = key  # so a free place matches too: an unpredictable branch on "new" is avoided
            place = np.uint64(inverse[i])
            while True:
                entry = np.uint64(table[place])
                number = count if entry == _ZERO else entry - one
                if out[number] == key:
                    break
                place = (place + one) & mask
            table[place] = number + one
            inverse[i] = number
            count += np.uint64(number == count)
        out_splits[t + 1] = count
    return int(np.int64(count))


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


@helper
def add_to(x: np.uint64, y: np.uint64, target: np.uint64, dim: np.uint64) -> None:
    """`target = x + y`, `dim` floats."""
    full = dim & ~np.uint64(15)
    like = broadcast(np.float32(0))
    for k in range(_ZERO, full, _LANES):
        at = k * _FOUR
        store(target + at, load_like(like, x + at) + load_like(like, y + at))
    for k in range(full, dim):
        at = k * _FOUR
        store(target + at, load_like(np.float32(0), x + at) + load_like(np.float32(0), y + at))


@by_width
def segment_sum(width: int) -> Any:
    """Add row i of `gradients` to row `inverse[i]` of `out`, in the order of i."""

    @kernel
    def sum_rows(gradients: np.uint64, inverse: Inverse, dim: np.uint64, out: np.uint64) -> None:
        d = np.uint64(width) if width else dim
        n, size = np.uint64(inverse.shape[0]), d * _FOUR
        for i in range(n):
            if i + _AHEAD < n:
                fetch(out + np.uint64(inverse[i + _AHEAD]) * size, size)
            target = out + np.uint64(inverse[i]) * size
            add_to(target, gradients + i * size, target, d)

    return sum_rows


@helper
def copy_aside(source: np.uint64, target: np.uint64, dim: np.uint64) -> None:
    """Copy `dim` floats, a multiple of 16, past the caches to a multiple of 64."""
    like = broadcast(np.float32(0))
    for k in range(_ZERO, dim, _LANES):
        store_aside(target + k * _FOUR, load_like(like, source + k * _FOUR))


@by_width
def _gather_features(width: int) -> Any:
    @kernel
    def gather_rows(
        rows: np.uint64,
        inverse: Inverse,
        features: int,
        dim: np.uint64,
        out: np.uint64,
        out_stride: np.uint64,
        aside: bool | None,
    ) -> None:
        d = np.uint64(width) if width else dim
        n, size = np.uint64(inverse.shape[0]), d * _FOUR
        batch = n // np.uint64(features)
        for f in range(np.uint64(features)):
            target = out + f * size
            for i in range(f * batch, f * batch + batch):
                if i + _AHEAD < n:
                    fetch(rows + np.uint64(inverse[i + _AHEAD]) * size, size)
                source = rows + np.uint64(inverse[i]) * size
                if aside is None:
                    copy_floats(source, target, d)
                else:
                    copy_aside(source, target, d)
                target += out_stride
        if aside is not None:
            settle()

    return gather_rows


def gather_features(
    rows: np.uint64, inverse: Inverse, features: int, dim: np.uint64, out: np.uint64, out_stride: np.uint64
) -> None:
    """Copy row `inverse[f * batch + b]` to row f of the block at `out + b * out_stride`.

    The loop goes feature by feature, since the second-level cache often holds the rows of one feature, but
    not of all. Above ASIDE bytes it writes past the caches, which cannot hold the block: this saves reading.
    """
    past = _past_caches(len(inverse), dim, out, out_stride)
    _gather_features(int(dim))(rows, inverse, features, dim, out, out_stride, past)


def _past_caches(count: int, dim: np.uint64, out: np.uint64, out_stride: np.uint64) -> bool | None:
    """Return True if `count` rows should and can be written past the caches, else None."""
    many = 4 * int(dim) * count > ASIDE
    aligned = int(dim) % 16 == 0 and int(out) % 64 == 0 and int(out_stride) % 64 == 0
    return True if many and aligned else None


@by_width
def _add_features(width: int) -> Any:
    """Do what `gather_features_backward` does; with `zeros`, what `first_gradients` does."""

    @kernel
    def add_rows(
        gradients: np.uint64,
        stride: np.uint64,
        inverse: Inverse,
        features: int,
        dim: np.uint64,
        out: np.uint64,
        zeros: np.uint64 | None,
    ) -> tuple[int, bool]:
        d = np.uint64(width) if width else dim
        size, seen, full = d * _FOUR, _ZERO, d & ~np.uint64(15)
        none = np.float32(0)
        like = broadcast(none)
        most, rest = like, none  # a sum that is infinite or NaN never becomes finite again
        batch = np.uint64(inverse.shape[0]) // np.uint64(features)
        for f in range(np.uint64(features)):
            source = gradients + f * size
            for b in range(batch):
                if b + _AHEAD < batch:
                    fetch(source + _AHEAD * stride, size)
                    fetch_write(out + np.uint64(inverse[f * batch + b + _AHEAD]) * size, size)
                row = np.uint64(inverse[f * batch + b])
                target = out + row * size
                before = target
                if zeros is not None:
                    if row > seen:
                        return -1, False
                    before = zeros if row == seen else target
                    seen += np.uint64(row == seen)
                for k in range(_ZERO, full, _LANES):
                    at = k * _FOUR
                    total = load_like(like, before + at) + load_like(like, source + at)
                    store(target + at, total)
                    most = larger(most, total)
                for k in range(full, d):
                    at = k * _FOUR
                    value = load_like(none, before + at) + load_like(none, source + at)
                    store(target + at, value)
                    rest = larger(rest, value)
                source += stride
        return int(np.int64(seen)), finite(most) and finite(rest)

    return add_rows


def gather_features_backward(
    gradients: np.uint64, stride: np.uint64, inverse: Inverse, features: int, dim: np.uint64, out: np.uint64
) -> bool:
    """Add row f of the block at `gradients + b * stride` to row `inverse[f * batch + b]`, feature by feature.

    Returns:
        Whether all rows of `out` that were added to are now finite.
    """
    return bool(_add_features(int(dim))(gradients, stride, inverse, features, dim, out, None)[1])


def first_gradients(
    gradients: np.uint64, stride: np.uint64, inverse: Inverse, features: int, dim: np.uint64, out: np.uint64
) -> tuple[int, bool]:
    """Do what `gather_features_backward` does to rows of zeros, without reading `out`.

    Rows must be numbered by first appearance in `inverse`.

    Returns:
        The number of rows, -1 if they are numbered differently; whether all are finite.
    """
    zeros = np.zeros(int(dim), np.float32)
    start = np.uint64(zeros.ctypes.data)
    seen, right = _add_features(int(dim))(gradients, stride, inverse, features, dim, out, start)
    return int(seen), bool(right)


@kernel
def inside(inverse: Inverse, u: int) -> bool:
    """Return True if every value is in 0..u-1."""
    largest = np.uint32(0)
    for i in range(inverse.shape[0]):
        largest = max(largest, np.uint32(inverse[i]))
    return inverse.shape[0] == 0 or bool(largest < u)


@helper
def divisor_of(weights: Floats, low: int, high: int, mode: int) -> np.float32:
    """Return the divisor for the sum of a bag; 1 instead of 0."""
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
    chosen: Inverse,
) -> None:
    """Write the largest weighted value of each bag and column, and its position in `inverse` (-1: none)."""
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
    chosen: Inverse,
    out: np.uint64,
) -> None:
    """Add the gradient of each pooled value to the row of that value."""
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
