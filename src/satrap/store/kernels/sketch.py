"""Counts the uses of ids without a row in bounded memory: a count-min sketch.

Cormode and Muthukrishnan, J. Algorithms 2005; with the conservative update of Estan and Varghese, SIGCOMM
2002.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from satrap.store.arrays import Bytes, Found, Ids, Offsets
from satrap.store.kernels.hashing import mix
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.simd import prefetch_write

AHEAD = 16
_LINE_STEP = np.uint64(0x9E3779B97F4A7C15)
_ELEVEN = np.uint64(11)
_ONE = np.uint64(1)


class Sketch(NamedTuple):
    """The counts of uses, and the conditions for an id to be admitted.

    Attributes:
        salts: uint64[tables].
        cells: uint8[lines, a power of two], the counts; used if min_count > 1.
        min_count: uses needed.
        probability: probability of the coin toss, in (0, 1].
    """

    salts: Ids
    cells: Bytes
    min_count: int
    probability: float


@helper
def _cell(key: np.uint64, line: int, mask: np.uint64) -> np.uint64:
    return mix(key + np.uint64(line + 1) * _LINE_STEP) & mask


@helper
def add_use(cells: Bytes, key: np.uint64, most: int) -> int:
    """Count one use of a key, up to `most`; return the number of uses so far, never too low.

    Only cells with the smallest count grow, so that an id adds less to the counts of others.
    """
    mask = np.uint64(cells.shape[1] - 1)
    least = most
    for line in range(cells.shape[0]):
        least = min(least, int(cells[line, _cell(key, line, mask)]))
    if least < most:
        least += 1
        for line in range(cells.shape[0]):
            place = _cell(key, line, mask)
            if cells[line, place] < least:
                cells[line, place] = least
    return least


@kernel
def admit(
    sketch: Sketch, ids: Ids, splits: Offsets, missing: Offsets, coin: np.uint64, admitted: Found
) -> None:
    """Count one use of each missing id; write whether it has enough uses and wins its coin toss.

    Args:
        sketch: the counts so far.
        ids: `ids[splits[t]:splits[t + 1]]` belong to table t.
        splits: see `ids`.
        missing: positions, ascending.
        coin: seed of this request; the coin toss is a function of it, the table and the id.
        admitted: bool[missing], written.
    """
    salts, cells, min_count, probability = sketch
    table, lead = 0, 0
    n = missing.shape[0]
    mask = np.uint64(cells.shape[1] - 1)
    base = np.uint64(cells.ctypes.data)
    width = np.uint64(cells.shape[1])
    for j in range(n):
        if min_count > 1 and j + AHEAD < n:
            i = missing[j + AHEAD]
            while i >= splits[lead + 1]:
                lead += 1
            key = mix(ids[i] ^ salts[lead])
            for line in range(cells.shape[0]):
                prefetch_write(base + np.uint64(line) * width + _cell(key, line, mask))
        i = missing[j]
        while i >= splits[table + 1]:
            table += 1
        key = mix(ids[i] ^ salts[table])
        enough = min_count == 1 or add_use(cells, key, min_count) >= min_count
        toss = np.float64(mix(key ^ coin) >> _ELEVEN) * np.float64(2.0**-53)
        admitted[j] = enough and toss < probability


@kernel
def halve(cells: Bytes) -> None:
    """Halve every count, rounding down."""
    for line in range(cells.shape[0]):
        for place in range(cells.shape[1]):
            cells[line, place] = cells[line, place] >> 1
