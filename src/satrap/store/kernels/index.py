"""Where a row is: one growing hash index per table, all tables of a group in shared memory.

```
table  --top bits of the hash-->  segment  --rest of the hash-->  two candidate buckets of 8 entries
```
A *segment* is 1 to 64 *pages*; a page is 16 KiB: 128 buckets of 8 keys (one cache line) and 8 values (the
next). A value is `slot + 1 | tick << 32`, 0 when free, so fresh zeroed memory is an empty index. A segment
that is 85 % full is laid out again over 1.25 times its pages, or split in two beyond 64: a row costs about 20
bytes of index and no insert moves more than one segment (1 MiB). All pages have one size, so a page that one
segment gives back is the next one's growth.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from satrap.store.kernels.hashing import BUCKET_SHIFT, mix
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.simd import (
    load_i32,
    load_i64,
    load_u32,
    load_u64,
    match8,
    prefetch,
    prefetch_write,
    store_i32,
    store_i64,
    store_u32,
    store_u64,
    trailing_zeros,
)

PAGE_BYTES = 16384
SEGMENT_PAGES = 64
ENTRIES_PER_PAGE = 1024
FULL = 870
"""Entries in use per page beyond which a segment grows: 85 % of 1024."""
MAX_DEPTH = 40
AHEAD = 64
"""How many ids ahead of the probe their bucket is prefetched (measured: 16 is slow, 64 and 128 tie)."""

# fields of Index.counts
PAGES_USED, PAGES_FREE, SEGMENTS, DIRECTORY, PAGES_LIMIT, SEGMENTS_LIMIT, DIRECTORY_LIMIT, COUNTS = range(8)

_PAGE = np.uint64(PAGE_BYTES)
_FOUR = np.uint64(4)
_LINE = np.uint64(64)
_BUCKET_MASK = np.uint64(127 << 7)
_BUCKET_SHIFT = np.uint64(18)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_EIGHT = np.uint64(8)
_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_SECOND = np.uint64(0x9E3779B97F4A7C15)
_NOWHERE = np.uint64(0)


class Index(NamedTuple):
    """Addresses of the index of one group (plain numbers: passing arrays to helpers would count references).

    Segment s owns `pages[64 * s : 64 * s + segment_pages[s]]`; table t owns
    `directory[roots[t] : roots[t] + 2 ** depths[t]]`, segments by the top `depths[t]` bits of the hash.
    Segments 0 and 1 are scratch lists of pages, in use only while a segment is laid out again.

    Attributes:
        entries: page 0.
        pages: int32[64 * segments].
        segment_pages, segment_used, segment_depth: int32[segments].
        directory: int32.
        free_pages: int32, a stack.
        roots, depths: int64[tables].
        salts: uint64[tables].
        counts: int64[COUNTS].
    """

    entries: np.uint64
    pages: np.uint64
    segment_pages: np.uint64
    segment_used: np.uint64
    segment_depth: np.uint64
    directory: np.uint64
    free_pages: np.uint64
    roots: np.uint64
    depths: np.uint64
    salts: np.uint64
    counts: np.uint64


@helper
def get32(base: np.uint64, i: int) -> int:
    """Return element i of an int32 array."""
    return int(np.int64(load_i32(base + np.uint64(i) * _FOUR)))


@helper
def set32(base: np.uint64, i: int, value: int) -> None:
    """Write element i of an int32 array."""
    store_i32(base + np.uint64(i) * _FOUR, int(np.int32(value)))


@helper
def get64(base: np.uint64, i: int) -> int:
    """Return element i of an int64 array."""
    return load_i64(base + np.uint64(i) * _EIGHT)


@helper
def set64(base: np.uint64, i: int, value: int) -> None:
    """Write element i of an int64 array."""
    store_i64(base + np.uint64(i) * _EIGHT, value)


@helper
def hash_of(index: Index, t: int, key: np.uint64) -> np.uint64:
    """Return the hash of an id of table t."""
    return mix(key ^ load_u64(index.salts + np.uint64(t) * _EIGHT))


@helper
def segment_of(index: Index, t: int, h: np.uint64) -> int:
    """Return the segment of table t that holds hash h."""
    shift = np.uint64(63 - get64(index.depths, t))
    return get32(index.directory, get64(index.roots, t) + int(np.int64((h >> _ONE) >> shift)))


@helper
def bucket_at(index: Index, segment: int, half: np.uint64) -> np.uint64:
    """Return the address of the bucket that 32 bits of hash choose in a segment."""
    x = half * np.uint64(get32(index.segment_pages, segment))
    page = np.uint64(get32(index.pages, segment * SEGMENT_PAGES + int(np.int64(x >> _HALF))))
    return index.entries + page * _PAGE + ((x >> _BUCKET_SHIFT) & _BUCKET_MASK)


@helper
def first_half(h: np.uint64) -> np.uint64:
    """Return the 32 bits that choose the first candidate bucket."""
    return h & _LOW


@helper
def second_half(h: np.uint64) -> np.uint64:
    """Return the 32 bits that choose the second; they do not depend on the segment's bits alone."""
    return (h * _SECOND) >> _HALF


