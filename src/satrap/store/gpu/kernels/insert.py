"""Inserting new ids: free entries, displacement, eviction; then slots.

Keys come sorted, so the keys of a segment are neighbours, and both buckets of a key are in its segment. A
program handles whole segments: those whose first key is in its CHUNK of the queue. So programs never touch a
bucket in common. A program takes its keys CHUNK by CHUNK, loads the buckets of all keys of a chunk, and
chooses an entry for each; a key that wants the entry of an earlier key of the chunk waits for the next round.
Each round places at least one key, so there are at most CHUNK rounds.

Why warps of a program do not collide: each round loads, passes a barrier, stores, and passes a barrier, and
all addresses that a round stores to are distinct, for the reasons given at the functions.

In these functions an *item* is (key, word, table, seq) of each key of a chunk: what to write to its entry,
and its number in the queue; a *pair* is (first, second), its buckets.
"""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu import layout
from satrap.store.gpu.kernels.index import AGE, FREQUENT, LOW, SEGMENTS, STEP, buckets_of, segment_of
from satrap.store.gpu.kernels.order import before

USED = tl.constexpr(layout.USED)
FREE = tl.constexpr(layout.FREE)
LIMIT = tl.constexpr(layout.LIMIT)
PROTECTED = tl.constexpr(layout.PROTECTED)
REFUSED = tl.constexpr(layout.REFUSED)
LOGGED = tl.constexpr(layout.LOGGED)
LOG = tl.constexpr(layout.LOG)
NONE = tl.constexpr(layout.NONE)
CREATED = tl.constexpr(layout.CREATED)
EVICTED = tl.constexpr(layout.EVICTED)
REFUSAL = tl.constexpr(layout.REFUSAL)
WAITS = tl.constexpr(0x80000000)
"""Bit of a word whose slot is not known yet; the bits below are the key's number in the queue."""
NEW = tl.constexpr(-2)
"""In `Inserted.slots`: the key has an entry, and gets a new slot."""


@triton.jit
def address(entry: tl.tensor) -> tl.tensor:
    """Return the offset of the word of an entry; its key is 8 before."""
    return (entry >> 3).to(tl.int64) * 16 + 8 + (entry & 7)


@triton.jit
def put(
    index: tl.tuple,
    entry: tl.tensor,
    key: tl.tensor,
    word: tl.tensor,
    table: tl.tensor,
    on: tl.tensor,
    TABLES: tl.constexpr,
) -> None:
    """Write entries."""
    tl.store(index.words + address(entry) - 8, key, mask=on)
    tl.store(index.words + address(entry), word, mask=on)
    if TABLES:
        tl.store(index.owners + entry, table, mask=on)


@triton.jit
def rank(wish: tl.tensor, on: tl.tensor, BLOCK: tl.constexpr) -> tl.tensor:
    """Return how many earlier keys of the chunk have the same wish, a number >= 0, where `on`."""
    i = tl.arange(0, BLOCK)
    wish = tl.where(on, wish, -1)
    same = (wish[:, None] == wish[None, :]) & (i[None, :] < i[:, None])
    return tl.sum(same.to(tl.int32), axis=1)


