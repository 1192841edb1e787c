"""Creates, gathers, pools, reads and writes rows `[weights | state]`, contiguous in one slab.

A tile has one row per row of the slab, or per sample, and one column per weight. Programs of one launch write
different rows of the slab or of the output, so their order does not matter. No kernel here reads memory to
which it writes, so its warps need no barrier: where several hold copies of a number, they store equal values.
"""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu.kernels.formats import first_weights, narrowed, widened
from satrap.store.gpu.kernels.hashing import mix

SUM = tl.constexpr(0)
MEAN = tl.constexpr(1)
SQRTN = tl.constexpr(2)
MAX = tl.constexpr(3)


@triton.jit
def positions(request: tl.tuple) -> tl.tensor:
    """Return the number of positions of the request."""
    runs = tl.load(request.runs)
    return tl.load(request.starts + runs, mask=runs > 0, other=0)


@triton.jit
def first_of(
    request: tl.tuple,
    initial: tl.tuple,
    at: tl.tensor,
    c: tl.tensor,
    SHAPE: tl.constexpr,
    TABLES: tl.constexpr,
) -> tl.tensor:
    """Return the first weights, as they are stored, of distinct ids `at` [R, 1], -1: any."""
    id = tl.load(request.ids + at, mask=at >= 0, other=0)
    table = tl.load(request.tables + at, mask=at >= 0, other=0).to(tl.int32) if TABLES else at * 0
    key = (id ^ tl.load(initial.seeds + table)).to(tl.uint64, bitcast=True)
    return first_weights(key, tl.load(initial.scales + table), c, SHAPE.format)


@triton.jit
def weights_of(
    memory: tl.tuple,
    request: tl.tuple,
    initial: tl.tuple,
    at: tl.tensor,
    c: tl.tensor,
    SHAPE: tl.constexpr,
    LOOKUP: tl.constexpr,
) -> tl.tensor:
    """Return the weights, float32 [R, columns], of distinct ids `at` [R, 1]; -1: zeros."""
    slot = tl.load(request.slots + at, mask=at >= 0, other=-1)
    place = slot.to(tl.int64) * SHAPE.weights + c
    x = tl.load(memory.weights + place, mask=(slot >= 0) & (c < SHAPE.dim), other=0)
    if LOOKUP.initial:
        absent = (slot < 0) & (at >= 0)
        if tl.max(absent.to(tl.int32)) > 0:
            x = tl.where(absent, first_of(request, initial, at, c, SHAPE, LOOKUP.tables), x)
    return widened(x, SHAPE.format)


