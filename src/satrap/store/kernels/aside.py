"""Copies of rows, by fixed bucket: stores and lists them. See `satrap.store.aside`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.store.kernels.hashing import BUCKET_SHIFT, mix
from satrap.store.kernels.jit import kernel

USED, FREE = 0, 1
"""Words of `counts`: places ever used, and how many of them are free again."""
BUCKETS = 1 << (64 - int(BUCKET_SHIFT))


@kernel
def put(
    tables: npt.NDArray[np.int32],
    ids: npt.NDArray[np.uint64],
    weights: npt.NDArray[np.float32],
    state: npt.NDArray[np.float32],
    salts: npt.NDArray[np.uint64],
    done: npt.NDArray[np.int32],
    kept: npt.NDArray[np.uint64],
    rows: npt.NDArray[np.float32],
    heads: npt.NDArray[np.int32],
    nexts: npt.NDArray[np.int32],
    free: npt.NDArray[np.int32],
    counts: npt.NDArray[np.int64],
) -> None:
    """Copy the rows whose bucket is not done yet; there must be enough places.

    Args:
        tables, ids, weights, state: of each row.
        salts: of each table.
        done: int32[tables], buckets below which nothing is needed any more.
        kept: ids by place.
        rows: float32[places, dim + width].
        heads: int32[tables * BUCKETS], 1 + the newest place of each bucket, 0 for none.
        nexts: the same for the next older place.
        free: stack of places.
        counts: see `USED`.
    """
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
        kept[place] = ids[i]
        for k in range(dim):
            rows[place, k] = weights[i, k]
        for k in range(width):
            rows[place, dim + k] = state[i, k]
        key = np.int64(t) * BUCKETS + bucket
        nexts[place] = heads[key]
        heads[key] = np.int32(place + 1)


@kernel
def listed(
    first: int,
    last: int,
    heads: npt.NDArray[np.int32],
    nexts: npt.NDArray[np.int32],
    places: npt.NDArray[np.int32],
    buckets: npt.NDArray[np.int32],
) -> int:
    """Write the places and the buckets of all rows in heads first..last; return how many."""
    count = 0
    for key in range(first, last + 1):
        place = heads[key]
        while place > 0:
            places[count] = place - 1
            buckets[count] = key % BUCKETS
            count += 1
            place = nexts[place - 1]
    return count