@helper
def probe(bucket: np.uint64, key: np.uint64, tick: np.uint32) -> int:
    """Return the slot of `key` in a bucket or -1; a tick other than 0 is noted as the last use."""
    found = match8(bucket, key)
    while found != np.uint32(0):
        value = bucket + _LINE + _EIGHT * trailing_zeros(found)
        slot = load_u32(value)
        if slot != np.uint32(0):  # a free entry also "matches" key 0
            if tick != np.uint32(0):
                store_u32(value + np.uint64(4), tick)
            return int(np.int64(slot)) - 1
        found &= np.uint32(found - np.uint32(1))
    return -1


@helper
def fetch_bucket(bucket: np.uint64) -> None:
    """Start fetching both lines of a bucket."""
    prefetch(bucket)
    prefetch_write(bucket + _LINE)


@kernel
def find(
    index: Index,
    ids: npt.NDArray[np.uint64],
    splits: npt.NDArray[np.int64],
    tick: np.uint32,
    slots: npt.NDArray[np.int32],
    missing: npt.NDArray[np.int64],
    second: npt.NDArray[np.uint64],
) -> int:
    """Write the slot of each id, -1 without a row; return how many have none, positions in `missing`.

    `ids[splits[t]:splits[t + 1]]` belong to table t. Two passes: first choices, prefetched AHEAD ids ahead;
    what is not there is queued with its second bucket prefetched, and probed at the end. `second` is scratch
    of AHEAD + n entries.
    """
    n = ids.shape[0]
    ring = second[n:]
    queued, lead, table = 0, 0, 0
    for i in range(-AHEAD, n):
        j = i + AHEAD
        if j < n:
            while j >= splits[lead + 1]:
                lead += 1
            h = hash_of(index, lead, ids[j])
            bucket = bucket_at(index, segment_of(index, lead, h), first_half(h))
            fetch_bucket(bucket)
        if i >= 0:
            key = ids[i]
            slot = probe(ring[i & (AHEAD - 1)], key, tick)
            slots[i] = slot
            if slot < 0:
                while i >= splits[table + 1]:
                    table += 1
                h = hash_of(index, table, key)
                other = bucket_at(index, segment_of(index, table, h), second_half(h))
                fetch_bucket(other)
                missing[queued] = i
                second[queued] = other
                queued += 1
        if j < n:
            ring[j & (AHEAD - 1)] = bucket
    left = 0
    for q in range(queued):
        i = missing[q]
        slot = probe(second[q], ids[i], tick)
        slots[i] = slot
        if slot < 0:
            missing[left] = i
            left += 1
    return left


@helper
def free_entry(bucket: np.uint64) -> np.uint64:
    """Return the address of a free entry's key in a bucket, or 0."""
    free = match8(bucket + _LINE, _ZERO)
    if free != np.uint32(0):
        return bucket + _EIGHT * trailing_zeros(free)
    return _NOWHERE


@helper
def place(index: Index, t: int, segment: int, h: np.uint64) -> np.uint64:
    """Return the address of a free entry for hash h, or 0; may move one resident to its other bucket."""
    first = bucket_at(index, segment, first_half(h))
    entry = free_entry(first)
    if entry != _NOWHERE:
        return entry
    second = bucket_at(index, segment, second_half(h))
    entry = free_entry(second)
    if entry != _NOWHERE:
        return entry
    for k in range(16):
        home = first if k < 8 else second
        resident = home + _EIGHT * np.uint64(k & 7)
        key = load_u64(resident)
        r = hash_of(index, t, key)
        other = bucket_at(index, segment, first_half(r))
        if other == home:
            other = bucket_at(index, segment, second_half(r))
        entry = free_entry(other)
        if entry != _NOWHERE:
            store_u64(entry, key)
            store_u64(entry + _LINE, load_u64(resident + _LINE))
            store_u64(resident + _LINE, _ZERO)
            return resident
    return _NOWHERE


