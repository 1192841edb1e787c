"""Rows with keys in bounded memory: all up to a limit, beyond it the rows of keys chosen by hash."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Ids = npt.NDArray[np.uint64]


class KeyReservoir:
    """Columns of rows that share keys, such as the samples of a group.

    With more than `limit` rows, only keys whose hash is in the first half of the range keep their rows, then
    those in the first quarter, and so on. So a key has all of its rows or none, and the kept rows do not
    depend on the order of `add` and `merge`, nor on the number of workers.

    Args:
        empty: name -> array of no rows, which gives the column's type and width.
        keys: name of the column of keys.
        limit: most rows to keep.

    Attributes:
        level: the keys of a share of 2^-level are kept.
    """

    def __init__(self, empty: Mapping[str, Array], keys: str, limit: int) -> None:
        self._empty, self._keys, self.limit = dict(empty), keys, limit
        self.clear()

    def __len__(self) -> int:
        return self._kept

    def clear(self) -> None:
        """Remove all rows."""
        self.level = self._kept = 0
        self._chunks = [self._empty]

    @property
    def share(self) -> float:
        """Share of the keys that are kept, 1 while all are."""
        return 0.5**self.level

    def add(self, rows: Mapping[str, Array]) -> None:
        """Add rows, a column for each name; the arrays must not change afterwards."""
        self._chunks.append(self._of_level(rows))
        self._kept += _length(self._chunks[-1])
        while self._kept > self.limit and self.level < 64:
            self._narrow(self.level + 1)

    def merge(self, other: KeyReservoir) -> None:
        """Add all rows of `other`, which does not change."""
        if other.level > self.level:
            self._narrow(other.level)
        self.add(other.rows())

    def rows(self) -> dict[str, Array]:
        """Return the kept rows, in any order."""
        if len(self._chunks) > 1:
            self._chunks = [
                {
                    name: np.concatenate([chunk[name] for chunk in self._chunks]).astype(empty.dtype)
                    for name, empty in self._empty.items()
                }
            ]
        return self._chunks[0]

    def state(self) -> dict[str, Array]:
        """Return the rows, and `level`, as arrays."""
        return {"level": np.array(self.level), **self.rows()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Replace the rows by the result of `state`."""
        self.level = int(state["level"])
        self._chunks = [{name: np.array(state[name], empty.dtype) for name, empty in self._empty.items()}]
        self._kept = _length(self._chunks[0])

    def _narrow(self, level: int) -> None:
        self.level = level
        self._chunks = [self._of_level(self.rows())]
        self._kept = _length(self._chunks[0])

    def _of_level(self, rows: Mapping[str, Array]) -> dict[str, Array]:
        """Return the rows whose key's hash is below 2^(64 - level)."""
        if self.level == 0:
            return dict(rows)
        keep = mix(rows[self._keys].astype(np.uint64)) >> np.uint64(64 - self.level) == 0
        return {name: column[keep] for name, column in rows.items()}


def _length(rows: Mapping[str, Array]) -> int:
    return len(next(iter(rows.values())))


def mix(values: Ids) -> Ids:
    """Return well-mixed 64-bit hashes: SplitMix64, Steele et al., OOPSLA 2014."""
    # Without the increment, id 0 (a missing value) would hash to 0 and never be dropped.
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
