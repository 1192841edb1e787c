"""The index: one growing hash index per table; all tables of a group share memory.

```
table  --top bits of the hash-->  segment  --other bits-->  two candidate buckets of 5 entries
```
A *bucket* is one cache line: 5 keys of 8 bytes, 5 values `slot + 1` of 4 bytes, and 4 bytes of 0. The value 0
means free, so fresh zeroed memory is an empty index, and a key without a match reads the last word, "none",
without a branch. A key is in one of two buckets, chosen by two parts of its hash. If rows are evicted, each
entry has a *note* in separate memory: the step of its last use, or a count of uses.

A *segment* is 1 to 16 *pages* of 32 buckets (2 KiB). When it is 80 % full, it is laid out again over 1.4
times its pages, or split in two above 16 pages. This is the longest wait of an insert: 2,000 entries, all in
cache, about 30 microseconds. Small segments also do not all grow in the same request. All pages have the same
size, so another segment can grow into a freed page. Once the memory is used up, segments that are not full
release pages (rows that arrive in hash order leave many half empty). A row costs about 19 bytes of index, and
6 more with notes.

Measured and rejected: buckets of 8 keys and 8 values in two lines (find takes nearly twice as long), segments
of 1 MiB (a request of 2,000 new ids waited up to 76 ms, as many segments grew at once), and linear hashing
(no wait, but 37 % of the ids are in their second bucket instead of 7 %).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from satrap.store.kernels.jit import helper
from satrap.store.kernels.simd import (
    load_i32,
    load_i64,
    load_u32,
    load_u64,
    match8,
    store_i32,
    store_i64,
    trailing_zeros,
    zeros8,
)

BUCKET_BYTES = 64
ENTRIES = 5
PAGE_BUCKETS = 32
PAGE_BYTES = PAGE_BUCKETS * BUCKET_BYTES
SEGMENT_PAGES = 16
FULL = 128
"""Entries in use per page beyond which a segment grows: 80 % of 160."""
MAX_DEPTH = 26
SPARE_PAGES = 32
"""Pages used only while segments are laid out again; growth can take only half of them."""
AHEAD = 64
"""Prefetch distance of buckets, in ids (measured: 16 is slow, 64 and 128 tie)."""
CREATE_AHEAD = 16
FEWEST = 4
"""Fewest rows in two buckets for an eviction: the worst of one or two rows may be a good row."""
WALK = 256
"""Bucket pairs that the clock hand checks before eviction fails, if the request uses all their rows."""
LOG_ENTRY = 16

# words of a table's record
SALT, ROOT, DEPTH, USED, CREATED, EVICTED, REFUSED, SECOND, RECORD = range(9)
# words of Index.counts
(
    TABLES,
    SLOTS_USED,
    SLOTS_LIMIT,
    SLOTS_FREE,
    PAGES_USED,
    PAGES_LIMIT,
    PAGES_FREE,
    SEGMENTS,
    SEGMENTS_LIMIT,
    DIRECTORY,
    DIRECTORY_LIMIT,
    REASSIGNED,
    LOG_SIZE,
    HAND_SEGMENT,
    HAND_BUCKET,
    SQUEEZED,
    TIGHT,
    TIGHT_UNTIL,
    COUNTS,
) = range(19)
# facts of a segment, int32 each
SEGMENT_USED, SEGMENT_DEPTH, SEGMENT_TABLE, SEGMENT_COUNT, FACTS = range(5)
FIRST_SEGMENT = 2
"""Segments 0 and 1 are scratch, used only while another segment is laid out again."""
NONE, RECENT, FREQUENT = 0, 1, 2
"""Contents of a note: nothing, the step of the last use, or `count of uses << 20 | step & 0xFFFFF`."""

_ONE = np.uint64(1)
_FOUR = np.uint64(4)
_EIGHT = np.uint64(8)
_BUCKET = np.uint64(BUCKET_BYTES)
_HALF = np.uint64(32)
_SLOTS = np.uint64(8 * ENTRIES)
_IN_BUCKET = np.uint64(BUCKET_BYTES - 1)
_NOTES = np.uint64(4 * ENTRIES)
_KEYS = np.uint32((1 << ENTRIES) - 1)
_PAGE = np.uint64(PAGE_BYTES)
_LIST = np.uint64(4 * SEGMENT_PAGES)
_LOW = np.uint64(0xFFFFFFFF)
_SECOND = np.uint64(0x9E3779B97F4A7C15)
_NOWHERE = np.uint64(0)


class Index(NamedTuple):
    """Addresses of the index of one group (plain numbers: passing arrays to helpers would count references).

    Attributes:
        entries: page 0.
        notes: uint32[buckets, ENTRIES], or 0 without notes.
        tables: int64[tables, RECORD]; `directory[root : root + 2 ** depth]` are a table's segments by the top
            `depth` bits of the hash.
        directory: uint32, `segment << 5 | its number of pages`.
        pages: int32[segments, SEGMENT_PAGES].
        facts: int32[segments, FACTS].
        free_pages: int32, a stack.
        counts: int64[COUNTS].
        free: int32, the stack of slots freed by expired rows.
        log: ring of LOG_SIZE times (id uint64, slot int32, table int32): the last rows that lost a slot;
            `counts[REASSIGNED]` is their number so far.
        policy: contents of a note: `NONE`, `RECENT` or `FREQUENT`; not an address.
    """

    entries: np.uint64
    notes: np.uint64
    tables: np.uint64
    directory: np.uint64
    pages: np.uint64
    facts: np.uint64
    free_pages: np.uint64
    counts: np.uint64
    free: np.uint64
    log: np.uint64
    policy: int


class Map(NamedTuple):
    """Maps the hashes of one table to segments: salt, address in the directory, bits to drop."""

    salt: np.uint64
    directory: np.uint64
    shift: np.uint64


class Segment(NamedTuple):
    """Address of a segment's list of pages, and the number of pages."""

    pages: np.uint64
    length: np.uint64


