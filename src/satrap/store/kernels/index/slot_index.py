"""Entries of the index: finding, creating and evicting them, and listing the ids of a range. See `layout`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from satrap.store.arrays import Bytes, Ids, Inverse, Offsets
from satrap.store.kernels.hashing import BUCKET_SHIFT, mix
from satrap.store.kernels.index.growth import entry_for, free_place, shrink
from satrap.store.kernels.index.layout import (
    AHEAD,
    BUCKET_BYTES,
    CREATE_AHEAD,
    CREATED,
    DEPTH,
    ENTRIES,
    EVICTED,
    FEWEST,
    FIRST_SEGMENT,
    FULL,
    HAND_BUCKET,
    HAND_SEGMENT,
    LOG_ENTRY,
    LOG_SIZE,
    NONE,
    PAGE_BUCKETS,
    PAGE_BYTES,
    REASSIGNED,
    RECENT,
    REFUSED,
    ROOT,
    SALT,
    SEGMENT_COUNT,
    SEGMENT_PAGES,
    SEGMENT_TABLE,
    SEGMENT_USED,
    SEGMENTS,
    SLOTS_FREE,
    SLOTS_LIMIT,
    SLOTS_USED,
    USED,
    WALK,
    Index,
    add,
    fact,
    first_bucket,
    free_entry,
    get,
    get32,
    lead,
    listed,
    map_of,
    note_at,
    number,
    probe,
    put,
    record,
    second_bucket,
    set32,
    set_fact,
    slot_at,
)
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.simd import (
    load_i64,
    load_u32,
    load_u64,
    match8,
    prefetch,
    prefetch_write,
    store_u32,
    store_u64,
    trailing_zeros,
)

_ZERO = np.uint64(0)
_EIGHT = np.uint64(8)
_LISTS_AHEAD = np.uint64(16)
_BUCKET = np.uint64(BUCKET_BYTES)
_PAGE = np.uint64(PAGE_BYTES)
_NOWHERE = np.uint64(0)
_STEP_BITS = np.uint32(20)
_STEP_MASK = np.uint32(0xFFFFF)
_MOST_USES = np.uint32(0xFFF)


@helper
def noted(note: np.uint32, step: np.uint32, policy: int) -> np.uint32:
    """Return the note of an entry used in this step; `note` is 0 for a new entry."""
    if policy == RECENT:
        return step
    if policy == NONE or (note != np.uint32(0) and (note & _STEP_MASK) == (step & _STEP_MASK)):
        return note
    uses = min(_MOST_USES, np.uint32((note >> _STEP_BITS) + np.uint32(1)))
    return np.uint32((uses << _STEP_BITS) | (step & _STEP_MASK))


@helper
def use(index: Index, bucket: np.uint64, key: np.uint64, step: np.uint32) -> None:
    """Note the use of a key that is in the bucket."""
    note = note_at(index, bucket + _EIGHT * trailing_zeros(match8(bucket, key)))
    store_u32(note, noted(load_u32(note), step, index.policy))


@helper
def give_slot(index: Index, slot: int) -> None:
    """Put a slot on the free stack."""
    free = get(index, SLOTS_FREE)
    set32(index.free, free, slot)
    put(index, SLOTS_FREE, free + 1)


@helper
def give_back(index: Index, slot: int) -> None:
    """Put a slot on the free stack, unless it is negative."""
    if slot >= 0:
        give_slot(index, slot)


@helper
def take_slot(index: Index) -> int:
    """Return a slot that no row has, or -1 at the limit."""
    free = get(index, SLOTS_FREE)
    if free > 0:
        put(index, SLOTS_FREE, free - 1)
        return get32(index.free, free - 1)
    used = get(index, SLOTS_USED)
    if used >= get(index, SLOTS_LIMIT):
        return -1
    put(index, SLOTS_USED, used + 1)
    return used


@helper
def logged(index: Index, r: int) -> int:
    """Return the slot of entry r of the log."""
    line = index.log + np.uint64(r % get(index, LOG_SIZE)) * np.uint64(LOG_ENTRY)
    return get32(line, 2)


@helper
def drop(index: Index, segment: int, entry: np.uint64) -> int:
    """Free an entry of a segment; return its slot, after logging that this row has lost it."""
    slot, t = int(np.int64(load_u32(slot_at(entry)))) - 1, fact(index, segment, SEGMENT_TABLE)
    store_u32(slot_at(entry), np.uint32(0))
    reassigned = get(index, REASSIGNED)
    line = index.log + np.uint64(reassigned % get(index, LOG_SIZE)) * np.uint64(LOG_ENTRY)
    store_u64(line, load_u64(entry))
    set32(line, 2, slot)
    set32(line, 3, t)
    put(index, REASSIGNED, reassigned + 1)
    set_fact(index, segment, SEGMENT_USED, fact(index, segment, SEGMENT_USED) - 1)
    add(index, t, USED, -1)
    add(index, t, EVICTED, 1)
    return slot


@helper
def staleness(note: np.uint32, step: np.uint32, policy: int) -> np.uint32:
    """Return how much an entry deserves eviction: 0 in use in this step, larger is worse."""
    if policy == RECENT:
        return np.uint32(step - note)
    if (note & _STEP_MASK) == (step & _STEP_MASK):
        return np.uint32(0)
    return np.uint32(np.uint32(0xFFFFFFFF) - note)


@helper
def worst(index: Index, first: np.uint64, second: np.uint64, step: np.uint32) -> np.uint64:
    """Return the entry of two buckets to evict first; 0 if all are in use, or the buckets have too few."""
    result, most, seen = _NOWHERE, np.uint32(0), 0
    for k in range(2 * ENTRIES):
        entry = (first if k < ENTRIES else second) + _EIGHT * np.uint64(k % ENTRIES)
        if load_u32(slot_at(entry)) != np.uint32(0):
            seen += 1
            stale = staleness(load_u32(note_at(index, entry)), step, index.policy)
            if stale > most:
                result, most = entry, stale
    return result if seen >= FEWEST else _NOWHERE


@helper
def hand_step(index: Index) -> tuple[int, np.uint64, np.uint64]:
    """Advance the clock hand by two buckets, from segment to segment; return (segment, the two buckets)."""
    segment, bucket = get(index, HAND_SEGMENT), get(index, HAND_BUCKET)
    if bucket >= fact(index, segment, SEGMENT_COUNT) * PAGE_BUCKETS:
        bucket, segment = 0, segment + 1
        if segment >= get(index, SEGMENTS):
            segment = FIRST_SEGMENT
    put(index, HAND_SEGMENT, segment)
    put(index, HAND_BUCKET, bucket + 2)
    page = get32(index.pages, segment * SEGMENT_PAGES + bucket // PAGE_BUCKETS)
    first = index.entries + np.uint64(page) * _PAGE + np.uint64(bucket % PAGE_BUCKETS) * _BUCKET
    return segment, first, first + _BUCKET


@helper
def evict_anywhere(index: Index, step: np.uint32) -> int:
    """Free the worst entry under the clock hand; return its slot, or -1 if all checked entries are in use."""
    for _ in range(WALK):
        segment, first, second = hand_step(index)
        entry = worst(index, first, second, step)
        if entry != _NOWHERE:
            key = load_u64(entry)
            slot = drop(index, segment, entry)
            shrink(index, segment, key)
            return slot
    return -1


@helper
def evict_here(index: Index, t: int, h: np.uint64, step: np.uint32) -> int:
    """Free the worst entry of the two buckets of a hash of table t; return its slot, or -1."""
    pointer = lead(map_of(index, t), h)
    segment = listed(index, pointer)
    entry = worst(index, first_bucket(index, segment, h), second_bucket(index, segment, h), step)
    return drop(index, number(pointer), entry) if entry != _NOWHERE else -1


@helper
def slot_for(index: Index, t: int, h: np.uint64, step: np.uint32) -> tuple[int, bool]:
    """Return (a slot for a new row of table t, or -1; whether the slot's row shared the same two buckets).

    At the limit the slot is taken from another row: the worst of the 10 that share a bucket with the new row.
    Every 4th time, and if those rows are in use or too few, it is the worst of 10 rows under the clock hand,
    which walks over all tables, so a growing table takes rows from the others.
    """
    slot = take_slot(index)
    if slot >= 0 or index.policy == NONE:
        return slot, False
    if (h >> np.uint64(36)) & np.uint64(3) != _ZERO:
        slot = evict_here(index, t, h, step)
        if slot >= 0:
            return slot, True
    return evict_anywhere(index, step), False


@helper
def insert(index: Index, t: int, key: np.uint64, h: np.uint64, step: np.uint32) -> int:
    """Give a new id of table t an entry and a slot; return the slot, or -1 if memory is full."""
    slot, here = slot_for(index, t, h, step)
    if slot < 0:
        return -1
    entry = free_place(index, t, h) if here else entry_for(index, t, h)
    if entry == _NOWHERE and index.policy != NONE:  # index memory, not slots, is used up: evict to free some
        if (h >> np.uint64(38)) & np.uint64(3) == _ZERO:
            give_back(index, evict_anywhere(index, step))
        give_back(index, evict_here(index, t, h, step))
        entry = entry_for(index, t, h)
    if entry == _NOWHERE:
        give_slot(index, slot)
        return -1
    store_u64(entry, key)
    store_u32(slot_at(entry), np.uint32(slot + 1))
    if index.policy != NONE:
        store_u32(note_at(index, entry), noted(np.uint32(0), step, index.policy))
    add(index, t, USED, 1)
    add(index, t, CREATED, 1)
    return slot


@helper
def insert_plainly(index: Index, t: int, key: np.uint64, found: np.uint64, entry: np.uint64) -> int:
    """Do what `insert` does if a slot and the entry at `entry` are free and the segment is not full.

    Otherwise return -1 and change nothing. `found` is the directory entry of the hash.
    """
    segment = number(found)
    used = fact(index, segment, SEGMENT_USED)
    if entry == _NOWHERE or used >= np.int64(found & np.uint64(31)) * FULL:
        return -1
    slot = take_slot(index)
    if slot >= 0:
        store_u64(entry, key)
        store_u32(slot_at(entry), np.uint32(slot + 1))
        set_fact(index, segment, SEGMENT_USED, used + 1)
        add(index, t, USED, 1)
        add(index, t, CREATED, 1)
    return slot


@kernel
def create(
    index: Index, ids: Ids, splits: Offsets, missing: Offsets, step: np.uint32, slots: Inverse, fresh: Offsets
) -> int:
    """Give each missing id a slot; return the number of new slots, with their positions in `fresh`.

    `missing` ascends; a repeated id gets one slot, and its first position is in `fresh`. Slots of ids without
    room stay -1 (counted as REFUSED).
    """
    n, made, j = missing.shape[0], 0, 0
    for t in range(splits.shape[0] - 1):
        salt = load_u64(record(index, t, SALT))
        while j < n and missing[j] < splits[t + 1]:
            where = map_of(index, t)
            if j + CREATE_AHEAD < n:
                h = mix(ids[missing[j + CREATE_AHEAD]] ^ salt)
                later = listed(index, lead(where, h))
                prefetch_write(first_bucket(index, later, h))
                prefetch_write(second_bucket(index, later, h))
            i = missing[j]
            j += 1
            key = ids[i]
            h = mix(key ^ salt)
            pointer = lead(where, h)
            segment = listed(index, pointer)
            first, second = first_bucket(index, segment, h), second_bucket(index, segment, h)
            slot = max(probe(first, key), probe(second, key))
            if slot < 0:
                entry = free_entry(first)
                if entry == _NOWHERE:
                    entry = free_entry(second)
                slot = insert_plainly(index, t, key, pointer, entry)
                if slot < 0:
                    slot = insert(index, t, key, h, step)
                elif index.policy != NONE:
                    store_u32(note_at(index, entry), noted(np.uint32(0), step, index.policy))
                if slot >= 0:
                    fresh[made] = i
                    made += 1
                else:
                    add(index, t, REFUSED, 1)
            slots[i] = slot
    return made


@kernel
def sweep(index: Index, step: np.uint32, ttl: int, pairs: int) -> None:
    """Advance the clock hand by `pairs` pairs of buckets; free rows not used for more than `ttl` steps.

    It stops after freeing half as many rows as the log holds.
    """
    last = get(index, REASSIGNED) + get(index, LOG_SIZE) // 2 - 2 * ENTRIES
    for _ in range(pairs):
        if get(index, REASSIGNED) > last:
            break
        segment, first, second = hand_step(index)
        for k in range(2 * ENTRIES):
            entry = (first if k < ENTRIES else second) + _EIGHT * np.uint64(k % ENTRIES)
            age = np.int64(np.uint32(step - load_u32(note_at(index, entry))))
            if load_u32(slot_at(entry)) != np.uint32(0) and age > ttl:
                give_slot(index, drop(index, segment, entry))


@kernel
def discard(index: Index, t: int, ids: Ids) -> None:
    """Free the entries and slots of ids of table t, where they exist; does not count them as evicted."""
    salt = load_u64(record(index, t, SALT))
    for i in range(ids.shape[0]):
        key = ids[i]
        h = mix(key ^ salt)
        pointer = lead(map_of(index, t), h)
        segment = listed(index, pointer)
        bucket = first_bucket(index, segment, h)
        if probe(bucket, key) < 0:
            bucket = second_bucket(index, segment, h)
        if probe(bucket, key) >= 0:
            entry = bucket + _EIGHT * trailing_zeros(match8(bucket, key))
            give_slot(index, drop(index, number(pointer), entry))
            add(index, t, EVICTED, -1)
            shrink(index, number(pointer), key)


@kernel
def stale_slots(index: Index, since: int, marks: Bytes, slots: Inverse, stale: Offsets) -> int:
    """Write the positions of slots that are -1 or lost their row since `since`; return their number.

    `marks` is scratch, one zero bit per slot, zero again at the end; at most LOG_SIZE slots were taken.
    """
    now, count = get(index, REASSIGNED), 0
    for r in range(since, now):
        taken = logged(index, r)
        marks[taken >> 3] |= np.uint8(1 << (taken & 7))
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        if slot < 0 or (marks[slot >> 3] >> (slot & 7)) & 1:
            stale[count] = i
            count += 1
    for r in range(since, now):
        marks[logged(index, r) >> 3] = 0
    return count


@kernel
def claim(marks: Bytes, slots: Inverse, limit: int, won: Offsets) -> int:
    """Mark slots of 0..limit - 1; write the positions of slots not marked before, and return their number."""
    count = 0
    for i in range(slots.shape[0]):
        slot = np.int64(slots[i])
        if 0 <= slot < limit and not (marks[slot >> 3] >> (slot & 7)) & 1:
            marks[slot >> 3] |= np.uint8(1 << (slot & 7))
            won[count] = i
            count += 1
    return count


@helper
def locate_first(index: Index, ids: Ids, splits: Offsets, places: Ids) -> None:
    """Write the address of each id's first bucket.

    Hashes are computed in a separate loop, which is vectorized. A segment's list of pages is prefetched 16
    ids ahead, since above about 10 million rows the lists no longer stay in the cache.
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
    """Write the slot of each id that is in its first bucket; queue the others, and return their number."""
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
    """Probe the second buckets of queued ids; return the number of ids still in the queue."""
    remaining = 0
    for q in range(queued):
        if q + AHEAD < queued:
            prefetch(places[q + AHEAD])
        i = missing[q]
        slot = probe(places[q], ids[i])
        slots[i] = slot
        missing[remaining] = i
        remaining += slot < 0
        if step is not None and slot >= 0:
            use(index, places[q], ids[i], step)
    return remaining


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
    """Write the slot of each id, -1 without a row; return the number of -1, with positions in `missing`.

    `ids[splits[t]:splits[t + 1]]` belong to table t. First buckets are probed, and prefetched AHEAD ids
    ahead; ids not found there are queued, and probed in their second bucket. With a step, uses are recorded.
    `places` is scratch for n entries. Adds to `seconds[t]` how many ids of table t were not in their first
    bucket.
    """
    locate_first(index, ids, splits, places)
    queued = probe_all(index, ids, places, step, slots, missing)
    if queued == 0:
        return 0
    locate_second(index, ids, splits, missing[:queued], places, seconds)
    return probe_queue(index, ids, places, step, slots, missing, queued)


@helper
def segments_of(index: Index, t: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield (segment, entries) of each segment of table t that holds some of fixed buckets first..last."""
    previous, depth, root = -1, load_i64(record(index, t, DEPTH)), load_i64(record(index, t, ROOT))
    for k in range(
        (first << depth) >> 12, ((last << depth) >> 12) + 1 if depth < 12 else (last + 1) << (depth - 12)
    ):
        segment = get32(index.directory, root + k) >> 5
        if segment != previous:
            yield segment, fact(index, segment, SEGMENT_COUNT) * PAGE_BUCKETS * ENTRIES
        previous = segment


@helper
def entry_of(index: Index, segment: int, number: int) -> np.uint64:
    """Return the address of an entry of a segment, by its number."""
    k = number // ENTRIES
    page = get32(index.pages, segment * SEGMENT_PAGES + k // PAGE_BUCKETS)
    at = np.uint64(k % PAGE_BUCKETS) * _BUCKET + np.uint64(number % ENTRIES) * _EIGHT
    return index.entries + np.uint64(page) * _PAGE + at


@kernel
def collect(index: Index, t: int, first: int, last: int, ids: Ids, slots: Inverse, buckets: Inverse) -> int:
    """Write ids, slots and buckets of the rows of table t in fixed buckets first..last; return the number.

    If the arrays are too short, the remaining rows are counted but not written.
    """
    count, salt = 0, load_u64(record(index, t, SALT))
    for segment, entries in segments_of(index, t, first, last):
        for e in range(entries):
            entry = entry_of(index, segment, e)
            slot = load_u32(slot_at(entry))
            if slot == np.uint32(0):
                continue
            key = load_u64(entry)
            bucket = np.int64(mix(key ^ salt) >> BUCKET_SHIFT)
            if first <= bucket <= last:
                if count < ids.shape[0]:
                    ids[count], slots[count], buckets[count] = key, np.int64(slot) - 1, bucket
                count += 1
    return count


@kernel
def name_slots(index: Index, t: int, first: int, last: int, low: int, ids: Ids, tables: Inverse) -> None:
    """Write the id and the table of slots from `low` on, for rows of table t in fixed buckets first..last.

    Rows of adjacent buckets may also be written.
    """
    n = ids.shape[0]
    for segment, entries in segments_of(index, t, first, last):
        for e in range(entries):
            entry = entry_of(index, segment, e)
            at = np.int64(load_u32(slot_at(entry))) - 1 - low
            if 0 <= at < n:
                ids[at], tables[at] = load_u64(entry), t
