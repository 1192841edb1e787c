"""Counters of the tables, and the step."""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu import layout
from satrap.store.gpu.kernels.index import SECOND, STEP
from satrap.store.gpu.kernels.insert import CREATED, EVICTED, REFUSAL

COLUMNS = tl.constexpr(len(layout.COUNTERS))


# One program: all loads, a barrier, all stores.
@triton.jit
def advance(index: tl.tuple) -> None:
    """Begin a request that uses rows: the next step, 1..2^32 - 2."""
    if tl.program_id(0) == 0:
        step = tl.load(index.state + STEP)
        tl.debug_barrier()
        tl.store(index.state + STEP, step % 0xFFFFFFFE + 1)


# Each program stores to its own part of `partial`, which is not loaded here.
@triton.jit
def tally(
    found: tl.tuple,
    tables: tl.tensor,
    count: tl.tensor,
    partial: tl.tensor,
    columns: int,
    TABLES: tl.constexpr,
    TILE: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write how many keys of each table were created, evicted, refused and probed twice, by part of the keys.

    Args:
        found, tables: `Found` (its slots are unused), and the table of each of its keys, int16.
        count: int32[1], the number of keys.
        partial: int32[parts, 4, columns].
        columns: tables, rounded up to a multiple of TILE; TILE is 1 with one table.
    """
    p, parts = tl.program_id(0), tl.num_programs(0)
    t = tl.program_id(1) * TILE + tl.arange(0, TILE)
    many = tl.load(count)
    created = tl.zeros([TILE], tl.int32)
    evicted = tl.zeros([TILE], tl.int32)
    refused = tl.zeros([TILE], tl.int32)
    twice = tl.zeros([TILE], tl.int32)
    for at in range(p * BLOCK, many, parts * BLOCK):
        i = (at + tl.arange(0, BLOCK))[None, :]
        status = tl.load(found.status + i, mask=i < many, other=0).to(tl.int32)
        lost = (status & EVICTED) != 0
        mine, its = status >= 0, status >= 0
        if TABLES:
            mine = tl.load(tables + i, mask=i < many, other=0).to(tl.int32) == t[:, None]
            its = tl.load(found.victims + i, mask=lost, other=-1).to(tl.int32) == t[:, None]
        created += tl.sum((mine & ((status & CREATED) != 0)).to(tl.int32), axis=1)
        evicted += tl.sum((its & lost).to(tl.int32), axis=1)
        refused += tl.sum((mine & ((status & REFUSAL) != 0)).to(tl.int32), axis=1)
        twice += tl.sum((mine & ((status & SECOND) != 0)).to(tl.int32), axis=1)
    out = partial + p * 4 * columns + t
    tl.store(out, created)
    tl.store(out + columns, evicted)
    tl.store(out + 2 * columns, refused)
    tl.store(out + 3 * columns, twice)


# A program has its own tables; all loads, a barrier, all stores.
@triton.jit
def add_up(
    partial: tl.tensor, counters: tl.tensor, tables: int, columns: int, parts: int, TILE: tl.constexpr
) -> None:
    """Add the parts of `tally` to the counters, int64[tables, COUNTERS]."""
    t = tl.program_id(0) * TILE + tl.arange(0, TILE)
    created = tl.zeros([TILE], tl.int64)
    evicted = tl.zeros([TILE], tl.int64)
    refused = tl.zeros([TILE], tl.int64)
    twice = tl.zeros([TILE], tl.int64)
    for p in range(0, parts):
        at = partial + p * 4 * columns + t
        created += tl.load(at)
        evicted += tl.load(at + columns)
        refused += tl.load(at + 2 * columns)
        twice += tl.load(at + 3 * columns)
    on = t < tables
    at = counters + t * COLUMNS
    rows = tl.load(at, mask=on, other=0) + created - evicted
    created += tl.load(at + 1, mask=on, other=0)
    evicted += tl.load(at + 2, mask=on, other=0)
    refused += tl.load(at + 3, mask=on, other=0)
    twice += tl.load(at + 4, mask=on, other=0)
    tl.debug_barrier()
    tl.store(at, rows, mask=on)
    tl.store(at + 1, created, mask=on)
    tl.store(at + 2, evicted, mask=on)
    tl.store(at + 3, refused, mask=on)
    tl.store(at + 4, twice, mask=on)
