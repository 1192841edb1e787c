"""Finding ids in the index.

A *bucket* is 128 bytes, int64[16]: 8 keys, then 8 words `note << 32 | slot + 1`; the word 0 means free. With
several tables, `owners` int16[buckets, 8] has the table of each entry. An *entry* is numbered
`bucket * 8 + e`, in int32.

A *segment* is `width` neighbouring buckets, chosen by the high bits of the hash. Both buckets of a key are in
its segment: the first is chosen by the following bits, so sorted keys have ascending first buckets; the
second, another one of the segment, by the low half of the hash.
"""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu import layout
from satrap.store.gpu.kernels.order import FLIP, before

STEP = tl.constexpr(layout.STEP)
SEGMENTS = tl.constexpr(layout.SEGMENTS)
WIDTH = tl.constexpr(layout.WIDTH)
RECENT = tl.constexpr(layout.RECENT)
FREQUENT = tl.constexpr(layout.FREQUENT)
ERASE = tl.constexpr(layout.ERASE)
SECOND = tl.constexpr(layout.SECOND)
LOW = tl.constexpr(0xFFFFFFFF)
AGE = tl.constexpr(0xFFFFF)  # of a note of FREQUENT, the bits of the step; above them, 12 bits of the count


@triton.jit
def segment_of(key: tl.tensor, segments: tl.tensor) -> tl.tensor:
    """Return the segment of keys, int32; it ascends with the key."""
    h = key.to(tl.uint64, bitcast=True) ^ FLIP
    return (((h >> 32) * segments.to(tl.uint64)) >> 32).to(tl.int32)


@triton.jit
def buckets_of(key: tl.tensor, index: tl.tuple) -> tuple[tl.tensor, tl.tensor]:
    """Return the first and the second bucket of keys, int32 each: two of one segment."""
    h = key.to(tl.uint64, bitcast=True) ^ FLIP
    width = tl.load(index.state + WIDTH).to(tl.uint64)
    x = (h >> 32) * tl.load(index.state + SEGMENTS).to(tl.uint64)
    begin = (x >> 32) * width
    offset = ((x & LOW) * width) >> 32
    other = ((h & LOW) * (width - 1)) >> 32
    other += (other >= offset).to(tl.uint64)
    return (begin + offset).to(tl.int32), (begin + other).to(tl.int32)


@triton.jit
def used_again(note: tl.tensor, step: tl.tensor) -> tl.tensor:
    """Return the note of FREQUENT after a use in this step: `min(uses, 4095) << 20 | step & 0xFFFFF`."""
    now = step & AGE
    more = (tl.minimum((note >> 20) + 1, 0xFFF) << 20) | now
    return tl.where((note & AGE) == now, note, more)


@triton.jit
def probe(
    index: tl.tuple, bucket: tl.tensor, key: tl.tensor, table: tl.tensor, on: tl.tensor, TABLES: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return (word int64[n, 8], or 0; slot + 1 int64[n, 1], or 0) of keys[n, 1] in their buckets."""
    e = tl.arange(0, 8)[None, :]
    at = bucket.to(tl.int64) * 16 + e
    hit = (tl.load(index.words + at, mask=on, other=0) == key) & on
    if TABLES:
        hit &= tl.load(index.owners + bucket.to(tl.int64) * 8 + e, mask=hit, other=-1) == table
    word = tl.load(index.words + at + 8, mask=hit, other=0)
    return word, tl.max(word & LOW, axis=1, keep_dims=True)


@triton.jit
def mark(index: tl.tuple, bucket: tl.tensor, word: tl.tensor, MODE: tl.constexpr) -> None:
    """Note the use of the entries whose word is not 0, or free them."""
    at = bucket.to(tl.int64) * 16 + 8 + tl.arange(0, 8)[None, :]
    if MODE == ERASE:
        tl.store(index.words + at, tl.zeros_like(word), mask=word != 0)
    else:
        note = tl.load(index.state + STEP) + 0 * word
        if MODE == FREQUENT:
            note = used_again((word >> 32) & LOW, note)
        tl.store(index.halves + 2 * at + 1, note.to(tl.int32), mask=word != 0)


# Keys are distinct, so two lanes, of whatever programs, never store to one entry. No program needs a word
# that another stores to: a probe uses keys, which are not stored here, and the words of its own hits. Warps
# may hold copies of an entry, so a barrier keeps stores to entries behind all loads of them.
@triton.jit
def find(
    keys: tl.tuple,
    index: tl.tuple,
    found: tl.tuple,
    sums: tl.tensor,
    MODE: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write slot (-1: none) and status of each distinct key, and how many of each block have no row.

    Args:
        keys, index, found: `Distinct`, `Buckets`, `Found`.
        sums: int32[programs].
        MODE: NONE, RECENT, FREQUENT: a use, noted in that way; FIND: not a use; ERASE: free the entries.
    """
    start = tl.program_id(0) * BLOCK
    many = tl.load(keys.runs)
    if start < many:
        i = start + tl.arange(0, BLOCK)[:, None]
        live = i < many
        key = tl.load(keys.keys + i, mask=live, other=0)
        table = tl.zeros([BLOCK, 1], tl.int16)
        if TABLES:
            table = tl.load(keys.tables + i, mask=live, other=0)
        first, second = buckets_of(key, index)
        word, slot = probe(index, first, key, table, live, TABLES)
        again = live & (slot == 0)
        word2, slot2 = probe(index, second, key, table, again, TABLES)
        slot += slot2
        if MODE == RECENT or MODE == FREQUENT or MODE == ERASE:  # noqa: SIM109 - Triton 3.6 has no `in`
            tl.debug_barrier()
            mark(index, first, word, MODE)
            mark(index, second, word2, MODE)
        tl.store(found.slots + i, (slot - 1).to(tl.int32), mask=live)
        tl.store(found.status + i, tl.where(again, SECOND, 0).to(tl.int8), mask=live)
        tl.store(sums + tl.program_id(0), tl.sum((live & (slot == 0)).to(tl.int32)))


# A key without a row has its own rank, and so its own address; the lane of the last key stores the count.
@triton.jit
def list_missing(
    keys: tl.tuple,
    found: tl.tuple,
    sums: tl.tensor,
    queue: tl.tuple,
    BLOCK: tl.constexpr,
    PARTS: tl.constexpr,
) -> None:
    """Write `Queue`: the distinct keys without a slot. sums: of `find`, with BLOCK / PARTS keys each."""
    start = tl.program_id(0) * BLOCK
    many = tl.load(keys.runs)
    if start < many:
        i = start + tl.arange(0, BLOCK)
        on = (i < many) & (tl.load(found.slots + i, mask=i < many, other=0) < 0)
        end = before(sums, tl.program_id(0) * PARTS) + tl.cumsum(on.to(tl.int32), axis=0)
        tl.store(queue.runs + end - 1, i, mask=on)
        tl.store(queue.count + 0 * i, end, mask=i == many - 1)
    if (start == 0) & (many == 0):
        tl.store(queue.count, 0)
