"""Rows of one table as columns: the form in which rows leave one store and enter another."""

from __future__ import annotations

from dataclasses import dataclass

from satrap.arguments import checked
from satrap.store.types import Floats, Found, Ids, Offsets


@checked()
@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows of one table as columns.

    Args:
        table: name of the table.
        ids: uint64[n], distinct; exports are ordered by (bucket, id).
        weights: float32[n, dim]; 16-bit weights are widened exactly. A table of another format rounds the
            values it cannot hold when it loads them.
        state: float32[n, k] optimizer state: SGD k = 0, with momentum dim; Adagrad dim (accumulators);
            RowWiseAdagrad 1 (accumulator); Adam and AdamW 2 * dim + 1 (first moments, second moments, step);
            FTRL 2 * dim (z, n).
    """

    table: str
    ids: Ids
    weights: Floats
    state: Floats

    def pick(self, rows: Offsets | Found | slice) -> Chunk:
        """Return some of the rows: a slice, their positions, or a mask."""
        return Chunk(self.table, self.ids[rows], self.weights[rows], self.state[rows])
