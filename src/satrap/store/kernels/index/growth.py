"""Places entries in the index, and grows its segments. See `layout`."""

from __future__ import annotations

import numpy as np

from satrap.store.kernels.hashing import mix
from satrap.store.kernels.index.layout import (
    BUCKET_BYTES,
    DEPTH,
    DIRECTORY,
    DIRECTORY_LIMIT,
    ENTRIES,
    FIRST_SEGMENT,
    FULL,
    HAND_SEGMENT,
    MAX_DEPTH,
    PAGE_BUCKETS,
    PAGE_BYTES,
    PAGES_FREE,
    PAGES_LIMIT,
    PAGES_USED,
    REASSIGNED,
    ROOT,
    SALT,
    SEGMENT_COUNT,
    SEGMENT_DEPTH,
    SEGMENT_PAGES,
    SEGMENT_TABLE,
    SEGMENT_USED,
    SEGMENTS,
    SEGMENTS_LIMIT,
    SPARE_PAGES,
    SQUEEZED,
    TABLES,
    TIGHT,
    TIGHT_UNTIL,
    Index,
    Segment,
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
    put,
    record,
    second_bucket,
    segment_at,
    set32,
    set_fact,
    slot_at,
)
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.simd import (
    broadcast,
    load_i64,
    load_u32,
    load_u64,
    prefetch,
    store,
    store_i64,
    store_u32,
    store_u64,
    trailing_zeros,
    zeros8,
)

_ZERO = np.uint64(0)
_ONE = np.uint64(1)
_EIGHT = np.uint64(8)
_BUCKET = np.uint64(BUCKET_BYTES)
_HALF = np.uint64(32)
_ENTRIES = np.uint64(8 * ENTRIES)
_KEYS = np.uint32((1 << ENTRIES) - 1)
_SLOTS = np.uint64(8 * ENTRIES)
_LAST = np.uint64(BUCKET_BYTES - 4)
_FOUR = np.uint64(4)
_PAGE = np.uint64(PAGE_BYTES)
_NOWHERE = np.uint64(0)


@helper
def other_bucket(index: Index, segment: Segment, h: np.uint64, home: np.uint64) -> np.uint64:
    """Return the bucket other than `home` for an entry with this hash."""
    first = first_bucket(index, segment, h)
    return second_bucket(index, segment, h) if first == home else first


@helper
def copy(index: Index, source: np.uint64, target: np.uint64) -> None:
    """Copy an entry and its note to a free entry."""
    store_u64(target, load_u64(source))
    store_u32(slot_at(target), load_u32(slot_at(source)))
    if index.notes != _NOWHERE:
        store_u32(note_at(index, target), load_u32(note_at(index, source)))


@helper
def move(index: Index, source: np.uint64, target: np.uint64) -> None:
    """Move an entry to a free entry."""
    copy(index, source, target)
    store_u32(slot_at(source), np.uint32(0))


@helper
def make_room(index: Index, segment: Segment, salt: np.uint64, bucket: np.uint64) -> np.uint64:
    """Return an entry of a full bucket, freed by moving its key to its other bucket, or 0."""
    for k in range(ENTRIES):
        resident = bucket + _EIGHT * np.uint64(k)
        h = mix(load_u64(resident) ^ salt)
        free = free_entry(other_bucket(index, segment, h, bucket))
        if free != _NOWHERE:
            move(index, resident, free)
            return resident
    return _NOWHERE


@helper
def place(index: Index, segment: Segment, salt: np.uint64, h: np.uint64) -> np.uint64:
    """Return the address of a free entry for a hash, or 0; may move one or two entries."""
    first = first_bucket(index, segment, h)
    entry = free_entry(first)
    if entry != _NOWHERE:
        return entry
    second = second_bucket(index, segment, h)
    entry = free_entry(second)
    if entry != _NOWHERE:
        return entry
    entry = make_room(index, segment, salt, first)
    if entry != _NOWHERE:
        return entry
    entry = make_room(index, segment, salt, second)
    if entry != _NOWHERE:
        return entry
    for k in range(ENTRIES):
        resident = first + _EIGHT * np.uint64(k)
        other = other_bucket(index, segment, mix(load_u64(resident) ^ salt), first)
        if other != first and other != second:
            freed = make_room(index, segment, salt, other)
            if freed != _NOWHERE:
                move(index, resident, freed)
                return resident
    return _NOWHERE


