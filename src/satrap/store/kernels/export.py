"""Copies rows out of the slab, weights and state in one pass: each row is fetched from memory once."""

from __future__ import annotations

import numpy as np

from satrap.store.arrays import Inverse
from satrap.store.kernels.formats import Format, read_weights
from satrap.store.kernels.jit import kernel
from satrap.store.kernels.rows import SlabRows, ahead, copy_floats, fetch
from satrap.store.kernels.simd import load_like, store

_FOUR = np.uint64(4)
_ZERO = np.uint64(0)


@kernel
def read_rows(
    fmt: Format,
    rows: SlabRows,
    slots: Inverse,
    weights: np.uint64,
    count: np.uint64,
    state: np.uint64,
    state_stride: np.uint64,
) -> None:
    """Write each slot's weights and state; write nothing for slot -1.

    Args:
        fmt: number format of the weights in the slab.
        rows: the slab; the scalar of a row is written as the last column of its state.
        slots: int32[n].
        weights: address of float32[n, dim].
        count: float32 of state in a row.
        state: address of float32[n, count + (1 if there are scalars)].
        state_stride: bytes of a row of `state`.
    """
    base, stride, dim = rows.base, rows.stride, rows.dim
    n, inside = np.uint64(slots.shape[0]), stride - count * _FOUR
    distance = np.uint64(ahead(stride))
    for i in range(n):
        j = i + distance
        if j < n and slots[j] >= 0:
            fetch(base + np.uint64(slots[j]) * stride, stride)
        if slots[i] < 0:
            continue
        row = base + np.uint64(slots[i]) * stride
        read_weights(fmt, row, weights + i * dim * _FOUR, dim)
        copy_floats(row + inside, state + i * state_stride, count)
    if rows.scalars != _ZERO:
        for i in range(n):
            if slots[i] >= 0:
                scalar = load_like(np.float32(0), rows.scalars + np.uint64(slots[i]) * _FOUR)
                store(state + i * state_stride + count * _FOUR, scalar)