@helper
def take_pages(index: Index, segment: int, count: int) -> bool:
    """Give an empty segment `count` empty pages; False when the reserved memory is used up."""
    for k in range(count):
        free = get64(index.counts, PAGES_FREE)
        page = get64(index.counts, PAGES_USED)
        if free > 0:
            page = get32(index.free_pages, free - 1)
            set64(index.counts, PAGES_FREE, free - 1)
            start = index.entries + np.uint64(page) * _PAGE
            for b in range(PAGE_BYTES // 8):
                store_u64(start + _EIGHT * np.uint64(b), _ZERO)
        elif page < get64(index.counts, PAGES_LIMIT):
            set64(index.counts, PAGES_USED, page + 1)
        else:
            return False
        set32(index.pages, segment * SEGMENT_PAGES + k, page)
        set32(index.segment_pages, segment, k + 1)
    return True


@helper
def give_pages(index: Index, segment: int) -> None:
    """Return all pages of a segment to the free list; it is empty then."""
    free = get64(index.counts, PAGES_FREE)
    count = get32(index.segment_pages, segment)
    for k in range(count):
        set32(index.free_pages, free + k, get32(index.pages, segment * SEGMENT_PAGES + k))
    set64(index.counts, PAGES_FREE, free + count)
    set32(index.segment_pages, segment, 0)
    set32(index.segment_used, segment, 0)


@helper
def copy_entries(index: Index, t: int, source: int, bit: np.uint64) -> bool:
    """Copy the entries of a segment to scratch 1 where the hash has `bit`, else to 0; False if stuck."""
    for p in range(get32(index.segment_pages, source)):
        page = index.entries + np.uint64(get32(index.pages, source * SEGMENT_PAGES + p)) * _PAGE
        for e in range(ENTRIES_PER_PAGE):
            entry = page + np.uint64((e >> 3) * 128 + (e & 7) * 8)
            value = load_u64(entry + _LINE)
            if value != _ZERO:
                key = load_u64(entry)
                h = hash_of(index, t, key)
                target = 1 if (h & bit) != _ZERO else 0
                free = place(index, t, target, h)
                if free == _NOWHERE:
                    return False
                store_u64(free, key)
                store_u64(free + _LINE, value)
                set32(index.segment_used, target, get32(index.segment_used, target) + 1)
    return True


@helper
def lay_out(index: Index, t: int, segment: int, count: int, bit: np.uint64) -> bool:
    """Copy a segment to scratch 0, and 1 if there is a `bit`, of `count` pages or somewhat more each.

    Its own pages are given back then; False, with nothing changed, when it cannot be done.
    """
    while count <= SEGMENT_PAGES:
        if not take_pages(index, 0, count) or (bit != _ZERO and not take_pages(index, 1, count)):
            count = SEGMENT_PAGES
        elif copy_entries(index, t, segment, bit):
            give_pages(index, segment)
            return True
        give_pages(index, 0)
        give_pages(index, 1)
        count += max(1, count // 8)
    return False


@helper
def adopt(index: Index, segment: int, scratch: int) -> None:
    """Give the pages of a scratch list to a segment that has none."""
    count = get32(index.segment_pages, scratch)
    for k in range(count):
        page = get32(index.pages, scratch * SEGMENT_PAGES + k)
        set32(index.pages, segment * SEGMENT_PAGES + k, page)
    set32(index.segment_pages, segment, count)
    set32(index.segment_used, segment, get32(index.segment_used, scratch))
    set32(index.segment_pages, scratch, 0)
    set32(index.segment_used, scratch, 0)


@helper
def double_directory(index: Index, t: int) -> bool:
    """Give table t a directory of twice the entries; False when memory is used up."""
    depth, root, start = get64(index.depths, t), get64(index.roots, t), get64(index.counts, DIRECTORY)
    size = 1 << depth
    if start + 2 * size > get64(index.counts, DIRECTORY_LIMIT):
        return False
    for k in range(2 * size):
        set32(index.directory, start + k, get32(index.directory, root + (k >> 1)))
    set64(index.counts, DIRECTORY, start + 2 * size)
    set64(index.roots, t, start)
    set64(index.depths, t, depth + 1)
    return True


@helper
def point(index: Index, t: int, h: np.uint64, low: int, high: int, depth: int) -> None:
    """Let the directory of table t lead to two sibling segments of `depth` bits, either side of h's."""
    deep, root = get64(index.depths, t), get64(index.roots, t)
    span = 1 << (deep - depth)
    start = root + (int(np.int64((h >> _ONE) >> np.uint64(63 - deep))) & ~(2 * span - 1))
    for k in range(span):
        set32(index.directory, start + k, low)
        set32(index.directory, start + span + k, high)
    set32(index.segment_depth, low, depth)
    set32(index.segment_depth, high, depth)


@helper
def grow(index: Index, t: int, segment: int, h: np.uint64) -> bool:
    """Make room in the segment of hash h: 1.25 times its pages, or two segments; False when it cannot be."""
    pages = get32(index.segment_pages, segment)
    wider = pages + max(1, pages // 4)
    if wider <= SEGMENT_PAGES and lay_out(index, t, segment, wider, _ZERO):
        adopt(index, segment, 0)
        return True
    depth, fresh = get32(index.segment_depth, segment), get64(index.counts, SEGMENTS)
    if depth >= MAX_DEPTH or fresh >= get64(index.counts, SEGMENTS_LIMIT):
        return False
    if depth == get64(index.depths, t) and not double_directory(index, t):
        return False
    if not lay_out(index, t, segment, 5 * SEGMENT_PAGES // 8, _ONE << np.uint64(63 - depth)):
        return False
    adopt(index, segment, 0)
    adopt(index, fresh, 1)
    set64(index.counts, SEGMENTS, fresh + 1)
    point(index, t, h, segment, fresh, depth + 1)
    return True


@helper
def entry_for(index: Index, t: int, h: np.uint64) -> np.uint64:
    """Return the address of a free entry for a hash of table t, growing the index as needed, or 0."""
    for _ in range(16):
        segment = segment_of(index, t, h)
        used = get32(index.segment_used, segment)
        if used < get32(index.segment_pages, segment) * FULL:
            entry = place(index, t, segment, h)
            if entry != _NOWHERE:
                set32(index.segment_used, segment, used + 1)
                return entry
        if not grow(index, t, segment, h):
            return _NOWHERE
    return _NOWHERE


@kernel
def open_tables(index: Index, tables: int) -> bool:
    """Give every table one empty segment of one page; False when memory is used up."""
    for t in range(tables):
        if not take_pages(index, t + 2, 1):
            return False
        set64(index.roots, t, t)
        set32(index.directory, t, t + 2)
    set64(index.counts, SEGMENTS, tables + 2)
    set64(index.counts, DIRECTORY, tables)
    return True


@kernel
def collect(
    index: Index,
    t: int,
    first: int,
    last: int,
    ids: npt.NDArray[np.uint64],
    slots: npt.NDArray[np.int32],
    buckets: npt.NDArray[np.int32],
) -> int:
    """Write ids, slots and buckets of the rows of table t in buckets first..last; return how many.

    The arrays may be shorter than that: then nothing beyond them is written.
    """
    found, previous = 0, -1
    depth, root = get64(index.depths, t), get64(index.roots, t)
    for k in range(1 << depth):
        low, high = (k << 12) >> depth, (((k + 1) << 12) - 1) >> depth
        segment = get32(index.directory, root + k)
        if high < first or low > last or segment == previous:
            continue
        previous = segment
        for e in range(get32(index.segment_pages, segment) * ENTRIES_PER_PAGE):
            page = get32(index.pages, segment * SEGMENT_PAGES + e // ENTRIES_PER_PAGE)
            entry = index.entries + np.uint64(page) * _PAGE + np.uint64(((e >> 3) & 127) * 128 + (e & 7) * 8)
            slot = load_u32(entry + _LINE)
            if slot == np.uint32(0):
                continue
            key = load_u64(entry)
            bucket = np.int64(hash_of(index, t, key) >> BUCKET_SHIFT)
            if first <= bucket <= last:
                if found < ids.shape[0]:
                    ids[found], slots[found], buckets[found] = key, np.int64(slot) - 1, bucket
                found += 1
    return found
