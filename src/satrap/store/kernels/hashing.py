"""The hash of an id within its table, and the values derived from it.

One 64-bit mix of (id xor salt of the table): the top 12 bits are the fixed bucket of (table, id), the top
bits choose the segment of the index, the rest choose the two candidate buckets in the segment.
"""

from __future__ import annotations

import numpy as np

from satrap.store.arrays import Ids, Inverse
from satrap.store.kernels.formats import Format, store_weights, weight_bytes
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.simd import LANES, uniform16

BUCKET_SHIFT = np.uint64(52)
_FACTOR = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_STEP = np.float32(2.0**-23)


@helper
def mix(x: np.uint64) -> np.uint64:
    """Scramble 64 bits; one-to-one."""
    x = (x ^ (x >> _HALF)) * _FACTOR
    x = (x ^ (x >> _HALF)) * _FACTOR
    return x ^ (x >> _HALF)


@helper
def initial_weights(
    fmt: Format, address: np.uint64, dim: np.uint64, key: np.uint64, scale: np.float32
) -> None:
    """Write `dim` weights, uniform in (-scale, scale), a pure function of `key` (id xor table seed)."""
    h = mix(key)
    rounding = mix(h)
    item = weight_bytes(fmt)
    low, high = np.uint32(h), np.uint32(h >> _HALF) | np.uint32(1)
    unit = scale * _STEP
    full = dim & ~np.uint64(LANES - 1)
    for k in range(np.uint64(0), full, np.uint64(LANES)):
        values = uniform16(low, high, np.uint32(k), np.float32(unit))
        store_weights(fmt, address + item * k, values, rounding, k)
    for k in range(full, dim):
        x = np.uint32(low + np.uint32(high * np.uint32(k + np.uint64(1))))
        x ^= x >> np.uint32(16)
        x = np.uint32(x * np.uint32(0x7FEB352D))
        x ^= x >> np.uint32(15)
        x = np.uint32(x * np.uint32(0x846CA68B))
        x ^= x >> np.uint32(16)
        value = np.float32(np.int32(x >> np.uint32(9)) * np.int32(2) - np.int32(8388607))  # as uniform16
        store_weights(fmt, address + item * k, np.float32(value * unit), rounding, k)


@kernel
def buckets(ids: Ids, salt: np.uint64, out: Inverse) -> None:
    """Write the fixed bucket, 0..4095, of each id of the table with this salt."""
    for i in range(ids.shape[0]):
        out[i] = np.int32(mix(ids[i] ^ salt) >> BUCKET_SHIFT)
