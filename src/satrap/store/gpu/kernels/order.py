"""Distinct keys of a request: hash, (sort), runs of equal keys.

A key is the mix of (id xor salt of the table) with its top bit flipped: the signed order of keys is the order
of hashes, which is the order of first buckets. Positions of a request are grouped by table and the sort is
stable, so equal hashes of two tables are neighbours in the order of tables: a run ends where the key or the
table changes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu.kernels.hashing import mix, unmix

FLIP = tl.constexpr(0x8000000000000000)
LAST = tl.constexpr(0x7FFFFFFFFFFFFFFF)


@triton.jit
def before(sums: tl.tensor, many: tl.tensor) -> tl.tensor:
    """Return the sum of the first `many` of int32 sums."""
    total = tl.zeros([1024], tl.int32)
    for k in range(0, many, 1024):
        at = k + tl.arange(0, 1024)
        total += tl.load(sums + at, mask=at < many, other=0)
    return tl.sum(total, axis=0)


# Each lane stores to its own position, and nothing that is stored is loaded here.
@triton.jit
def hash_ids(
    ids: tl.tensor,
    splits: tl.tensor,
    salts: tl.tensor,
    count: tl.tensor,
    out: tl.tuple,
    n: int,
    SEARCH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write the key of each id, and its table; padding gets the last key and, by the stable sort, the end.

    Args:
        splits: int64[2^SEARCH], where tables begin; SEARCH: 0 with one table.
        out: `Sorted`, before the sort.
        n: positions with padding.
    """
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < tl.load(count)
    x = tl.load(ids + i, mask=live, other=0).to(tl.uint64, bitcast=True)
    t = tl.zeros([BLOCK], tl.int32)
    for k in tl.static_range(SEARCH):  # the last table that begins at i or before
        ahead = t + (1 << (SEARCH - 1 - k))
        t = tl.where(tl.load(splits + ahead, mask=live, other=LAST) <= i, ahead, t)
    salt = tl.load(salts + t, mask=live, other=0).to(tl.uint64, bitcast=True)
    key = (mix(x ^ salt) ^ FLIP).to(tl.int64, bitcast=True)
    tl.store(out.keys + i, tl.where(live, key, LAST), mask=i < n)
    if SEARCH:
        tl.store(out.owners + i, t.to(tl.int16), mask=i < n)


@triton.jit
def begins(request: tl.tuple, i: tl.tensor, live: tl.tensor, SEARCH: tl.constexpr) -> tl.tensor:
    """Return whether a run begins at each sorted position."""
    former = live & (i > 0)
    key = tl.load(request.keys + i, mask=live, other=0)
    new = key != tl.load(request.keys + i - 1, mask=former, other=0)
    if SEARCH:
        at = tl.load(request.positions + i, mask=live, other=0)
        back = tl.load(request.positions + i - 1, mask=former, other=0)
        owner = tl.load(request.owners + at, mask=live, other=0)
        new |= owner != tl.load(request.owners + back, mask=former, other=0)
    return live & (new | (i == 0))


# A program stores only its own sum.
@triton.jit
def count_runs(
    request: tl.tuple, count: tl.tensor, sums: tl.tensor, SEARCH: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Write the number of runs that begin in each block of sorted keys. request: `Sorted`."""
    start = tl.program_id(0) * BLOCK
    many = tl.load(count)
    if start < many:
        i = start + tl.arange(0, BLOCK)
        new = begins(request, i, i < many, SEARCH)
        tl.store(sums + tl.program_id(0), tl.sum(new.to(tl.int32), axis=0))


# A run is written by the lane of its first position, order and inverse by the lane of each position, the ends
# by the lane of the last position: no address is stored to by two lanes, and none of them is loaded here.
@triton.jit
def write_runs(
    request: tl.tuple,
    salts: tl.tensor,
    count: tl.tensor,
    sums: tl.tensor,
    out: tl.tuple,
    SEARCH: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write key, table, id and first sorted position of each run, and the run of each position.

    Args:
        request, sums: `Sorted`; of `count_runs`, with the same BLOCK.
        out: the tensors of `Distinct`.
    """
    start = tl.program_id(0) * BLOCK
    many = tl.load(count)
    if start < many:
        i = start + tl.arange(0, BLOCK)
        live = i < many
        new = begins(request, i, live, SEARCH)
        run = before(sums, tl.program_id(0)) + tl.cumsum(new.to(tl.int32), axis=0) - 1
        key = tl.load(request.keys + i, mask=new, other=0)
        at = tl.load(request.positions + i, mask=live, other=0)
        table = tl.zeros([BLOCK], tl.int16)
        if SEARCH:
            table = tl.load(request.owners + at, mask=new, other=0)
            tl.store(out.tables + run, table, mask=new)
        salt = tl.load(salts + table.to(tl.int32), mask=new, other=0).to(tl.uint64, bitcast=True)
        x = unmix(key.to(tl.uint64, bitcast=True) ^ FLIP) ^ salt
        tl.store(out.keys + run, key, mask=new)
        tl.store(out.ids + run, x.to(tl.int64, bitcast=True), mask=new)
        tl.store(out.starts + run, i, mask=new)
        tl.store(out.order + i, at.to(tl.int32), mask=live)
        tl.store(out.inverse + at, run, mask=live)
        last = i == many - 1
        tl.store(out.starts + run + 1, i + 1, mask=last)
        tl.store(out.runs + 0 * i, run + 1, mask=last)
    if (start == 0) & (many == 0):
        tl.store(out.starts, 0)
        tl.store(out.runs, 0)
