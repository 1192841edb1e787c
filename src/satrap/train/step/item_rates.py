"""How often items are in a batch, estimated while a stream is read, which cannot be counted in advance."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.batch import Ids
from satrap.metrics.reservoir import mix

Arrays = dict[str, npt.NDArray[Any]]

HASHES, CELLS = 2, 1 << 18
"""Number of hash functions, and cells of each: 24 bytes a cell."""
RATE = 0.01
"""Weight of the newest value in a running average."""


class ItemRates:
    """Estimates the expected number of times that an item is in a batch.

    Each cell of a hashed table has the running average of the number of batches from a batch with the item to
    the next such batch: Yi et al., "Sampling-Bias-Corrected Neural Modeling for Large Corpus Item
    Recommendations", RecSys 2019, algorithm 2. An item may be in a batch more than once, so the cell also has
    the running average of the number of times that it is in such a batch. The estimate is the quotient of the
    two. Items that share a cell make it larger, so the smallest of several hash functions counts. An average
    begins with its first value.

    Args:
        arrays: its state, which each `count` changes in place; an empty dict becomes the state of no batches.
    """

    def __init__(self, arrays: Arrays) -> None:
        if not arrays:
            shape = HASHES, CELLS
            arrays |= {"batches": np.zeros(1, np.int64), "last": np.zeros(shape, np.int64)}
            arrays |= {"gap": np.zeros(shape), "number": np.zeros(shape)}
        self._batches, self._last = arrays["batches"], arrays["last"]
        self._gap, self._number = arrays["gap"], arrays["number"]

    def count(self, ids: Ids) -> None:
        """Count the items of the next batch, uint64[n], an item as often as it occurs."""
        self._batches += 1
        for table, cells in enumerate(_cells(ids)):
            places, often = np.unique(cells, return_counts=True)
            since = self._batches - self._last[table, places]
            rate = np.where(self._last[table, places] == 0, 1.0, RATE)
            for average, value in ((self._gap, since), (self._number, often)):
                average[table, places] += rate * (value - average[table, places])
            self._last[table, places] = self._batches

    def expected(self, ids: Ids) -> npt.NDArray[np.float64]:
        """Return the expected number of times in a batch, float64[n]; 0 for items that were not counted."""
        estimates = [
            self._number[table, cells] / np.maximum(self._gap[table, cells], 1.0)
            for table, cells in enumerate(_cells(ids))
        ]
        smallest: npt.NDArray[np.float64] = np.min(estimates, axis=0)
        return smallest


def _cells(ids: Ids) -> list[Ids]:
    """Return the cell of each id by each hash function."""
    seeds = np.arange(1, HASHES + 1, dtype=np.uint64) << np.uint64(32)
    return [mix(ids ^ seed) % np.uint64(CELLS) for seed in seeds]
