"""Stores and lists copies of rows by fixed bucket. See `satrap.store.snapshot.copy_on_write`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from satrap.store.arrays import Floats, Ids, Inverse, Offsets
from satrap.store.kernels.hashing import BUCKET_SHIFT, mix
from satrap.store.kernels.jit import kernel

USED, FREE = 0, 1
"""Words of `counts`: places used so far, and how many of them are free again."""
BUCKETS = 1 << (64 - int(BUCKET_SHIFT))


class Copies(NamedTuple):
    """Copies of rows by place, and by bucket.

    Attributes:
        salts: uint64[tables].
        done: int32[tables], buckets below which copies are no longer needed.
        ids: uint64[places].
        rows: float32[places, dim + width].
        heads: int32[tables * BUCKETS], 1 + the newest place of each bucket, 0 for none.
        nexts: int32[places], 1 + the next older place of the same bucket, 0 for none.
        free: int32[places], a stack of places.
        counts: int64[2], see `USED`.
    """

    salts: Ids
    done: Inverse
    ids: Ids
    rows: Floats
    heads: Inverse
    nexts: Inverse
    free: Inverse
    counts: Offsets


@kernel
def put(copies: Copies, tables: Inverse, ids: Ids, weights: Floats, state: Floats) -> None:
    """Copy the rows whose bucket is not done yet; enough places must be free."""
    salts, done, stored, rows, heads, nexts, free, counts = copies
    dim, width = weights.shape[1], state.shape[1]
    for i in range(ids.shape[0]):
        t = tables[i]
        bucket = np.int64(mix(ids[i] ^ salts[t]) >> BUCKET_SHIFT)
        if bucket < done[t]:
            continue
        if counts[FREE] > 0:
            counts[FREE] -= 1
            place = np.int64(free[counts[FREE]])
        else:
            place = counts[USED]
            counts[USED] += 1
        stored[place] = ids[i]
        for k in range(dim):
            rows[place, k] = weights[i, k]
        for k in range(width):
            rows[place, dim + k] = state[i, k]
        key = np.int64(t) * BUCKETS + bucket
        nexts[place] = heads[key]
        heads[key] = np.int32(place + 1)


@kernel
def listed(copies: Copies, first: int, last: int, places: Inverse, buckets: Inverse) -> int:
    """Write the places and buckets of all rows in heads first..last; return their number."""
    count, heads, nexts = 0, copies.heads, copies.nexts
    for key in range(first, last + 1):
        place = heads[key]
        while place > 0:
            places[count] = place - 1
            buckets[count] = key % BUCKETS
            count += 1
            place = nexts[place - 1]
    return count
