"""Folds of the training rows, and the numbers that the counts of ids give."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from satrap.batch import Ids
from satrap.data.encode.hashing import cross_ids, hash_numbers
from satrap.errors import ConfigError
from satrap.schema import MISSING_ID, Numeric, Schema, Vector

Doubles = npt.NDArray[np.float64]


class FoldColumns:
    """The columns with single values, whose hash decides the fold of a training row.

    Labels are not among them, because a fold that depends on the label would reveal it. Lists, vectors and
    times are left out.

    Args:
        schema: the features.
    """

    def __init__(self, schema: Schema) -> None:
        columns = set[tuple[str, bool]]()
        for name, feature in schema.features.items():
            if isinstance(feature, Vector) or feature.time or feature.sequence:
                continue
            if isinstance(feature, Numeric):
                columns.add((feature.column or name, feature.of_ids))
            elif not feature.multi or feature.cross:
                parts = feature.cross or (feature.column or name,)
                columns |= {(part, feature.boundaries is None) for part in parts}
        self._columns = sorted(columns)

    @property
    def digest(self) -> int:
        """A number from 1 that differs between different columns."""
        return zlib.crc32(json.dumps(self._columns).encode()) + 1

    def hashes(self, hashed: Callable[[str], Ids], floats: Callable[[str], Doubles]) -> Ids:
        """Return the hash of each row, uint64[n]; its remainder by the number of folds is the fold.

        `hashed` and `floats` return the ids and the numbers of a column, see `ColumnChunk`.
        """
        return cross_ids([hashed(name) if ids else hash_numbers(floats(name)) for name, ids in self._columns])


def fold_of(hashes: Ids, folds: int) -> npt.NDArray[np.int64]:
    """Return the fold of rows with these hashes, int64[n]."""
    return (hashes % np.uint64(folds)).astype(np.int64)


def numbers_of_ids(ids: Ids, feature: Numeric, hashes: Ids | None = None) -> Doubles:
    """Return the counts or mean labels of ids before the transform, float64[n], NaN if an id is missing.

    `hashes` are the hashes of training rows, see `FoldColumns`; None for other rows.
    """
    counts, mean = feature.counts, feature.mean_label
    assert counts is not None
    if mean is None:
        values = np.log1p(counts.counts(ids))
    else:
        folds = None if hashes is None else fold_of(hashes, counts.folds)
        values = counts.log_odds(ids, mean.smoothing, folds)
    values[ids == MISSING_ID] = np.nan
    return values


def check_folds(schema: Schema, by: FoldColumns) -> None:
    """Raise `ConfigError` if mean labels of training rows were measured with other columns in the folds."""
    for name, feature in schema.numeric.items():
        if (
            feature.mean_label is not None
            and feature.counts
            and feature.counts.folds_by not in (0, by.digest)
        ):
            raise ConfigError(
                f"feature {name!r}: its counts were measured with other features",
                why="a training row would be in another fold, and its mean label would contain its own label",
                fix="call satrap.data.measure on the schema without counts",
            )
