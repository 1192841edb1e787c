"""Dropping rows that were not used for long: some buckets in each request, by a hand that goes around."""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu import layout
from satrap.store.gpu.kernels.index import LOW, SEGMENTS, STEP, WIDTH
from satrap.store.gpu.kernels.insert import FREE, LOG, LOGGED, address
from satrap.store.gpu.kernels.order import before

HAND = tl.constexpr(layout.HAND)
TTL = tl.constexpr(layout.TTL)
FREE_LIMIT = tl.constexpr(layout.FREE_LIMIT)


@triton.jit
def under_hand(
    index: tl.tuple, p: tl.tensor, window: int, BLOCK: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return (entries, their words, whether they have expired) of part p of the window."""
    state = index.state
    i = p * BLOCK + tl.arange(0, BLOCK)
    buckets = tl.load(state + SEGMENTS) * tl.load(state + WIDTH)
    bucket = (tl.load(state + HAND) + (i >> 3)) % buckets
    entry = (bucket * 8 + (i & 7)).to(tl.int32)
    word = tl.load(index.words + address(entry), mask=i < window * 8, other=0)
    age = (tl.load(state + STEP) - (word >> 32)) & LOW
    return entry, word, (word != 0) & (age > tl.load(state + TTL))


# A program stores only its own sum.
@triton.jit
def count_expired(index: tl.tuple, out: tl.tuple, window: int, BLOCK: tl.constexpr) -> None:
    """Write how many entries of each part of the next `window` buckets have expired: `Expired.sums`."""
    _, _, expired = under_hand(index, tl.program_id(0), window, BLOCK)
    tl.store(out.sums + tl.program_id(0), tl.sum(expired.to(tl.int32), axis=0))


# A window has each bucket at most once, so a word is loaded and stored by one lane only (the barrier: warps
# may hold copies); everything else is stored at the row's own rank, and not loaded here.
@triton.jit
def expire(
    index: tl.tuple, lists: tl.tuple, out: tl.tuple, window: int, TABLES: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Drop expired rows while the list of free slots and half of the log have room: `Lists`, `Expired`."""
    state, p = index.state, tl.program_id(0)
    entry, word, expired = under_hand(index, p, window, BLOCK)
    stack, logged, ring = tl.load(state + FREE), tl.load(state + LOGGED), tl.load(state + LOG)
    room = tl.minimum(tl.load(state + FREE_LIMIT) - stack, ring // 2)
    turn = before(out.sums, p) + tl.cumsum(expired.to(tl.int32), axis=0) - 1
    total = before(out.sums, tl.num_programs(0)).to(tl.int64)
    on = expired & (turn < room)
    key = tl.load(index.words + address(entry) - 8, mask=on, other=0)
    owner = tl.zeros([BLOCK], tl.int16)
    if TABLES:
        owner = tl.load(index.owners + entry, mask=on, other=0)
    slot = (word & LOW) - 1
    tl.debug_barrier()
    tl.store(index.words + address(entry), tl.zeros([BLOCK], tl.int64), mask=on)
    tl.store(lists.free + stack + turn, slot.to(tl.int32), mask=on)
    line = lists.log + 2 * ((logged + turn) % ring)
    tl.store(line, key, mask=on)
    tl.store(line + 1, (owner.to(tl.int64) << 32) | slot, mask=on)
    if TABLES:
        tl.store(out.victims + turn, owner, mask=on)
    if p == 0:
        tl.store(out.dropped, tl.minimum(total, room).to(tl.int32))


# One program: all loads, a barrier, all stores.
@triton.jit
def end_expiry(index: tl.tuple, out: tl.tuple, window: int) -> None:
    """Count the dropped rows' slots as free, and advance the hand."""
    if tl.program_id(0) == 0:
        state = index.state
        many = tl.load(out.dropped).to(tl.int64)
        stack, logged, hand = tl.load(state + FREE), tl.load(state + LOGGED), tl.load(state + HAND)
        buckets = tl.load(state + SEGMENTS) * tl.load(state + WIDTH)
        tl.debug_barrier()
        tl.store(state + FREE, stack + many)
        tl.store(state + LOGGED, logged + many)
        tl.store(state + HAND, (hand + window) % buckets)
