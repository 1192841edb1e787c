"""Records of rows between the slab, buffers and a file, without the interpreter lock.

A record is a row as in the slab, followed by its scalar float32, if it has one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.core import types

from satrap.store.arrays import Inverse
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.rows import SlabRows, ahead, copy_floats, fetch
from satrap.store.kernels.simd import load_like, store

_FOUR = np.uint64(4)
_ZERO = np.uint64(0)
_LARGEST = 64 << 20
"""Most bytes of one transfer."""
_TRANSFER = types.intp(types.int32, types.uintp, types.uintp, types.int64)
_pread: Any = types.ExternalFunction("pread", _TRANSFER)
_pwrite: Any = types.ExternalFunction("pwrite", _TRANSFER)
_ADVICE = types.int32(types.int32, types.int64, types.int64, types.int32)
_posix_fadvise: Any = types.ExternalFunction("posix_fadvise", _ADVICE)


@kernel
def take(rows: SlabRows, slots: Inverse, records: np.uint64, record: np.uint64) -> None:
    """Copy the rows of slots to the records at an address."""
    base, stride = rows.base, rows.stride
    n, distance = np.uint64(slots.shape[0]), np.uint64(ahead(stride))
    for i in range(n):
        j = i + distance
        if j < n:
            fetch(base + np.uint64(slots[j]) * stride, stride)
        to = records + i * record
        copy_floats(base + np.uint64(slots[i]) * stride, to, stride // _FOUR)
        if rows.scalars != _ZERO:
            scalar = rows.scalars + np.uint64(slots[i]) * _FOUR
            store(to + stride, load_like(np.float32(0), scalar))


@kernel
def put(rows: SlabRows, slots: Inverse, records: np.uint64, record: np.uint64) -> None:
    """Copy the records at an address to the rows of slots."""
    base, stride = rows.base, rows.stride
    for i in range(np.uint64(slots.shape[0])):
        start = records + i * record
        copy_floats(start, base + np.uint64(slots[i]) * stride, stride // _FOUR)
        if rows.scalars != _ZERO:
            scalar = rows.scalars + np.uint64(slots[i]) * _FOUR
            store(scalar, load_like(np.float32(0), start + stride))


@helper
def _run(slots: Inverse, first: int, most: int) -> int:
    """Return the end of the run of adjacent slots that starts at `first`, at most `most` slots."""
    end = first + 1
    while (
        end < slots.shape[0] and end - first < most and np.int64(slots[end]) == np.int64(slots[end - 1]) + 1
    ):
        end += 1
    return end


@kernel
def transfer(fd: int, slots: Inverse, records: np.uint64, record: int, writing: bool) -> int:
    """Read the records of slots to an address, or write them from there; return how many are complete.

    Adjacent slots are transferred together.
    """
    n, i, most = len(slots), 0, max(1, _LARGEST // record)
    while i < n:
        end = _run(slots, i, most)
        size, done = (end - i) * record, np.int64(0)
        while done < size:
            memory, remaining = records + np.uint64(i * record + done), np.uint64(size - done)
            place = np.int64(slots[i]) * record + done
            if writing:
                moved = np.int64(_pwrite(np.int32(fd), memory, remaining, place))
            else:
                moved = np.int64(_pread(np.int32(fd), memory, remaining, place))
            if moved <= 0:
                return i
            done += moved
        i = end
    return n


@kernel
def advise(fd: int, slots: Inverse, record: int, advice: int) -> None:
    """Advise the system on the use of the records of slots, see posix_fadvise(2)."""
    for i in range(slots.shape[0]):
        _posix_fadvise(np.int32(fd), np.int64(slots[i]) * record, np.int64(record), np.int32(advice))
