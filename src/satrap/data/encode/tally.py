"""Counting of ids while streaming over the training rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from satrap.batch import Ids
from satrap.errors import DataError
from satrap.id_counts import MOST_IDS, IdCounts
from satrap.schema import MISSING_ID, MeanLabel

_HELD = 1 << 20
"""Least rows that are counted at once."""
_OFTEN, _MOSTLY = 3, 0.5
"""Rows of an id from which it is frequent, and the share of frequent ids in one fold that is an error."""


class IdTally:
    """Counts the rows of each id that arrive in pieces, by fold, and those with label 1, without missing ids.

    Args:
        name: name of the feature, for errors.
        mean: the mean whose label is counted; None: only rows are counted.
    """

    def __init__(self, name: str, mean: MeanLabel | None) -> None:
        self._name, self._mean = name, mean
        self.folds = 1 if mean is None else mean.folds
        self._held: list[tuple[Ids, Any, Any]] = []
        self._size = 0
        self._ids: Ids = np.empty(0, np.uint64)
        self._rows = self._ones = np.zeros((0, self.folds))

    def add(self, ids: Ids, folds: Any = None, labels: Any = None, known: Any = None) -> None:
        """Add rows: ids uint64[n], folds int64[n], labels 0 or 1 [n], and bool[n, 1] where they are known."""
        there = ids != MISSING_ID
        if known is not None:
            there &= known[:, 0]
        none = np.zeros(len(ids), np.int64)
        folds, labels = none if folds is None else folds, none if labels is None else labels
        self._held.append((ids[there], folds[there], labels[there]))
        self._size += len(self._held[-1][0])
        if self._size > max(_HELD, 2 * len(self._ids)):
            self._merge()

    def _merge(self) -> None:
        if not self._held:
            return
        ids, folds, labels = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        self._held, self._size = [], 0
        unique, index = np.unique(ids, return_inverse=True)
        cells, size = index * self.folds + folds, len(unique) * self.folds
        merged = np.union1d(self._ids, unique)
        if len(merged) > MOST_IDS:
            raise DataError(
                f"feature {self._name!r}: the column has more than {MOST_IDS:,} ids in the training rows",
                why="their counts are kept in memory and in each snapshot",
                fix="remove the feature, or count a column with fewer ids",
            )
        tables = [np.bincount(cells, None, size), np.bincount(cells, labels, size)]
        old, new = np.searchsorted(merged, self._ids), np.searchsorted(merged, unique)
        for name, table in zip(("_rows", "_ones"), tables, strict=True):
            total = np.zeros((len(merged), self.folds))
            total[old] = getattr(self, name)
            total[new] += table.reshape(-1, self.folds)
            setattr(self, name, total)
        self._ids = merged

    def counts(self) -> IdCounts:
        """Return the counts; `DataError` if nothing can be learnt from them."""
        self._merge()
        where = f"feature {self._name!r}"
        if not len(self._ids):
            raise DataError(f"{where} has no ids to count", fix="check the column, or remove the feature")
        rows, ones = (np.minimum(table, 2**32 - 1).astype(np.uint32) for table in (self._rows, self._ones))
        if self._mean is None:
            return IdCounts(self._ids, rows)
        if ones.sum() in (0, rows.sum()):
            raise DataError(
                f"{where}: the label has the same value in all training rows that have an id",
                why="its mean is the same for all ids",
                fix="check the label and the column, or remove the feature",
            )
        often = rows[rows.sum(axis=1) >= _OFTEN]
        if len(often) and ((often > 0).sum(axis=1) == 1).mean() > _MOSTLY:
            raise DataError(
                f"{where}: all training rows of an id are in the same fold",
                why="the fold is a hash of a row's single values, and these follow from the id",
                fix="add a column that differs between rows of an id, or replace mean_label by count",
            )
        return IdCounts(self._ids, rows, ones)