@helper
def take_pages(index: Index, segment: int, count: int) -> bool:
    """Give an empty segment `count` empty pages; False, and none, if the reserved memory is used up."""
    free, used = get(index, PAGES_FREE), get(index, PAGES_USED)
    if free + get(index, PAGES_LIMIT) - used < count:
        return False
    for k in range(count):
        if free > 0:
            free -= 1
            page = get32(index.free_pages, free)
            start = index.entries + np.uint64(page) * _PAGE
            for b in range(_ZERO, _PAGE, _BUCKET):
                store(start + b, broadcast(np.float32(0)))
        else:
            page = used
            used += 1
        set32(index.pages, segment * SEGMENT_PAGES + k, page)
    put(index, PAGES_FREE, free)
    put(index, PAGES_USED, used)
    set_fact(index, segment, SEGMENT_COUNT, count)
    set_fact(index, segment, SEGMENT_USED, 0)
    return True


@helper
def give_pages(index: Index, segment: int) -> None:
    """Return all pages of a segment to the free list; it is then empty."""
    free, count = get(index, PAGES_FREE), fact(index, segment, SEGMENT_COUNT)
    for k in range(count):
        set32(index.free_pages, free + k, get32(index.pages, segment * SEGMENT_PAGES + k))
    put(index, PAGES_FREE, free + count)
    set_fact(index, segment, SEGMENT_COUNT, 0)


@helper
def prefetch_page(index: Index, page: int) -> None:
    """Start fetching a page."""
    start = index.entries + np.uint64(page) * _PAGE
    for b in range(_ZERO, _PAGE, _BUCKET):
        prefetch(start + b)


@helper
def clear_counts(index: Index, scratch: int) -> None:
    """Reset the last words of the buckets of a scratch list to 0, see `copy_entries`."""
    for p in range(fact(index, scratch, SEGMENT_COUNT)):
        page = index.entries + np.uint64(get32(index.pages, scratch * SEGMENT_PAGES + p)) * _PAGE
        for b in range(_ZERO, _PAGE, _BUCKET):
            store_u32(page + b + _LAST, np.uint32(0))


@helper
def copy_entries(index: Index, segment: int, salt: np.uint64, bit: np.uint64) -> bool:
    """Copy the entries of a segment to scratch 1 where the hash has `bit`, else to 0; False if stuck.

    Adjacent entries go to adjacent buckets. During the copy, the last word of a bucket counts its entries, so
    that the next entry need not wait until the written entries can be read as a vector. (A moved entry is not
    counted; from then on `place` is used.) A full bucket counts 5: its last word is not a free slot.
    """
    low = segment_at(index, 0)
    apart = segment_at(index, 1).pages - low.pages
    used, used_high, pages = 0, 0, fact(index, segment, SEGMENT_COUNT)
    for p in range(pages):
        if p + 1 < pages:
            prefetch_page(index, get32(index.pages, segment * SEGMENT_PAGES + p + 1))
        page = index.entries + np.uint64(get32(index.pages, segment * SEGMENT_PAGES + p)) * _PAGE
        for b in range(_ZERO, _PAGE, _BUCKET):
            for k in range(_ZERO, _ENTRIES, _EIGHT):
                entry = page + b + k
                h = mix(load_u64(entry) ^ salt)
                up, there = (h & bit) != _ZERO, load_u32(slot_at(entry)) != np.uint32(0)
                target = Segment(low.pages + apart * np.uint64(up), low.length)
                used += there
                used_high += there and up
                first = first_bucket(index, target, h)
                count = np.uint64(load_u32(first + _LAST))
                if load_u32(first + _SLOTS + _FOUR * count) == np.uint32(0):
                    # A free entry is copied to itself, which avoids an unpredictable branch.
                    copy(index, entry, first + _EIGHT * count if there else entry)
                    store_u32(first + _LAST, np.uint32(count) + np.uint32(there))
                elif there:
                    free = place(index, target, salt, h)
                    if free == _NOWHERE:
                        return False
                    copy(index, entry, free)
    clear_counts(index, 0)
    if bit != _ZERO:
        clear_counts(index, 1)
    set_fact(index, 0, SEGMENT_USED, used - used_high)
    set_fact(index, 1, SEGMENT_USED, used_high)
    return True