@helper
def get(index: Index, word: int) -> int:
    """Return a word of the counts."""
    return load_i64(index.counts + np.uint64(word) * _EIGHT)


@helper
def put(index: Index, word: int, value: int) -> None:
    """Write a word of the counts."""
    store_i64(index.counts + np.uint64(word) * _EIGHT, value)


@helper
def get32(base: np.uint64, i: int) -> int:
    """Return element i of an int32 array."""
    return int(np.int64(load_i32(base + np.uint64(i) * _FOUR)))


@helper
def set32(base: np.uint64, i: int, value: int) -> None:
    """Write element i of an int32 array."""
    store_i32(base + np.uint64(i) * _FOUR, int(np.int32(value)))


@helper
def fact(index: Index, segment: int, word: int) -> int:
    """Return a fact of a segment."""
    return get32(index.facts, segment * FACTS + word)


@helper
def set_fact(index: Index, segment: int, word: int, value: int) -> None:
    """Write a fact of a segment."""
    set32(index.facts, segment * FACTS + word, value)


@helper
def record(index: Index, t: int, word: int) -> np.uint64:
    """Return the address of a word of table t's record."""
    return index.tables + np.uint64(t * RECORD + word) * _EIGHT


@helper
def add(index: Index, t: int, word: int, amount: int) -> None:
    """Add to a counter of table t."""
    where = record(index, t, word)
    store_i64(where, load_i64(where) + amount)


@helper
def map_of(index: Index, t: int) -> Map:
    """Return how table t maps hashes to segments now."""
    depth, root = load_i64(record(index, t, DEPTH)), load_i64(record(index, t, ROOT))
    directory = index.directory + np.uint64(root) * _FOUR
    return Map(load_u64(record(index, t, SALT)), directory, np.uint64(63 - depth))


@helper
def lead(where: Map, h: np.uint64) -> np.uint64:
    """Return the directory entry of a hash."""
    return np.uint64(load_u32(where.directory + ((h >> _ONE) >> where.shift) * _FOUR))


@helper
def number(entry: np.uint64) -> int:
    """Return the segment that a directory entry names."""
    return int(np.int64(entry >> np.uint64(5)))


@helper
def listed(index: Index, entry: np.uint64) -> Segment:
    """Return the pages of the segment that a directory entry names."""
    return Segment(index.pages + (entry >> np.uint64(5)) * _LIST, entry & np.uint64(31))


@helper
def segment_at(index: Index, segment: int) -> Segment:
    """Return the pages of a segment."""
    count = np.uint64(fact(index, segment, SEGMENT_COUNT))
    return Segment(index.pages + np.uint64(segment) * _LIST, count)


@helper
def bucket_at(index: Index, segment: Segment, half: np.uint64) -> np.uint64:
    """Return the address of the bucket that 32 bits of hash choose in a segment."""
    x = half * segment.length
    page = np.uint64(load_u32(segment.pages + (x >> _HALF) * _FOUR))
    return index.entries + page * _PAGE + ((x >> np.uint64(27)) & np.uint64(31)) * _BUCKET


@helper
def first_bucket(index: Index, segment: Segment, h: np.uint64) -> np.uint64:
    """Return the address of the first bucket of a hash."""
    return bucket_at(index, segment, h & _LOW)


@helper
def second_bucket(index: Index, segment: Segment, h: np.uint64) -> np.uint64:
    """Return the address of the second bucket of a hash; it does not depend on the segment's bits alone."""
    return bucket_at(index, segment, (h * _SECOND) >> _HALF)


@helper
def slot_at(entry: np.uint64) -> np.uint64:
    """Return the address of the slot of an entry (the address of its key)."""
    return (entry & ~_IN_BUCKET) + _SLOTS + ((entry & _IN_BUCKET) >> _ONE)


@helper
def note_at(index: Index, entry: np.uint64) -> np.uint64:
    """Return the address of the note of an entry."""
    bucket = (entry - index.entries) // _BUCKET
    return index.notes + bucket * _NOTES + ((entry & _IN_BUCKET) >> _ONE)


@helper
def probe(bucket: np.uint64, key: np.uint64) -> int:
    """Return the slot of `key` in a bucket or -1.

    A freed entry keeps its key. This is harmless: a key goes into the first free entry, so the row of a key
    in the bucket is the first match.
    """
    lane = trailing_zeros((match8(bucket, key) & _KEYS) | np.uint32(1 << ENTRIES))
    return int(np.int64(load_u32(bucket + _SLOTS + _FOUR * lane))) - 1


@helper
def free_entry(bucket: np.uint64) -> np.uint64:
    """Return the address of a free entry's key in a bucket, or 0."""
    free = (zeros8(bucket + _HALF) >> np.uint32(2)) & _KEYS
    if free != np.uint32(0):
        return bucket + _EIGHT * trailing_zeros(free)
    return _NOWHERE
