"""Laying an index out again in another number of segments."""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu.kernels.index import SEGMENTS, WIDTH, buckets_of, segment_of
from satrap.store.gpu.kernels.insert import address, displace, displace_twice, fill


# A program stores to the buckets of its own new segment only, and its own count; the old index is only read.
# Within a program: see `insert`.
@triton.jit
def rebuild(old: tl.tuple, new: tl.tuple, lost: tl.tensor, TABLES: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """Copy the entries whose keys belong to one segment of an empty index: that with the program's number.

    The hashes of a segment are a range, so its keys are in neighbouring segments of the old index. They are
    inserted in their order there, BLOCK entries at a time.

    Args:
        old, new: `Buckets`.
        lost: int32[segments], how many keys found no place.
    """
    p = tl.program_id(0).to(tl.int64)
    before, width = tl.load(old.state + SEGMENTS), tl.load(old.state + WIDTH)
    segments = tl.load(new.state + SEGMENTS)
    begin = (p * before // segments * width * 8).to(tl.int32)
    end = ((((p + 1) * before - 1) // segments + 1) * width * 8).to(tl.int32)
    homeless = tl.zeros([BLOCK], tl.int32)
    for at in range(begin, end, BLOCK):
        entry = at + tl.arange(0, BLOCK)
        inside = entry < end
        word = tl.load(old.words + address(entry), mask=inside, other=0)
        key = tl.load(old.words + address(entry) - 8, mask=inside, other=0)
        table = tl.zeros([BLOCK], tl.int16)
        if TABLES:
            table = tl.load(old.owners + entry, mask=inside, other=0)
        pair, item = buckets_of(key, new), (key, word, table, entry)
        pending = inside & (word != 0) & (segment_of(key, segments) == p)
        pending = fill(new, pair[0], item, pending, lost, True, TABLES, BLOCK)
        pending = fill(new, pair[1], item, pending, lost, True, TABLES, BLOCK)
        pending = displace(new, pair, item, pending, lost, True, TABLES, BLOCK)
        pending = displace_twice(new, pair, item, pending, lost, True, TABLES, BLOCK)
        homeless += pending.to(tl.int32)
    tl.store(lost + p, tl.sum(homeless, axis=0))
