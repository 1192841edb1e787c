"""Counts the uses of ids without a row in bounded memory: a count-min sketch.

Cormode and Muthukrishnan, J. Algorithms 2005; with the conservative update of Estan and Varghese, SIGCOMM
2002.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from satrap.store.kernels.hashing import mix
from satrap.store.kernels.jit import helper, kernel
from satrap.store.kernels.simd import prefetch_write

AHEAD = 16
_LINE_STEP = np.uint64(0x9E3779B97F4A7C15)
_ELEVEN = np.uint64(11)
_ONE = np.uint64(1)


@helper
def _cell(key: np.uint64, line: int, mask: np.uint64) -> np.uint64:
    return mix(key + np.uint64(line + 1) * _LINE_STEP) & mask


@helper
def add_use(cells: npt.NDArray[np.uint8], key: np.uint64, most: int) -> int:
    """Count one use of a key, up to `most`; return the number of uses so far, never too low.

    `cells` is uint8[lines, a power of two]. Only cells with the smallest count grow, so that an id adds less
    to the counts of others.
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
    ids: npt.NDArray[np.uint64],
    splits: npt.NDArray[np.int64],
    missing: npt.NDArray[np.int64],
    salts: npt.NDArray[np.uint64],
    cells: npt.NDArray[np.uint8],
    min_count: int,
    coin: np.uint64,
    probability: float,
    admitted: npt.NDArray[np.bool_],
) -> None:
    """For each missing id, count one use; note whether it has enough uses and wins its coin toss.

    Args:
        ids: `ids[splits[t]:splits[t + 1]]` belong to table t.
        splits: see `ids`.
        missing: positions, ascending.
        salts: uint64[tables].
        cells: the sketch; used if min_count > 1.
        min_count: uses needed, this one included.
        coin: of this request; the toss is a function of it, the table and the id.
        probability: of the coin, in (0, 1].
        admitted: bool[missing], written.
    """
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
def halve(cells: npt.NDArray[np.uint8]) -> None:
    """Halve every count, rounding down."""
    for line in range(cells.shape[0]):
        for place in range(cells.shape[1]):
            cells[line, place] = cells[line, place] >> 1