@triton.jit
def initialize(
    memory: tl.tuple,
    request: tl.tuple,
    initial: tl.tuple,
    fresh: tl.tensor,
    count: tl.tensor,
    SHAPE: tl.constexpr,
    TABLES: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the first rows of distinct ids `fresh`, int32; `count` int32[1]. Slot -1 is skipped.

    Slots of fresh ids are different, so each row is written by one program, and nothing in a slab is read.
    """
    start = tl.program_id(0) * R
    many = tl.load(count)
    if start < many:
        j = start + tl.arange(0, R)[:, None]
        C: tl.constexpr = SHAPE.columns
        c = tl.arange(0, C)[None, :]
        at = tl.load(fresh + j, mask=j < many, other=-1)
        slot = tl.load(request.slots + at, mask=at >= 0, other=-1)
        inside = (slot >= 0) & (c < SHAPE.dim)
        x = first_of(request, initial, at, c, SHAPE, TABLES)
        tl.store(memory.weights + slot.to(tl.int64) * SHAPE.weights + c, x, mask=inside)
        V: tl.constexpr = SHAPE.vectors
        for v in tl.static_range(V):
            place = slot.to(tl.int64) * SHAPE.state + v * SHAPE.vector + c
            value = tl.load(initial.state) + tl.zeros([R, C], tl.float32)
            tl.store(memory.state + place, value, mask=inside)
        if SHAPE.scalar:
            value = tl.load(initial.state + 1) + tl.zeros([R, 1], tl.float32)
            tl.store(memory.scalars + slot, value, mask=slot >= 0)


@triton.jit
def gather(
    memory: tl.tuple,
    request: tl.tuple,
    initial: tl.tuple,
    out: tl.tuple,
    SHAPE: tl.constexpr,
    LOOKUP: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the weights of each distinct id to a row of `out`."""
    start = tl.program_id(0) * R
    many = tl.load(request.runs)
    if start < many:
        at = start + tl.arange(0, R)[:, None]
        at = tl.where(at < many, at, -1)
        c = tl.arange(0, SHAPE.columns)[None, :]
        x = weights_of(memory, request, initial, at, c, SHAPE, LOOKUP)
        inside = (at >= 0) & (c < SHAPE.dim)
        tl.store(
            out.target + at.to(tl.int64) * out.stride + c, x.to(out.target.dtype.element_ty), mask=inside
        )


@triton.jit
def gather_positions(
    memory: tl.tuple,
    request: tl.tuple,
    initial: tl.tuple,
    out: tl.tuple,
    start: int,
    SHAPE: tl.constexpr,
    LOOKUP: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the weights of position `start + f * samples + b` to `out[b, f]`; zeros after the last one."""
    p = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.arange(0, SHAPE.columns)[None, :]
    live = p < out.samples * out.features
    at = tl.load(request.inverse + start + p, mask=live & (start + p < positions(request)), other=-1)
    x = weights_of(memory, request, initial, at, c, SHAPE, LOOKUP)
    place = (p % out.samples).to(tl.int64) * out.stride + (p // out.samples) * SHAPE.dim + c
    tl.store(out.target + place, x.to(out.target.dtype.element_ty), mask=live & (c < SHAPE.dim))


@triton.jit
def ids_of(bags: tl.tuple, b: tl.tensor, samples: int) -> tl.tuple:
    """Return the first id of each sample b in its feature, and the number of ids; 0 beyond the samples."""
    first = tl.load(bags.offsets + b, mask=b < samples, other=0)
    return first, tl.load(bags.offsets + b + 1, mask=b < samples, other=0) - first


@triton.jit
def pool(
    memory: tl.tuple,
    request: tl.tuple,
    initial: tl.tuple,
    bags: tl.tuple,
    out: tl.tuple,
    SHAPE: tl.constexpr,
    LOOKUP: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the sum, mean or sqrtn of each sample's weights to `out[b]`, added in the order of positions."""
    b = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    C: tl.constexpr = SHAPE.columns
    c = tl.arange(0, C)[None, :]
    first, length = ids_of(bags, b, out.samples)
    total = tl.zeros([R, C], tl.float32)
    mass = tl.zeros([R, 1], tl.float32)
    for j in range(0, tl.max(length), 4):
        for u in tl.static_range(4):
            on = j + u < length
            at = tl.load(bags.inverse + first + j + u, mask=on, other=-1)
            x = weights_of(memory, request, initial, at, c, SHAPE, LOOKUP)
            if LOOKUP.weights:
                weight = tl.load(bags.weights + first + j + u, mask=on, other=0.0)
                x = x * weight
                mass += weight if LOOKUP.mode == MEAN else weight * weight
            total += x
    if LOOKUP.mode != SUM:
        total = tl.div_rn(total, tl.broadcast_to(divisor(mass, length, LOOKUP), [R, C]))
    place = b.to(tl.int64) * out.stride + c
    tl.store(
        out.target + place, total.to(out.target.dtype.element_ty), mask=(b < out.samples) & (c < SHAPE.dim)
    )


@triton.jit
def divisor(mass: tl.tensor, length: tl.tensor, LOOKUP: tl.constexpr) -> tl.tensor:
    """Return a sample's divisor, 1 instead of 0; `mass`: the sum of its weights, or of their squares."""
    if not LOOKUP.weights:
        mass = length.to(tl.float32)
    if LOOKUP.mode == SQRTN:
        mass = tl.sqrt_rn(mass)
    return tl.where(mass == 0.0, 1.0, mass)


@triton.jit
def pool_max(
    memory: tl.tuple,
    request: tl.tuple,
    initial: tl.tuple,
    bags: tl.tuple,
    out: tl.tuple,
    SHAPE: tl.constexpr,
    LOOKUP: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the largest weighted value of each sample and column, and its position (-1: none) to `chosen`."""
    b = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    C: tl.constexpr = SHAPE.columns
    c = tl.arange(0, C)[None, :]
    first, length = ids_of(bags, b, out.samples)
    best = tl.zeros([R, C], tl.float32)
    which = tl.full([R, C], -1, tl.int32)
    for j in range(0, tl.max(length), 2):
        for u in tl.static_range(2):
            on = j + u < length
            at = tl.load(bags.inverse + first + j + u, mask=on, other=-1)
            x = weights_of(memory, request, initial, at, c, SHAPE, LOOKUP)
            if LOOKUP.weights:
                x = x * tl.load(bags.weights + first + j + u, mask=on, other=0.0)
            better = on & ((which < 0) | (x > best))
            best = tl.where(better, x, best)
            which = tl.where(better, first + j + u + bags.start, which)
    place = b.to(tl.int64) * out.stride + c
    inside = (b < out.samples) & (c < SHAPE.dim)
    tl.store(out.target + place, best.to(out.target.dtype.element_ty), mask=inside)
    tl.store(out.chosen + place, which, mask=inside)


@triton.jit
def trace(
    bags: tl.tuple,
    source: tl.tensor,
    scale: tl.tensor,
    samples: int,
    feature: int,
    features: int,
    LOOKUP: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the row of the gradient of each position of the samples, and the factor on it; see `Gradients`.

    Each sample is one lane of one program, and samples have no position in common.
    """
    b = tl.program_id(0) * R + tl.arange(0, R)
    first, length = ids_of(bags, b, samples)
    longest = tl.max(length)
    mass = tl.zeros([R], tl.float32)
    if LOOKUP.weights and (LOOKUP.mode == MEAN or LOOKUP.mode == SQRTN):
        for j in range(0, longest):
            weight = tl.load(bags.weights + first + j, mask=j < length, other=0.0)
            mass += weight if LOOKUP.mode == MEAN else weight * weight
    below = tl.full([R], 1.0, tl.float32)
    if LOOKUP.mode == MEAN or LOOKUP.mode == SQRTN:
        below = divisor(mass, length, LOOKUP)
    row = b * features + feature
    if LOOKUP.mode == MAX:
        row = -1 - row
    for j in range(0, longest):
        on = j < length
        factor = tl.full([R], 1.0, tl.float32)
        if LOOKUP.weights:
            factor = tl.load(bags.weights + first + j, mask=on, other=0.0)
        tl.store(source + bags.start + first + j, row, mask=on)
        tl.store(scale + bags.start + first + j, tl.div_rn(factor, below), mask=on)


@triton.jit
def read(
    memory: tl.tuple,
    slots: tl.tensor,
    n: int,
    weights: tl.tensor,
    state: tl.tensor,
    SHAPE: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write each slot's weights and state, `[vectors | scalar]`; write nothing for slot -1."""
    i = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.arange(0, SHAPE.columns)[None, :]
    slot = tl.load(slots + i, mask=i < n, other=-1)
    inside = (slot >= 0) & (c < SHAPE.dim)
    x = tl.load(memory.weights + slot.to(tl.int64) * SHAPE.weights + c, mask=inside, other=0)
    tl.store(weights + i.to(tl.int64) * SHAPE.dim + c, widened(x, SHAPE.format), mask=inside)
    width = SHAPE.vectors * SHAPE.dim + SHAPE.scalar
    V: tl.constexpr = SHAPE.vectors
    for v in tl.static_range(V):
        place = slot.to(tl.int64) * SHAPE.state + v * SHAPE.vector + c
        x = tl.load(memory.state + place, mask=inside, other=0.0)
        tl.store(state + i.to(tl.int64) * width + v * SHAPE.dim + c, x, mask=inside)
    if SHAPE.scalar:
        x = tl.load(memory.scalars + slot, mask=slot >= 0, other=0.0)
        tl.store(state + i.to(tl.int64) * width + width - 1, x, mask=slot >= 0)


@triton.jit
def write(
    memory: tl.tuple,
    rows: tl.tuple,
    weights: tl.tensor,
    state: tl.tensor,
    n: int,
    SHAPE: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write weights, rounded to the format, and state to slots; slot -1 is skipped. Slots are different.

    `rows`: (slots int32[n], ids int64[n], noise int64[1]).
    """
    i = tl.program_id(0) * R + tl.arange(0, R)[:, None]
    c = tl.arange(0, SHAPE.columns)[None, :]
    slot = tl.load(rows[0] + i, mask=i < n, other=-1)
    id = tl.load(rows[1] + i, mask=i < n, other=0)
    inside = (slot >= 0) & (c < SHAPE.dim)
    x = tl.load(weights + i.to(tl.int64) * SHAPE.dim + c, mask=inside, other=0.0)
    key = mix((id ^ tl.load(rows[2])).to(tl.uint64, bitcast=True))
    x = narrowed(x, key, c, SHAPE.format)
    tl.store(memory.weights + slot.to(tl.int64) * SHAPE.weights + c, x, mask=inside)
    width = SHAPE.vectors * SHAPE.dim + SHAPE.scalar
    V: tl.constexpr = SHAPE.vectors
    for v in tl.static_range(V):
        x = tl.load(state + i.to(tl.int64) * width + v * SHAPE.dim + c, mask=inside, other=0.0)
        tl.store(memory.state + slot.to(tl.int64) * SHAPE.state + v * SHAPE.vector + c, x, mask=inside)
    if SHAPE.scalar:
        x = tl.load(state + i.to(tl.int64) * width + width - 1, mask=slot >= 0, other=0.0)
        tl.store(memory.scalars + slot, x, mask=slot >= 0)