# The r-th key of a bucket stores to its r-th free entry: distinct addresses.
@triton.jit
def fill(
    index: tl.tuple,
    bucket: tl.tensor,
    item: tl.tuple,
    pending: tl.tensor,
    places: tl.tensor,
    KEPT: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Place pending keys in free entries of their buckets; return those still pending.

    KEPT: words have slots; otherwise `places` gets the entry of each key.
    """
    key, word, table, seq = item
    if tl.max(pending.to(tl.int32), axis=0) > 0:
        e = tl.arange(0, 8)[None, :]
        turn = rank(bucket, pending, BLOCK)[:, None]
        words = index.words + bucket.to(tl.int64)[:, None] * 16 + 8 + e
        free = tl.load(words, mask=pending[:, None], other=1) == 0
        chosen = free & (tl.cumsum(free.to(tl.int32), axis=1) - 1 == turn)
        entry = tl.max(tl.where(chosen, bucket[:, None] * 8 + e, -1), axis=1)
        on = pending & (entry >= 0)
        tl.debug_barrier()
        put(index, entry, key, word, table, on, TABLES)
        if not KEPT:
            tl.store(places + seq, entry, mask=on)
        tl.debug_barrier()
        pending = pending & (entry < 0)
    return pending


@triton.jit
def other_of(index: tl.tuple, entry: tl.tensor) -> tl.tensor:
    """Return the other bucket of the rows of entries."""
    a, b = buckets_of(tl.load(index.words + address(entry) - 8), index)
    return a + b - (entry >> 3)


# Loads, a barrier, stores, a barrier; entries and targets differ.
@triton.jit
def move(
    index: tl.tuple,
    entry: tl.tensor,
    target: tl.tensor,
    on: tl.tensor,
    places: tl.tensor,
    KEPT: tl.constexpr,
    TABLES: tl.constexpr,
) -> None:
    """Copy entries to targets."""
    key = tl.load(index.words + address(entry) - 8, mask=on, other=0)
    word = tl.load(index.words + address(entry), mask=on, other=0)
    table = (key * 0).to(tl.int16)
    if TABLES:
        table = tl.load(index.owners + entry, mask=on, other=0)
    tl.debug_barrier()
    put(index, target, key, word, table, on, TABLES)
    if not KEPT:
        tl.store(places + (word & (WAITS - 1)), target, mask=on & ((word & WAITS) != 0))
    tl.debug_barrier()


# Both buckets of a pending key are full, so entries that are taken are in full buckets and entries that are
# filled in others: the two kinds never coincide. Of keys that want the same entry of either kind, the first
# stores.
@triton.jit
def displace(
    index: tl.tuple,
    pair: tl.tuple,
    item: tl.tuple,
    pending: tl.tensor,
    places: tl.tensor,
    KEPT: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Move rows of full buckets to their other buckets; place pending keys there; return those still pending.

    KEPT: words have slots; otherwise `places` follows the entries of words that wait for theirs.
    """
    key, word, table, seq = item
    again = tl.max(pending.to(tl.int32), axis=0)
    while again > 0:
        e = tl.arange(0, 16)[None, :]
        home = tl.where(e < 8, pair[0][:, None], pair[1][:, None])
        theirs = tl.load(index.words + home.to(tl.int64) * 16 + e % 8, mask=pending[:, None], other=0)
        a, b = buckets_of(theirs, index)
        other = a + b - home
        room = tl.full([BLOCK, 16], 8, tl.int32)
        for k in tl.static_range(8):
            free = tl.load(index.words + address(other * 8 + 7 - k), mask=pending[:, None], other=1) == 0
            room = tl.where(free, 7 - k, room)
        # Each key begins with another of its entries, so that fewer want the same.
        wish = tl.where(room < 8, (e + tl.arange(0, BLOCK)[:, None]) % 16, 16)
        best = tl.min(wish, axis=1)
        source = tl.max(tl.where(wish == best[:, None], home * 8 + e % 8, -1), axis=1)
        target = tl.max(tl.where(wish == best[:, None], other * 8 + room, -1), axis=1)
        able = pending & (best < 16)
        win = able & (rank(source, able, BLOCK) == 0) & (rank(target, able, BLOCK) == 0)
        move(index, source, target, win, places, KEPT, TABLES)
        put(index, source, key, word, table, win, TABLES)
        if not KEPT:
            tl.store(places + seq, source, mask=win)
        tl.debug_barrier()
        pending = pending & (win == 0)
        again = tl.max((able & pending).to(tl.int32), axis=0)
    return pending


# One key after another, and three entries in different buckets: the first two are full, the last is not, and
# a row's two buckets differ.
@triton.jit
def displace_twice(
    index: tl.tuple,
    pair: tl.tuple,
    item: tl.tuple,
    pending: tl.tensor,
    places: tl.tensor,
    KEPT: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Do what `displace` does if the rows' other buckets are full too: first move a row out of one of them.

    At a load of 0.8, one of ten million keys needs it.
    """
    i, e, f = tl.arange(0, BLOCK), tl.arange(0, 16)[:, None], tl.arange(0, 8)[None, :]
    at = tl.min(tl.where(pending, i, BLOCK), axis=0)
    while at < BLOCK:
        first = tl.max(tl.where(i == at, pair[0], -1), axis=0)
        second = tl.max(tl.where(i == at, pair[1], -1), axis=0)
        home = tl.where(e < 8, first, second)
        middle = other_of(index, home * 8 + e % 8)
        end = other_of(index, middle * 8 + f)
        code = tl.full([16, 8], 1024, tl.int32)
        for k in tl.static_range(8):
            free = tl.load(index.words + address(end * 8 + 7 - k)) == 0
            code = tl.where(free, (e * 8 + f) * 8 + 7 - k, code)
        best = tl.min(code)
        if best < 1024:
            near = tl.where(best < 512, first, second) * 8 + (best >> 6) % 8
            far = other_of(index, near) * 8 + (best >> 3) % 8
            target = other_of(index, far) * 8 + best % 8
            mine = (i == at) & pending
            # Values of the lane; of the other lanes, nothing is stored.
            near, far, target = near + 0 * i, far + 0 * i, target + 0 * i
            move(index, far, target, mine, places, KEPT, TABLES)
            move(index, near, far, mine, places, KEPT, TABLES)
            put(index, near, item[0], item[1], item[2], mine, TABLES)
            if not KEPT:
                tl.store(places + item[3], near, mask=mine)
            tl.debug_barrier()
            pending = pending & (i != at)
        at = tl.min(tl.where(pending & (i > at), i, BLOCK), axis=0)
    return pending


# Of keys that want the same victim, the first stores; everything else is stored by seq.
@triton.jit
def evict(
    index: tl.tuple,
    pair: tl.tuple,
    item: tl.tuple,
    pending: tl.tensor,
    work: tl.tuple,
    POLICY: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Let pending keys replace the row of their buckets that deserves it most; return those still pending."""
    key, word, table, seq = item
    step, protected = tl.load(index.state + STEP), tl.load(index.state + PROTECTED)
    again = tl.max(pending.to(tl.int32), axis=0)
    while again > 0:
        e = tl.arange(0, 16)[None, :]
        home = tl.where(e < 8, pair[0][:, None], pair[1][:, None])
        words = tl.load(index.words + home.to(tl.int64) * 16 + 8 + e % 8, mask=pending[:, None], other=0)
        note = (words >> 32) & LOW
        if POLICY == FREQUENT:
            age, worst = (step - note) & AGE, LOW - note
        else:
            age, worst = (step - note) & LOW, (step - note) & LOW
        code = tl.where((words != 0) & (age > protected), worst * 16 + 15 - e, -1)
        best = tl.max(code, axis=1)
        victim = tl.max(tl.where(code == best[:, None], home * 8 + e % 8, -1), axis=1)
        able = pending & (best >= 0)
        win = able & (rank(victim, able, BLOCK) == 0)
        gone = tl.load(index.words + address(victim) - 8, mask=win, other=0)
        place = tl.load(index.words + address(victim), mask=win, other=0) & LOW
        owner = table
        if TABLES:
            owner = tl.load(index.owners + victim, mask=win, other=0)
        tl.debug_barrier()
        put(index, victim, key, (word & ~LOW) | place, table, win, TABLES)
        tl.store(work.slots + seq, (place - 1).to(tl.int32), mask=win)
        tl.store(work.gone_keys + seq, gone, mask=win)
        if TABLES:
            tl.store(work.gone_tables + seq, owner, mask=win)
        tl.debug_barrier()
        pending = pending & (win == 0)
        again = tl.max((able & pending).to(tl.int32), axis=0)
    return pending


@triton.jit
def heads(queue: tl.tuple, keys: tl.tuple, seq: tl.tensor, many: tl.tensor, segments: tl.tensor) -> tl.tensor:
    """Return whether the queue's key with each number is the first of its segment."""
    live, former = seq < many, (seq < many) & (seq > 0)
    key = tl.load(keys.keys + tl.load(queue.runs + seq, mask=live, other=0), mask=live, other=0)
    back = tl.load(keys.keys + tl.load(queue.runs + seq - 1, mask=former, other=0), mask=former, other=0)
    return live & ((seq == 0) | (segment_of(key, segments) != segment_of(back, segments)))


@triton.jit
def fresh_note(step: tl.tensor, POLICY: tl.constexpr) -> tl.tensor:
    """Return the note of a new row, in the high half of a word."""
    note = step
    if POLICY == NONE:
        note = step * 0
    if POLICY == FREQUENT:
        note = (step & AGE) | (1 << 20)
    return note << 32


# Programs have different segments, see above, and so different keys: everything stored by seq is the
# program's own. Its slot is stored here and then, after a barrier, by `evict`.
@triton.jit
def insert(
    queue: tl.tuple,
    keys: tl.tuple,
    index: tl.tuple,
    work: tl.tuple,
    POLICY: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Give keys an entry: a free one while there are slots, if need be by moving rows; else an evicted row's.

    Args:
        queue, keys, index, work: `Queue`, `Distinct`, `Buckets`, `Inserted`.
        BLOCK: CHUNK.
    """
    p = tl.program_id(0)
    many = tl.load(queue.count)
    if p * BLOCK < many:
        state = index.state
        segments = tl.load(state + SEGMENTS)
        room = tl.load(state + FREE) + tl.load(state + LIMIT) - tl.load(state + USED)
        note = fresh_note(tl.load(state + STEP), POLICY)
        seq = p * BLOCK + tl.arange(0, BLOCK)
        at = tl.min(tl.where(heads(queue, keys, seq, many, segments), seq, many), axis=0)
        tl.store(work.spans + 2 * p, at)
        created, evicted, stop = many * 0, many * 0, at
        going = at < many
        while going:
            seq = at + tl.arange(0, BLOCK)
            behind = (seq >= (p + 1) * BLOCK) & heads(queue, keys, seq, many, segments)
            stop = tl.min(tl.where(behind, seq, many), axis=0)
            live = seq < stop
            run = tl.load(queue.runs + seq, mask=live, other=0)
            key = tl.load(keys.keys + run, mask=live, other=0)
            table = tl.zeros([BLOCK], tl.int16)
            if TABLES:
                table = tl.load(keys.tables + run, mask=live, other=0)
            pair = buckets_of(key, index)
            item = (key, note | WAITS | seq.to(tl.int64), table, seq)
            newcomer = live & (seq < room)
            pending = fill(index, pair[0], item, newcomer, work.places, False, TABLES, BLOCK)
            pending = fill(index, pair[1], item, pending, work.places, False, TABLES, BLOCK)
            pending = displace(index, pair, item, pending, work.places, False, TABLES, BLOCK)
            pending = displace_twice(index, pair, item, pending, work.places, False, TABLES, BLOCK)
            placed = newcomer & (pending == 0)
            tl.store(work.slots + seq, tl.where(placed, NEW, -1).to(tl.int32), mask=live)
            created += tl.sum(placed.to(tl.int32), axis=0)
            if POLICY != NONE:
                waiting = live & (placed == 0)
                left = evict(index, pair, item, waiting, work, POLICY, TABLES, BLOCK)
                evicted += tl.sum((waiting & (left == 0)).to(tl.int32), axis=0)
            at += BLOCK
            going = (stop == many) & (at < many)
        tl.store(work.spans + 2 * p + 1, stop)
        tl.store(work.made + p, created)
        tl.store(work.gone + p, evicted)


# Programs have the keys they had in `insert`. Everything is stored at the key's own run, entry or rank; of
# these only `status` is loaded here, by the same lane, before the barrier.
@triton.jit
def settle(
    queue: tl.tuple,
    index: tl.tuple,
    work: tl.tuple,
    lists: tl.tuple,
    found: tl.tuple,
    POLICY: tl.constexpr,
    TABLES: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Give keys that are NEW a slot, free ones first; write slots and status; log evicted rows.

    Args:
        queue, index, work, lists, found: `Queue`, `Buckets`, `Inserted`, `Lists`, `Found`.
        BLOCK: CHUNK.
    """
    p = tl.program_id(0)
    many = tl.load(queue.count)
    if p * BLOCK < many:
        state = index.state
        stack, used = tl.load(state + FREE), tl.load(state + USED)
        note = fresh_note(tl.load(state + STEP), POLICY)
        logged, ring = tl.load(state + LOGGED), tl.load(state + LOG)
        begin, end = tl.load(work.spans + 2 * p), tl.load(work.spans + 2 * p + 1)
        created, evicted = before(work.made, p), before(work.gone, p)
        total = before(work.gone, (many + BLOCK - 1) // BLOCK)
        for at in range(begin, end, BLOCK):
            seq = at + tl.arange(0, BLOCK)
            live = seq < end
            run = tl.load(queue.runs + seq, mask=live, other=0)
            slot = tl.load(work.slots + seq, mask=live, other=-1)
            new, taken = live & (slot == NEW), live & (slot >= 0)
            turn = (created + tl.cumsum(new.to(tl.int32), axis=0) - 1).to(tl.int64)
            again = tl.load(lists.free + stack - 1 - turn, mask=new & (turn < stack), other=0).to(tl.int64)
            slot = tl.where(new, tl.where(turn < stack, again, used + turn - stack), slot.to(tl.int64))
            entry = tl.load(work.places + seq, mask=new, other=0)
            status = tl.load(found.status + run, mask=live, other=0).to(tl.int32)
            status |= tl.where(slot < 0, REFUSAL, CREATED) | tl.where(taken, EVICTED, 0)
            tl.debug_barrier()
            tl.store(index.words + address(entry), note | (slot + 1), mask=new)
            tl.store(found.slots + run, slot.to(tl.int32), mask=live)
            tl.store(found.status + run, status.to(tl.int8), mask=live)
            if POLICY != NONE:
                order = evicted + tl.cumsum(taken.to(tl.int32), axis=0) - 1
                lasts = taken & (order >= total - ring)  # the last ring's length: distinct lines
                owner = tl.zeros([BLOCK], tl.int16)
                if TABLES:
                    owner = tl.load(work.gone_tables + seq, mask=taken, other=0)
                    tl.store(found.victims + run, owner, mask=taken)
                line = lists.log + 2 * ((logged + order) % ring)
                tl.store(line, tl.load(work.gone_keys + seq, mask=lasts, other=0), mask=lasts)
                tl.store(line + 1, (owner.to(tl.int64) << 32) | slot, mask=lasts)
                evicted += tl.sum(taken.to(tl.int32), axis=0)
            created += tl.sum(new.to(tl.int32), axis=0)


# One program: all loads, a barrier, all stores.
@triton.jit
def end_insert(queue: tl.tuple, index: tl.tuple, work: tl.tuple, BLOCK: tl.constexpr) -> None:
    """Count slots used, rows logged, and ids refused. BLOCK: CHUNK."""
    if tl.program_id(0) == 0:
        state = index.state
        many = tl.load(queue.count)
        programs = (many + BLOCK - 1) // BLOCK
        new, lost = before(work.made, programs), before(work.gone, programs)
        stack, used, logged = tl.load(state + FREE), tl.load(state + USED), tl.load(state + LOGGED)
        tl.debug_barrier()
        tl.store(state + FREE, tl.maximum(stack - new, 0))
        tl.store(state + USED, used + tl.maximum(new - stack, 0))
        tl.store(state + LOGGED, logged + lost)
        tl.store(state + REFUSED, (many - new - lost).to(tl.int64))
