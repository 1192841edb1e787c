"""Creates, reads, checks and copies rows `[weights | state]`, contiguous in one slab.

A row's weights are in the group's format, padded to a multiple of 4 bytes; its state is float32. A scalar
state of one number per row is stored separately, by slot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.store.arrays import Floats, Ids, Inverse, Offsets
from satrap.store.kernels.formats import (
    Float32,
    Format,
    read_weights,
    weight_bytes,
    widen_in_place,
    write_weights,
)
from satrap.store.kernels.hashing import initial_weights, mix
from satrap.store.kernels.jit import by_width, helper, kernel
from satrap.store.kernels.simd import prefetch, prefetch_write, store

_FOUR = np.uint64(4)
_LINE = np.uint64(64)
_ZERO = np.uint64(0)


class SlabRows(NamedTuple):
    """Addresses and sizes of rows, as plain numbers.

    Attributes:
        base: address of row 0.
        stride: bytes from one row to the next; the state ends there.
        dim: weights per row.
        scalars: address of the scalar float32 of the rows; 0 if they have none.
    """

    base: np.uint64
    stride: np.uint64
    dim: np.uint64
    scalars: np.uint64


class Initial(NamedTuple):
    """Parameters of new rows: uint64[tables], float32[tables], and the first values of state and scalar."""

    seeds: Ids
    scales: Floats
    state: np.float32
    scalar: np.float32


@helper
def copy_floats(source: np.uint64, target: np.uint64, count: np.uint64) -> None:
    """Copy `count` float32 from one address to another."""
    read_weights(Float32(_ZERO), source, target, count)


@helper
def fetch(address: np.uint64, size: np.uint64) -> None:
    """Start fetching the cache lines of `size` bytes."""
    for k in range(_ZERO, size, _LINE):
        prefetch(address + k)


@helper
def fetch_write(address: np.uint64, size: np.uint64) -> None:
    """Start fetching the cache lines of `size` bytes for writing."""
    for k in range(_ZERO, size, _LINE):
        prefetch_write(address + k)


@helper
def ahead(size: np.uint64) -> int:
    """Return the prefetch distance for rows of `size` bytes, in rows (about 64 to 128 cache lines)."""
    return min(64, max(4, int(np.int64(np.uint64(8192) // size))))


@by_width
def gather(width: int) -> Any:
    """Write the weights of each slot's row to `out + i * out_stride`; skip slot -1."""

    @kernel
    def gather_rows(
        fmt: Format, rows: SlabRows, slots: Inverse, out: np.uint64, out_stride: np.uint64
    ) -> None:
        d = np.uint64(width) if width else rows.dim
        base, stride = rows.base, rows.stride
        n, size = np.uint64(slots.shape[0]), d * weight_bytes(fmt)
        distance = np.uint64(ahead(size))
        for i in range(n):  # unsigned: Numba adds no test for indices from the end
            j = i + distance
            if j < n and slots[j] >= 0:
                fetch(base + np.uint64(slots[j]) * stride, size)
            slot = slots[i]
            if slot >= 0:
                read_weights(fmt, base + np.uint64(slot) * stride, out + i * out_stride, d)

    return gather_rows


@kernel
def scatter(
    fmt: Format,
    rows: SlabRows,
    ids: Ids,
    slots: Inverse,
    weights: np.uint64,
    state: np.uint64,
    count: np.uint64,
) -> None:
    """Write `dim` float32 weights, rounded to the format, and `count` float32 of state to each slot's row."""
    stride, dim = rows.stride, rows.dim
    for i in range(slots.shape[0]):
        row = rows.base + np.uint64(slots[i]) * stride
        write_weights(fmt, weights + np.uint64(i) * dim * _FOUR, row, dim, mix(ids[i] ^ fmt.noise))
        copy_floats(state + np.uint64(i) * count * _FOUR, row + stride - count * _FOUR, count)


@kernel
def initialize(
    fmt: Format, rows: SlabRows, initial: Initial, ids: Ids, splits: Offsets, missing: Offsets, slots: Inverse
) -> None:
    """Write the initial rows of missing ids: weights from (seed, id), then state up to the stride."""
    stride, dim, seeds, scales = rows.stride, rows.dim, initial.seeds, initial.scales
    weights = (dim * weight_bytes(fmt) + np.uint64(3)) & ~np.uint64(3)
    table = 0
    for i in missing:
        while i >= splits[table + 1]:
            table += 1
        slot = np.uint64(slots[i])
        row = rows.base + slot * stride
        initial_weights(fmt, row, dim, ids[i] ^ seeds[table], scales[table])
        for k in range(weights, stride, _FOUR):
            store(row + k, initial.state)
        if rows.scalars != _ZERO:
            store(rows.scalars + slot * _FOUR, initial.scalar)


@kernel
def initial_rows(
    fmt: Format,
    initial: Initial,
    ids: Ids,
    splits: Offsets,
    missing: Offsets,
    dim: np.uint64,
    out: np.uint64,
    out_stride: np.uint64,
) -> None:
    """Write the initial weights of the missing ids to `out + i * out_stride`."""
    table, seeds, scales = 0, initial.seeds, initial.scales
    for i in missing:
        while i >= splits[table + 1]:
            table += 1
        initial_weights(fmt, out + np.uint64(i) * out_stride, dim, ids[i] ^ seeds[table], scales[table])
        widen_in_place(fmt, out + np.uint64(i) * out_stride, dim)


@kernel
def all_finite(bits: npt.NDArray[np.uint32]) -> bool:
    """Return False if any of these float32 (given as bits) is NaN or infinite."""
    largest = np.uint32(0)
    for i in range(bits.shape[0]):
        largest = max(largest, np.uint32(bits[i] & np.uint32(0x7FFFFFFF)))
    return bool(largest < np.uint32(0x7F800000))
