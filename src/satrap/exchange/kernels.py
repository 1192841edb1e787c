"""Kernels of the exchange: owners of ids, short number formats. They release the interpreter lock."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.store.kernels import vectors as v
from satrap.store.kernels.hashing import BUCKET_SHIFT, mix
from satrap.store.kernels.jit import helper, kernel, shared

FLOAT32, FLOAT16, BFLOAT16, INT8 = FORMATS = 0, 1, 2, 3
"""Codes of number formats on the wire."""

_FOUR = np.uint64(4)
_LANES = np.uint64(v.LANES)
INFINITE = 0x7F800000
"""Bits of an infinite float32; magnitudes at or above it are not finite."""

EVERYWHERE = np.uint16(0xFFFF)
"""Marks a bucket that all shards hold."""


@shared
def row_bytes(kind: int, dim: int) -> int:
    """Return the bytes of a row on the wire; an int8 row begins with its step, a float32."""
    if kind == INT8:
        return dim + 4
    return 4 * dim if kind == FLOAT32 else 2 * dim


@helper
def _row(kind: int, dim: np.uint64) -> np.uint64:
    return np.uint64(row_bytes(kind, int(np.int64(dim))))


@helper
def _widen_bytes(source: np.uint64, target: np.uint64, n: np.uint64) -> None:
    step, first = v.load_step(source), source + _FOUR
    whole = n - n % _LANES
    for i in range(np.uint64(0), whole, _LANES):
        v.widen_byte(first + i, target + i * _FOUR, step)
    for i in range(whole, n):
        v.widen_byte_1(first + i, target + i * _FOUR, step)


@helper
def _widen(kind: int, source: np.uint64, target: np.uint64, n: np.uint64) -> None:
    if kind == INT8:
        _widen_bytes(source, target, n)
        return
    item = _row(kind, np.uint64(1))
    whole = n - n % _LANES
    for i in range(np.uint64(0), whole, _LANES):
        a, b = source + i * item, target + i * _FOUR
        if kind == FLOAT16:
            v.widen_half(a, b)
        elif kind == BFLOAT16:
            v.widen_brain(a, b)
        else:
            v.widen_single(a, b)
    for i in range(whole, n):
        a, b = source + i * item, target + i * _FOUR
        if kind == FLOAT16:
            v.widen_half_1(a, b)
        elif kind == BFLOAT16:
            v.widen_brain_1(a, b)
        else:
            v.widen_single_1(a, b)


@helper
def _narrow_bytes(source: np.uint64, target: np.uint64, n: np.uint64, scale: np.float32) -> np.uint32:
    whole = n - n % _LANES
    top = np.uint32(0)
    for i in range(np.uint64(0), whole, _LANES):
        top = max(top, v.top(source + i * _FOUR, scale))
    for i in range(whole, n):
        top = max(top, v.top_1(source + i * _FOUR, scale))
    if top == INFINITE - 1:  # 127 times the rounded step would overflow
        top = np.uint32(INFINITE - 2)
    step, first = v.save_step(top, target), target + _FOUR
    for i in range(np.uint64(0), whole, _LANES):
        v.narrow_byte(source + i * _FOUR, first + i, scale, step)
    for i in range(whole, n):
        v.narrow_byte_1(source + i * _FOUR, first + i, scale, step)
    return np.uint32(top >= INFINITE)


@helper
def _narrow(kind: int, source: np.uint64, target: np.uint64, n: np.uint64, scale: np.float32) -> np.uint32:
    if kind == INT8:
        return _narrow_bytes(source, target, n, scale)
    item = _row(kind, np.uint64(1))
    whole = n - n % _LANES
    bad = np.uint32(0)
    for i in range(np.uint64(0), whole, _LANES):
        a, b = source + i * _FOUR, target + i * item
        if kind == FLOAT16:
            bad |= v.narrow_half(a, b, scale)
        elif kind == BFLOAT16:
            bad |= v.narrow_brain(a, b, scale)
        else:
            bad |= v.narrow_single(a, b, scale)
    for i in range(whole, n):
        a, b = source + i * _FOUR, target + i * item
        if kind == FLOAT16:
            bad |= v.narrow_half_1(a, b, scale)
        elif kind == BFLOAT16:
            bad |= v.narrow_brain_1(a, b, scale)
        else:
            bad |= v.narrow_single_1(a, b, scale)
    return bad


@kernel
def widen(kind: int, source: np.uint64, target: np.uint64, rows: np.uint64, dim: np.uint64) -> None:
    """Convert rows at `source` to float32 at `target`."""
    if kind != INT8:  # without steps in between, the rows are one long row
        rows, dim = np.uint64(1), rows * dim
    step, stride = _row(kind, dim), dim * _FOUR
    for i in range(rows):
        _widen(kind, source + i * step, target + i * stride, dim)


@kernel
def narrow(
    kind: int, source: np.uint64, target: np.uint64, rows: np.uint64, dim: np.uint64, scale: np.float32
) -> bool:
    """Convert rows of float32, times `scale`; return whether all results are finite."""
    if kind != INT8:
        rows, dim = np.uint64(1), rows * dim
    step, stride = _row(kind, dim), dim * _FOUR
    bad = np.uint32(0)
    for i in range(rows):
        bad |= _narrow(kind, source + i * stride, target + i * step, dim, scale)
    return bool(bad == 0)


@kernel
def widen_rows(
    kind: int, source: np.uint64, dim: np.uint64, positions: npt.NDArray[np.int32], target: np.uint64
) -> None:
    """Convert row i of `source` to float32 row `positions[i]` of `target`."""
    step, stride = _row(kind, dim), dim * _FOUR
    for i in range(len(positions)):
        _widen(kind, source + np.uint64(i) * step, target + np.uint64(positions[i]) * stride, dim)


@kernel
def narrow_rows(
    kind: int,
    source: np.uint64,
    dim: np.uint64,
    positions: npt.NDArray[np.int32],
    target: np.uint64,
    scale: np.float32,
) -> bool:
    """Convert float32 row `positions[i]` of `source`, times `scale`, to row i; return if all are finite."""
    step, stride = _row(kind, dim), dim * _FOUR
    bad = np.uint32(0)
    for i in range(len(positions)):
        row = source + np.uint64(positions[i]) * stride
        bad |= _narrow(kind, row, target + np.uint64(i) * step, dim, scale)
    return bool(bad == 0)


@kernel
def add_rows(
    kind: int,
    source: np.uint64,
    positions: npt.NDArray[np.int32],
    out: npt.NDArray[np.float32],
    scratch: npt.NDArray[np.float32],
    scale: np.float32,
) -> None:
    """Add row i of `source`, times `scale`, to row `positions[i]` of `out`; `scratch` has space for one."""
    dim = np.uint64(out.shape[1])
    step, row = _row(kind, dim), np.uint64(scratch.ctypes.data)
    for i in range(len(positions)):
        _widen(kind, source + np.uint64(i) * step, row, dim)
        for k in range(out.shape[1]):
            out[positions[i], k] += scratch[k] * scale


@kernel
def peak(bits: npt.NDArray[np.uint32]) -> np.uint32:
    """Return the largest magnitude of float32 bits; at or above `INFINITE`, a number is not finite."""
    top = np.uint32(0)
    for i in range(len(bits)):
        top = max(top, bits[i] & np.uint32(0x7FFFFFFF))
    return top


@kernel
def split(
    ids: npt.NDArray[np.uint64],
    splits: npt.NDArray[np.int64],
    salts: npt.NDArray[np.uint64],
    owners: npt.NDArray[np.uint16],
    owner: npt.NDArray[np.uint16],
    bounds: npt.NDArray[np.int64],
    grouped: npt.NDArray[np.uint64],
    positions: npt.NDArray[np.int32],
) -> None:
    """Sort ids by (owner, table), stably; ids of `EVERYWHERE` buckets appear once for each shard.

    Args:
        ids, splits: ids by table, as in a request.
        salts: hash salt per table.
        owners: uint16[tables, buckets]: the shard of each bucket, or `EVERYWHERE`.
        owner: uint16[n], scratch.
        bounds: int64[shards, tables + 1], zeroed; on return shard s owns `grouped[bounds[s, t]:bounds[s, t +
            1]]` of table t, and bounds[s, tables] == bounds[s + 1, 0].
        grouped: uint64[k], receives the ids; k is n, plus shards - 1 for each `EVERYWHERE` id.
        positions: int32[k], receives the place of each in `ids`.
    """
    shards, tables = bounds.shape[0], len(salts)
    for t in range(tables):
        for i in range(splits[t], splits[t + 1]):
            s = owners[t, mix(ids[i] ^ salts[t]) >> BUCKET_SHIFT]
            owner[i] = s
            first, end = (0, shards) if s == EVERYWHERE else (s, s + 1)
            for each in range(first, end):
                bounds[each, t + 1] += 1
    start = 0
    for s in range(shards):
        bounds[s, 0] = start
        for t in range(tables):
            count = bounds[s, t + 1]
            bounds[s, t + 1] = start  # temporarily: the position of the next id of (s, t)
            start += count
    for t in range(tables):
        for i in range(splits[t], splits[t + 1]):
            s = owner[i]
            first, end = (0, shards) if s == EVERYWHERE else (s, s + 1)
            for each in range(first, end):
                place = bounds[each, t + 1]
                grouped[place] = ids[i]
                positions[place] = i
                bounds[each, t + 1] = place + 1


@kernel
def count_buckets(
    ids: npt.NDArray[np.uint64],
    splits: npt.NDArray[np.int64],
    salts: npt.NDArray[np.uint64],
    counts: npt.NDArray[np.float64],
) -> None:
    """Add 1 to the count of the bucket of each id.

    Args:
        ids, splits: ids by table, as in a request.
        salts: hash salt per table.
        counts: float64[buckets].
    """
    for t in range(len(salts)):
        for i in range(splits[t], splits[t + 1]):
            counts[mix(ids[i] ^ salts[t]) >> BUCKET_SHIFT] += 1.0
