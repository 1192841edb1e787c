"""Rows of one table as columns: the form in which rows leave one store and enter another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from satrap.errors import StoreError
from satrap.runtime.arguments import checked
from satrap.store.arrays import Floats, Found, Ids, Offsets

FLOAT16_MAX = 65504.0
FEED_FORMATS = ("float32", "float16")
"""Number formats in which rows can be written without optimizer state."""


@checked()
@dataclass(frozen=True, slots=True)
class RowChunk:
    """Rows of one table as columns.

    Args:
        table: name of the table.
        ids: uint64[n], unique; exports are ordered by (bucket, id).
        weights: float32[n, dim]; 16-bit weights are widened exactly. A table with another number format
            rounds weights that it cannot represent when it loads them.
        state: float32[n, k] optimizer state: SGD k = 0, with momentum dim; Adagrad dim (accumulators);
            RowWiseAdagrad 1 (accumulator); Adam and AdamW 2 * dim + 1 (first moments, second moments, step);
            FTRL 2 * dim (z, n).
    """

    table: str
    ids: Ids
    weights: Floats
    state: Floats

    def pick(self, rows: Offsets | Found | slice) -> RowChunk:
        """Return some of the rows: a slice, their positions, or a mask."""
        return RowChunk(self.table, self.ids[rows], self.weights[rows], self.state[rows])

    def only_weights(self, dtype: str) -> RowChunk:
        """Return the rows without optimizer state.

        `dtype`: "float32", or "float16", to which weights are rounded and clamped. Any other value raises
        `StoreError`.
        """
        if dtype not in FEED_FORMATS:
            raise StoreError(
                f"weights cannot be written as {dtype!r}", fix=f"use {' or '.join(FEED_FORMATS)}"
            )
        weights: npt.NDArray[Any] = self.weights
        if dtype == "float16":
            weights = np.clip(weights, -FLOAT16_MAX, FLOAT16_MAX).astype(np.float16)
        return RowChunk(self.table, self.ids, weights, self.state[:, :0])
