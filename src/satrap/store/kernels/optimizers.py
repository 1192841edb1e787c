"""One optimizer step per row, in one pass over `[weights | state]`; see `satrap.optim` for the formulas.

Each step is written once (`_..._lane`) for a float32 and for a vector of 16; rows run in vectors with a
scalar tail. `slots` are distinct; -1 leaves its gradient out. Gradients are contiguous, `dim` floats each.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.rows import ahead
from satrap.store.kernels.simd import broadcast, load_like, prefetch_write, root, store, total

Slots = npt.NDArray[np.int32]
_FOUR = np.uint64(4)
_LINE = np.uint64(64)
_ZERO = np.uint64(0)
_LANES = np.uint64(16)


@helper
def fetch_write(address: np.uint64, size: np.uint64) -> None:
    """Start fetching the cache lines of `size` bytes for writing."""
    for k in range(_ZERO, size, _LINE):
        prefetch_write(address + k)


@helper
def _sgd_lane(w: np.uint64, g: np.uint64, lr: Any) -> None:
    store(w, load_like(lr, w) - lr * load_like(lr, g))


@kernel
def sgd(
    base: np.uint64, stride: np.uint64, slots: Slots, gradients: np.uint64, dim: np.uint64, lr: np.float32
) -> None:
    """`w -= lr * g`."""
    n, size, full = slots.shape[0], dim * _FOUR, dim & ~np.uint64(15)
    distance = ahead(size)
    lrs = broadcast(lr)
    for i in range(n):
        if i + distance < n and slots[i + distance] >= 0:
            fetch_write(base + np.uint64(slots[i + distance]) * stride, size)
        if slots[i] < 0:
            continue
        w, g = base + np.uint64(slots[i]) * stride, gradients + np.uint64(i) * size
        for k in range(_ZERO, full, _LANES):
            _sgd_lane(w + k * _FOUR, g + k * _FOUR, lrs)
        for k in range(full, dim):
            _sgd_lane(w + k * _FOUR, g + k * _FOUR, lr)


@helper
def _adagrad_lane(w: np.uint64, a: np.uint64, g: np.uint64, lr: Any, eps: Any) -> None:
    gradient = load_like(lr, g)
    accumulator = load_like(lr, a) + gradient * gradient
    store(a, accumulator)
    store(w, load_like(lr, w) - lr * (gradient / (root(accumulator) + eps)))


@kernel
def adagrad(
    base: np.uint64,
    stride: np.uint64,
    slots: Slots,
    gradients: np.uint64,
    dim: np.uint64,
    lr: np.float32,
    eps: np.float32,
) -> None:
    """`a += g * g; w -= lr * g / (sqrt(a) + eps)`; the row is [w | a]."""
    n, size, full = slots.shape[0], dim * _FOUR, dim & ~np.uint64(15)
    distance = ahead(stride)
    lrs, epss = broadcast(lr), broadcast(eps)
    for i in range(n):
        if i + distance < n and slots[i + distance] >= 0:
            fetch_write(base + np.uint64(slots[i + distance]) * stride, stride)
        if slots[i] < 0:
            continue
        w, g = base + np.uint64(slots[i]) * stride, gradients + np.uint64(i) * size
        a = w + size
        for k in range(_ZERO, full, _LANES):
            _adagrad_lane(w + k * _FOUR, a + k * _FOUR, g + k * _FOUR, lrs, epss)
        for k in range(full, dim):
            _adagrad_lane(w + k * _FOUR, a + k * _FOUR, g + k * _FOUR, lr, eps)


@helper
def _sum_of_squares(address: np.uint64, dim: np.uint64) -> np.float32:
    full = dim & ~np.uint64(15)
    sums = broadcast(np.float32(0))
    for k in range(_ZERO, full, _LANES):
        x = load_like(sums, address + k * _FOUR)
        sums = sums + x * x
    result = total(sums)
    for k in range(full, dim):
        y = load_like(np.float32(0), address + k * _FOUR)
        result += y * y
    return np.float32(result)


@kernel
def rowwise_adagrad(
    base: np.uint64,
    stride: np.uint64,
    scalars: npt.NDArray[np.float32],
    slots: Slots,
    gradients: np.uint64,
    dim: np.uint64,
    lr: np.float32,
    eps: np.float32,
) -> None:
    """`a += mean(g * g); w -= lr / (sqrt(a) + eps) * g`; a is `scalars[slot]`."""
    n, size, full = slots.shape[0], dim * _FOUR, dim & ~np.uint64(15)
    distance = ahead(size)
    scalar_base = np.uint64(scalars.ctypes.data)
    for i in range(n):
        if i + distance < n and slots[i + distance] >= 0:
            fetch_write(base + np.uint64(slots[i + distance]) * stride, size)
            prefetch_write(scalar_base + np.uint64(slots[i + distance]) * _FOUR)
        if slots[i] < 0:
            continue
        w, g = base + np.uint64(slots[i]) * stride, gradients + np.uint64(i) * size
        a = np.float32(scalars[slots[i]] + _sum_of_squares(g, dim) / np.float32(dim))
        scalars[slots[i]] = a
        rate = np.float32(lr / np.float32(np.sqrt(a) + eps))
        rates = broadcast(rate)
        for k in range(_ZERO, full, _LANES):
            _sgd_lane(w + k * _FOUR, g + k * _FOUR, rates)
        for k in range(full, dim):
            _sgd_lane(w + k * _FOUR, g + k * _FOUR, rate)


@helper
def _adam_lane(
    w: np.uint64, m: np.uint64, v: np.uint64, g: np.uint64, rate: Any, decay: Any, c: Any, eps: Any
) -> None:
    b1, a1, b2, a2 = decay
    gradient = load_like(rate, g)
    mean = b1 * load_like(rate, m) + a1 * gradient
    square = b2 * load_like(rate, v) + a2 * gradient * gradient
    store(m, mean)
    store(v, square)
    store(w, load_like(rate, w) - rate * (mean / (root(square) / c + eps)))


@kernel
def adam(
    base: np.uint64,
    stride: np.uint64,
    scalars: npt.NDArray[np.float32],
    slots: Slots,
    gradients: np.uint64,
    dim: np.uint64,
    lr: np.float32,
    b1: np.float64,
    b2: np.float64,
    eps: np.float32,
) -> None:
    """Adam with the row's own step `scalars[slot]` for the bias corrections; the row is [w | m | v]."""
    n, size, full = slots.shape[0], dim * _FOUR, dim & ~np.uint64(15)
    distance = ahead(stride)
    scalar_base = np.uint64(scalars.ctypes.data)
    one = np.float64(1)
    decay = (np.float32(b1), np.float32(one - b1), np.float32(b2), np.float32(one - b2))
    decays = (broadcast(decay[0]), broadcast(decay[1]), broadcast(decay[2]), broadcast(decay[3]))
    epss = broadcast(eps)
    for i in range(n):
        if i + distance < n and slots[i + distance] >= 0:
            fetch_write(base + np.uint64(slots[i + distance]) * stride, stride)
            prefetch_write(scalar_base + np.uint64(slots[i + distance]) * _FOUR)
        if slots[i] < 0:
            continue
        w, g = base + np.uint64(slots[i]) * stride, gradients + np.uint64(i) * size
        m = w + size
        v = m + size
        step = np.float32(scalars[slots[i]] + np.float32(1))
        scalars[slots[i]] = step
        rate = np.float32(lr / (one - b1 ** np.float64(step)))
        correction = np.float32(np.sqrt(one - b2 ** np.float64(step)))
        rates, corrections = broadcast(rate), broadcast(correction)
        for k in range(_ZERO, full, _LANES):
            at = k * _FOUR
            _adam_lane(w + at, m + at, v + at, g + at, rates, decays, corrections, epss)
        for k in range(full, dim):
            at = k * _FOUR
            _adam_lane(w + at, m + at, v + at, g + at, rate, decay, correction, eps)
