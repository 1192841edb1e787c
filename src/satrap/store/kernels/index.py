"""Finding the slots of ids, and listing the ids of a range. See `layout`."""

from __future__ import annotations

import numpy as np

from satrap.store.kernels.eviction import use
from satrap.store.kernels.hashing import BUCKET_SHIFT, mix
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.layout import (
    AHEAD,
    BUCKET_BYTES,
    DEPTH,
    ENTRIES,
    PAGE_BUCKETS,
    PAGE_BYTES,
    ROOT,
    SALT,
    SEGMENT_COUNT,
    SEGMENT_PAGES,
    Index,
    fact,
    first_bucket,
    get32,
    lead,
    listed,
    map_of,
    note_at,
    probe,
    record,
    second_bucket,
    slot_at,
)
from satrap.store.kernels.simd import load_i64, load_u32, load_u64, prefetch, prefetch_write
from satrap.store.types import Ids, Inverse, Offsets

_ZERO = np.uint64(0)
_EIGHT = np.uint64(8)
_LISTS_AHEAD = np.uint64(16)
_BUCKET = np.uint64(BUCKET_BYTES)
_PAGE = np.uint64(PAGE_BYTES)


@helper
def locate_first(index: Index, ids: Ids, splits: Offsets, places: Ids) -> None:
    """Write the address of each id's first bucket.

    Hashes come first: a loop that does nothing else is vectorized. A segment's list of pages is prefetched 16
    ids ahead: above about 10 million rows the lists no longer stay in the cache.
    """
    for t in range(splits.shape[0] - 1):
        where, first, end = map_of(index, t), np.uint64(splits[t]), np.uint64(splits[t + 1])
        for i in range(first, end):  # unsigned: see `gather`
            places[i] = mix(ids[i] ^ where.salt)
        for i in range(first, end):
            if i + _LISTS_AHEAD < end:
                prefetch(listed(index, lead(where, places[i + _LISTS_AHEAD])).pages)
            h = places[i]
            places[i] = first_bucket(index, listed(index, lead(where, h)), h)


@helper
def locate_second(
    index: Index, ids: Ids, splits: Offsets, queue: Offsets, places: Ids, seconds: Offsets
) -> None:
    """Write the address of the second bucket of `ids[queue[q]]` for each q, and count these ids by table."""
    q, n = 0, queue.shape[0]
    for t in range(splits.shape[0] - 1):
        where, begin = map_of(index, t), q
        while q < n and queue[q] < splits[t + 1]:
            h = mix(ids[queue[q]] ^ where.salt)
            places[q] = second_bucket(index, listed(index, lead(where, h)), h)
            q += 1
        seconds[t] += q - begin


@helper
def probe_all(
    index: Index, ids: Ids, places: Ids, step: np.uint32 | None, slots: Inverse, missing: Offsets
) -> int:
    """Write the slot of each id that is in its first bucket; queue the others, and return how many."""
    n, count, before = np.uint64(ids.shape[0]), _ZERO, np.uint64(AHEAD)
    for i in range(n):
        if i + before < n:
            prefetch(places[i + before])
            if step is not None:
                prefetch_write(note_at(index, places[i + before]))
        slot = probe(places[i], ids[i])
        slots[i] = slot
        missing[count] = i
        count += np.uint64(slot < 0)
        if step is not None and slot >= 0:
            use(index, places[i], ids[i], step)
    return int(np.int64(count))


@helper
def probe_queue(
    index: Index, ids: Ids, places: Ids, step: np.uint32 | None, slots: Inverse, missing: Offsets, queued: int
) -> int:
    """Probe the second buckets of queued ids; return how many are left in the queue."""
    left = 0
    for q in range(queued):
        if q + AHEAD < queued:
            prefetch(places[q + AHEAD])
        i = missing[q]
        slot = probe(places[q], ids[i])
        slots[i] = slot
        missing[left] = i
        left += slot < 0
        if step is not None and slot >= 0:
            use(index, places[q], ids[i], step)
    return left


@kernel
def find(
    index: Index,
    ids: Ids,
    splits: Offsets,
    step: np.uint32 | None,
    slots: Inverse,
    missing: Offsets,
    places: Ids,
    seconds: Offsets,
) -> int:
    """Write the slot of each id, -1 without a row; return how many have none, with positions in `missing`.

    `ids[splits[t]:splits[t + 1]]` belong to table t. First buckets are probed, and prefetched AHEAD ids
    ahead; ids not found there are queued, and probed in their second bucket. With a step, uses are noted.
    `places` is scratch for n entries. Adds to `seconds[t]` how many ids of table t were not in their first
    bucket.
    """
    locate_first(index, ids, splits, places)
    queued = probe_all(index, ids, places, step, slots, missing)
    if queued == 0:
        return 0
    locate_second(index, ids, splits, missing[:queued], places, seconds)
    return probe_queue(index, ids, places, step, slots, missing, queued)


@kernel
def collect(index: Index, t: int, first: int, last: int, ids: Ids, slots: Inverse, buckets: Inverse) -> int:
    """Write ids, slots and buckets of the rows of table t in fixed buckets first..last; return how many.

    If the arrays are shorter than that, nothing is written beyond their end.
    """
    found, previous, salt = 0, -1, load_u64(record(index, t, SALT))
    depth, root = load_i64(record(index, t, DEPTH)), load_i64(record(index, t, ROOT))
    for k in range(
        (first << depth) >> 12, ((last << depth) >> 12) + 1 if depth < 12 else (last + 1) << (depth - 12)
    ):
        segment = get32(index.directory, root + k) >> 5
        if segment == previous:
            continue
        previous = segment
        for b in range(fact(index, segment, SEGMENT_COUNT) * PAGE_BUCKETS * ENTRIES):
            k = b // ENTRIES
            page = get32(index.pages, segment * SEGMENT_PAGES + k // PAGE_BUCKETS)
            at = np.uint64(k % PAGE_BUCKETS) * _BUCKET + np.uint64(b % ENTRIES) * _EIGHT
            entry = index.entries + np.uint64(page) * _PAGE + at
            slot = load_u32(slot_at(entry))
            if slot == np.uint32(0):
                continue
            key = load_u64(entry)
            bucket = np.int64(mix(key ^ salt) >> BUCKET_SHIFT)
            if first <= bucket <= last:
                if found < ids.shape[0]:
                    ids[found], slots[found], buckets[found] = key, np.int64(slot) - 1, bucket
                found += 1
    return found
