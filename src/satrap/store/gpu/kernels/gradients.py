"""Sums the gradients of each distinct id in a fixed order, and takes one optimizer step per row.

Sorted positions are divided into windows of 64. A run of at most 64 gradients is added one after another. A
longer run is cut where windows end: first each piece is added one after another (`sum_pieces`), then the
pieces (`step_long`). The order depends on the sorted positions alone, not on tiles, warps or the GPU; see
docs/decisions/0050-sums-in-a-fixed-order-on-the-device.md.
"""

from __future__ import annotations

import triton
import triton.language as tl

from satrap.store.gpu.kernels.optimizers import step_rows
from satrap.store.gpu.kernels.rows import positions

WINDOW = tl.constexpr(64)
LANES = tl.constexpr(32)
"""Pieces that are added side by side: piece i of a run belongs to lane i % LANES."""


@triton.jit
def gradients_at(
    gradients: tl.tuple, p: tl.tensor, on: tl.tensor, SHAPE: tl.constexpr, ROUTE: tl.constexpr
) -> tl.tensor:
    """Return the gradients, float32 [R, columns], of positions p [R, 1]; zeros where not `on`."""
    c = tl.arange(0, SHAPE.columns)[None, :]
    inside = on & (c < SHAPE.dim)
    if ROUTE.source:
        row = tl.load(gradients.source + p, mask=on, other=0)
    else:
        row = p % gradients.batch * gradients.features + p // gradients.batch
    if ROUTE.chosen:
        maximum = row < 0
        row = tl.where(maximum, -1 - row, row)
        place = row.to(tl.int64) * SHAPE.dim + c
        winner = tl.load(gradients.chosen + place, mask=inside & maximum, other=0)
        inside = inside & ((winner == p) | (maximum == 0))
    g = tl.load(gradients.rows + row.to(tl.int64) * SHAPE.dim + c, mask=inside, other=0.0).to(tl.float32)
    if ROUTE.scale:
        g = g * tl.load(gradients.scale + p, mask=on, other=0.0)
    return g


@triton.jit
def sum_in_order(
    request: tl.tuple,
    gradients: tl.tuple,
    first: tl.tensor,
    length: tl.tensor,
    SHAPE: tl.constexpr,
    ROUTE: tl.constexpr,
    R: tl.constexpr,
    UNROLL: tl.constexpr,
) -> tl.tensor:
    """Return the sums of `length` gradients from sorted position `first`, both [R, 1], one after another."""
    C: tl.constexpr = SHAPE.columns
    total = tl.zeros([R, C], tl.float32)
    for j in range(0, tl.max(length), UNROLL):
        for u in tl.static_range(UNROLL):
            on = j + u < length
            p = tl.load(request.order + first + j + u, mask=on, other=0)
            total += gradients_at(gradients, p, on, SHAPE, ROUTE)
    return total


@triton.jit
def run_at(request: tl.tuple, i: tl.tensor, live: tl.tensor) -> tl.tensor:
    """Return the run of sorted position i."""
    p = tl.load(request.order + i, mask=live, other=0)
    return tl.load(request.inverse + p, mask=live, other=0)


@triton.jit
def step_short(
    memory: tl.tuple,
    request: tl.tuple,
    gradients: tl.tuple,
    numbers: tl.tuple,
    SHAPE: tl.constexpr,
    RULE: tl.constexpr,
    ROUTE: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Step the rows of runs of at most WINDOW gradients: one row per run, R runs per program.

    Runs are distinct ids, so their slots differ, and `step_long` takes the other runs: programs of both write
    different rows. For warps see `step_rows`.
    """
    start = tl.program_id(0) * R
    many = tl.load(request.runs)
    if start < many:
        r = start + tl.arange(0, R)[:, None]
        first = tl.load(request.starts + r, mask=r < many, other=0)
        length = tl.load(request.starts + r + 1, mask=r < many, other=0) - first
        live = (r < many) & (length <= WINDOW)
        g = sum_in_order(request, gradients, first, tl.where(live, length, 0), SHAPE, ROUTE, R, 2)
        slot = tl.load(request.slots + r, mask=live, other=-1)
        id = tl.load(request.ids + r, mask=live, other=0)
        step_rows(memory, numbers, slot, id, g, SHAPE, RULE)


@triton.jit
def sum_pieces(
    request: tl.tuple,
    gradients: tl.tuple,
    pieces: tl.tensor,
    SHAPE: tl.constexpr,
    ROUTE: tl.constexpr,
    R: tl.constexpr,
) -> None:
    """Write the sums of the pieces of long runs, float32[2 * windows, dim].

    Window k has at most two: of the run that it begins with in row 2 k, of another run that it ends with in
    row 2 k + 1. So programs write different rows, and no kernel of this launch reads them.
    """
    n = positions(request)
    start = tl.program_id(0) * R
    if start // 2 * WINDOW < n:
        e = start + tl.arange(0, R)[:, None]
        low = e // 2 * WINDOW
        high = tl.minimum(low + WINDOW, n)
        live = low < n
        a = run_at(request, low, live)
        b = run_at(request, high - 1, live)
        run = tl.where(e % 2 == 0, a, b)
        begin = tl.load(request.starts + run, mask=live, other=0)
        end = tl.load(request.starts + run + 1, mask=live, other=0)
        used = live & (end - begin > WINDOW) & ((e % 2 == 0) | (a != b))
        first = tl.maximum(begin, low)
        length = tl.where(used, tl.minimum(end, high) - first, 0)
        total = sum_in_order(request, gradients, first, length, SHAPE, ROUTE, R, 4)
        c = tl.arange(0, SHAPE.columns)[None, :]
        tl.store(pieces + e.to(tl.int64) * SHAPE.dim + c, total, mask=used & (c < SHAPE.dim))


@triton.jit
def step_long(
    memory: tl.tuple,
    request: tl.tuple,
    pieces: tl.tensor,
    numbers: tl.tuple,
    SHAPE: tl.constexpr,
    RULE: tl.constexpr,
) -> None:
    """Step the row of the long run that begins in window k, if there is one: there is at most one.

    Programs write different rows, as each long run begins in one window. For warps see `step_rows`.
    """
    k = tl.program_id(0)
    n = positions(request)
    if k * WINDOW < n:
        low = k * WINDOW
        i = tl.minimum(low + WINDOW, n) - 1
        run = run_at(request, i, i >= 0)
        first = tl.load(request.starts + run)
        last = tl.load(request.starts + run + 1) - 1
        if (first >= low) & (last - first >= WINDOW):
            lane = tl.arange(0, LANES)[:, None]
            C: tl.constexpr = SHAPE.columns
            c = tl.arange(0, C)[None, :]
            total = tl.zeros([LANES, C], tl.float32)
            for j in range(k, last // WINDOW + 1, LANES):
                window = j + lane
                piece = 2 * window + ((window == k) & (first > low)).to(tl.int32)
                place = piece.to(tl.int64) * SHAPE.dim + c
                total += tl.load(pieces + place, mask=(window <= last // WINDOW) & (c < SHAPE.dim), other=0.0)
            for _ in tl.static_range(5):  # LANES = 2^5: halves are added until one row is left
                total = tl.sum(tl.reshape(total, [2, total.shape[0] // 2, C]), axis=0)
            slot = tl.load(request.slots + run) + tl.zeros([1, 1], tl.int32)
            id = tl.load(request.ids + run) + tl.zeros([1, 1], tl.int64)
            step_rows(memory, numbers, slot, id, total, SHAPE, RULE)
