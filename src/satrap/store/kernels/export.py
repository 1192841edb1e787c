"""Copies rows out of the slab, weights and state in one pass: each row is fetched from memory once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.store.kernels.formats import Format, read_weights
from satrap.store.kernels.jit import kernel
from satrap.store.kernels.rows import ahead, copy_floats, fetch
from satrap.store.kernels.simd import store

_FOUR = np.uint64(4)


@kernel
def read_rows(
    fmt: Format,
    base: np.uint64,
    stride: np.uint64,
    scalars: npt.NDArray[np.float32],
    slots: npt.NDArray[np.int32],
    dim: np.uint64,
    weights: np.uint64,
    count: np.uint64,
    state: np.uint64,
    state_stride: np.uint64,
) -> None:
    """Write each slot's weights and state; write nothing for slot -1.

    Args:
        fmt: of the weights in the slab.
        base: address of row 0.
        stride: bytes from one row to the next; its last `count` float32 are the state.
        scalars: one more float32 of state per slot, written last; may be empty.
        slots: int32[n].
        dim: weights per row.
        weights: address of float32[n, dim].
        count: float32 of state in the slab.
        state: address of float32[n, count + (1 if there are scalars)].
        state_stride: bytes of a row of it.
    """
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
    if scalars.shape[0] > 0:
        for i in range(n):
            if slots[i] >= 0:
                store(state + i * state_stride + count * _FOUR, scalars[slots[i]])