@helper
def lay_out(index: Index, segment: int, salt: np.uint64, count: int, bit: np.uint64) -> bool:
    """Copy a segment to scratch 0, and to scratch 1 with a `bit`, each with `count` pages or slightly more.

    The segment's pages are then freed. Returns False, with no change, if that is impossible, or if too few
    pages would remain to lay out any one segment.
    """
    current = fact(index, segment, SEGMENT_COUNT)
    while count <= SEGMENT_PAGES:
        room = get(index, PAGES_FREE) + get(index, PAGES_LIMIT) - get(index, PAGES_USED)
        total = count if bit == _ZERO else 2 * count
        if room < total or (total > current and room + current - total < SPARE_PAGES // 2):
            return False
        take_pages(index, 0, count)
        if bit != _ZERO:
            take_pages(index, 1, count)
        if copy_entries(index, segment, salt, bit):
            give_pages(index, segment)
            return True
        give_pages(index, 0)
        if bit != _ZERO:
            give_pages(index, 1)
        count += 1
    return False


@helper
def adopt(index: Index, segment: int, scratch: int) -> None:
    """Give the pages of a scratch list to a segment that has none."""
    count = fact(index, scratch, SEGMENT_COUNT)
    for k in range(count):
        page = get32(index.pages, scratch * SEGMENT_PAGES + k)
        set32(index.pages, segment * SEGMENT_PAGES + k, page)
    set_fact(index, segment, SEGMENT_COUNT, count)
    set_fact(index, segment, SEGMENT_USED, fact(index, scratch, SEGMENT_USED))
    set_fact(index, scratch, SEGMENT_COUNT, 0)


@helper
def hand_over(index: Index, segment: int, scratch: int) -> None:
    """Give the pages of a segment to an empty scratch list: the reverse of `adopt`."""
    count = fact(index, segment, SEGMENT_COUNT)
    for k in range(count):
        set32(index.pages, scratch * SEGMENT_PAGES + k, get32(index.pages, segment * SEGMENT_PAGES + k))
    set_fact(index, scratch, SEGMENT_COUNT, count)
    set_fact(index, scratch, SEGMENT_USED, fact(index, segment, SEGMENT_USED))
    set_fact(index, segment, SEGMENT_COUNT, 0)


@helper
def sides(index: Index, segment: int, salt: np.uint64, bit: np.uint64) -> int:
    """Return 1 if no entry of a segment has `bit` in its hash, 2 if all have, 3 if some have."""
    seen = 0
    for p in range(fact(index, segment, SEGMENT_COUNT)):
        page = index.entries + np.uint64(get32(index.pages, segment * SEGMENT_PAGES + p)) * _PAGE
        for b in range(PAGE_BUCKETS):
            bucket = page + np.uint64(b) * _BUCKET
            full = ~(zeros8(bucket + _HALF) >> np.uint32(2)) & _KEYS
            while full != np.uint32(0):
                entry = bucket + _EIGHT * trailing_zeros(full)
                full &= np.uint32(full - np.uint32(1))
                seen |= 2 if (mix(load_u64(entry) ^ salt) & bit) != _ZERO else 1
            if seen == 3:
                return seen
    return seen


@helper
def double_directory(index: Index, t: int) -> bool:
    """Give table t a directory of twice the entries; False if memory is used up."""
    depth, root = load_i64(record(index, t, DEPTH)), load_i64(record(index, t, ROOT))
    start, size = get(index, DIRECTORY), 1 << depth
    if start + 2 * size > get(index, DIRECTORY_LIMIT):
        return False
    for k in range(2 * size):
        set32(index.directory, start + k, get32(index.directory, root + (k >> 1)))
    put(index, DIRECTORY, start + 2 * size)
    store_i64(record(index, t, ROOT), start)
    store_i64(record(index, t, DEPTH), depth + 1)
    return True


@helper
def point(index: Index, t: int, segment: int, h: np.uint64) -> None:
    """Point table t's directory to a segment for the hashes that share its depth of bits with h."""
    deep, root = load_i64(record(index, t, DEPTH)), load_i64(record(index, t, ROOT))
    span = 1 << (deep - fact(index, segment, SEGMENT_DEPTH))
    start = root + (int(np.int64((h >> _ONE) >> np.uint64(63 - deep))) & ~(span - 1))
    for k in range(span):
        set32(index.directory, start + k, segment << 5 | fact(index, segment, SEGMENT_COUNT))


@helper
def split_off(index: Index, segment: int, half: int) -> bool:
    """Make a segment one half of a split whose other half is empty; False without pages.

    Rows that arrive in hash order all go to one half, so no row has to move.
    """
    if get(index, PAGES_FREE) + get(index, PAGES_LIMIT) - get(index, PAGES_USED) <= SPARE_PAGES // 2:
        return False
    if not take_pages(index, 1 - half, 1):
        return False
    hand_over(index, segment, half)
    return True


@helper
def grow(index: Index, t: int, segment: int, h: np.uint64) -> bool:
    """Make room in the segment of hash h: 1.4 times its pages, or two segments; False if impossible."""
    pages, salt = fact(index, segment, SEGMENT_COUNT), load_u64(record(index, t, SALT))
    wider = 7 * pages // 5 + 1  # pages: 1, 2, 3, 5, 8, 12, 16, then 2 x 11
    if pages < 14:
        wider = min(wider, SEGMENT_PAGES)
    done = wider <= SEGMENT_PAGES and lay_out(index, segment, salt, wider, _ZERO)
    if not done and wider <= SEGMENT_PAGES:
        done = lay_out(index, segment, salt, pages + 1, _ZERO)
    if done:
        adopt(index, segment, 0)
        point(index, t, segment, h)
        return True
    depth, fresh = fact(index, segment, SEGMENT_DEPTH), get(index, SEGMENTS)
    if depth >= MAX_DEPTH or fresh >= get(index, SEGMENTS_LIMIT):
        return False
    if depth == load_i64(record(index, t, DEPTH)) and not double_directory(index, t):
        return False
    bit = _ONE << np.uint64(63 - depth)
    half_bits = sides(index, segment, salt, bit)
    if half_bits != 3:
        if not split_off(index, segment, 1 if half_bits == 2 else 0):
            return False
    elif not lay_out(index, segment, salt, 11 * max(8, pages) // 16, bit):
        return False
    put(index, SEGMENTS, fresh + 1)
    set_fact(index, fresh, SEGMENT_TABLE, t)
    for k in range(2):
        half = segment if k == 0 else fresh
        adopt(index, half, k)
        set_fact(index, half, SEGMENT_DEPTH, depth + 1)
        point(index, t, half, (h & ~bit) if k == 0 else (h | bit))
    return True


@helper
def shrink(index: Index, segment: int, key: np.uint64) -> None:
    """Free pages if a segment, in which `key` is or was, has lost a fifth of its entries."""
    used, pages = fact(index, segment, SEGMENT_USED), fact(index, segment, SEGMENT_COUNT)
    enough = max(1, (20 * used + 19 * FULL - 1) // (19 * FULL))
    if 10 * used < 8 * FULL * pages and enough < pages:
        t = fact(index, segment, SEGMENT_TABLE)
        salt = load_u64(record(index, t, SALT))
        if lay_out(index, segment, salt, enough, _ZERO):
            adopt(index, segment, 0)
            point(index, t, segment, mix(key ^ salt))


@helper
def squeeze(index: Index, segment: int) -> bool:
    """Free pages that a segment does not need; False if it needs all."""
    used, pages = fact(index, segment, SEGMENT_USED), fact(index, segment, SEGMENT_COUNT)
    enough = (used + FULL - 1) // FULL
    if used == 0 or enough >= pages:
        return False
    t, key = fact(index, segment, SEGMENT_TABLE), _ZERO
    for p in range(
        pages * PAGE_BUCKETS * ENTRIES
    ):  # the hash of any row locates the segment's directory entry
        page = get32(index.pages, segment * SEGMENT_PAGES + p // (PAGE_BUCKETS * ENTRIES))
        bucket = index.entries + np.uint64(page) * _PAGE + np.uint64(p // ENTRIES % PAGE_BUCKETS) * _BUCKET
        entry = bucket + np.uint64(p % ENTRIES) * _EIGHT
        if load_u32(slot_at(entry)) != np.uint32(0):
            key = load_u64(entry)
            break
    salt = load_u64(record(index, t, SALT))
    if not lay_out(index, segment, salt, enough, _ZERO):
        return False
    adopt(index, segment, 0)
    point(index, t, segment, mix(key ^ salt))
    return fact(index, segment, SEGMENT_COUNT) < pages


@helper
def reclaim(index: Index) -> bool:
    """Take pages from the next segment that can spare some; False if none can.

    After an unsuccessful search it does not search again until many rows have been removed.
    """
    segments = get(index, SEGMENTS)
    if get(index, TIGHT) >= segments and get(index, REASSIGNED) >= get(index, TIGHT_UNTIL):
        put(index, TIGHT, 0)
    while get(index, TIGHT) < segments:
        segment = get(index, SQUEEZED) + 1
        if segment < FIRST_SEGMENT or segment >= segments:
            segment = FIRST_SEGMENT
        put(index, SQUEEZED, segment)
        if squeeze(index, segment):
            put(index, TIGHT, 0)
            return True
        put(index, TIGHT, get(index, TIGHT) + 1)
        put(index, TIGHT_UNTIL, get(index, REASSIGNED) + 8 * segments)
    return False


@helper
def entry_for(index: Index, t: int, h: np.uint64) -> np.uint64:
    """Return the address of a free entry for a hash of table t, growing its index as needed, or 0."""
    for _ in range(16):
        segment = number(lead(map_of(index, t), h))
        fits = fact(index, segment, SEGMENT_USED) < fact(index, segment, SEGMENT_COUNT) * FULL
        free = free_place(index, t, h) if fits else _NOWHERE
        if free == _NOWHERE and not grow(index, t, segment, h) and not reclaim(index):
            break
        if free != _NOWHERE:
            return free
    return free_place(index, t, h)


@helper
def free_place(index: Index, t: int, h: np.uint64) -> np.uint64:
    """Return the address of a free entry for a hash of table t without growing, or 0."""
    entry = lead(map_of(index, t), h)
    free = place(index, listed(index, entry), load_u64(record(index, t, SALT)), h)
    if free != _NOWHERE:
        segment = number(entry)
        set_fact(index, segment, SEGMENT_USED, fact(index, segment, SEGMENT_USED) + 1)
    return free


@kernel
def open_tables(index: Index) -> bool:
    """Give every table one empty segment of one page; False if memory is used up."""
    for t in range(get(index, TABLES)):
        segment = t + FIRST_SEGMENT
        if not take_pages(index, segment, 1):
            return False
        set_fact(index, segment, SEGMENT_TABLE, t)
        store_i64(record(index, t, ROOT), t)
        set32(index.directory, t, segment << 5 | 1)
    put(index, SEGMENTS, get(index, TABLES) + FIRST_SEGMENT)
    put(index, HAND_SEGMENT, FIRST_SEGMENT)
    put(index, DIRECTORY, get(index, TABLES))
    return True
