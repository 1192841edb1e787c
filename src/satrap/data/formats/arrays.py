"""In-memory rows: Arrow tables, data frames, dicts of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from satrap.data.formats.columns import as_array, library
from satrap.data.formats.frames import frame_table
from satrap.data.formats.indexed import IndexedPart, IndexedSource
from satrap.errors import DataError

SLICE_ROWS = 8192
"""Rows per part; shuffling permutes the parts."""
_BLOCK = 2048
"""Rows copied at a time from an array of rows: the second-level cache holds them with hundreds of columns."""


class MemorySource(IndexedSource):
    """Rows of a table in memory, read in slices without a copy; `label` names it in messages."""

    def __init__(self, table: pa.Table, label: str) -> None:
        self._table = table
        rows = [min(SLICE_ROWS, table.num_rows - i) for i in range(0, table.num_rows, SLICE_ROWS)]
        super().__init__(label, [label], [table.schema], [rows])

    def read(self, part: IndexedPart, row: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rest of the slice."""
        yield row, self._table.select(columns).slice(part.file_row + row, part.rows - row)


def to_table(values: Any) -> tuple[pa.Table, str] | None:
    """Return (table, name for messages) of an object in memory, or None for any other object.

    Tables are dicts of columns (arrays or lists), data frames of pandas and polars, Arrow tables, and all
    objects of `frame_table`. Raises `DataError` for columns of unequal length or mixed types.
    """
    if isinstance(values, pa.Table):
        return values, "pyarrow.Table"
    if isinstance(values, pa.RecordBatch):
        return pa.Table.from_batches([values]), "pyarrow.RecordBatch"
    if isinstance(values, Mapping):
        return table_of(list(values.items()), "dict"), "dict"
    if library(values) == "pandas" and hasattr(values, "columns"):
        columns = [(str(name), values.iloc[:, i]) for i, name in enumerate(values.columns)]
        return table_of(columns, "DataFrame"), "DataFrame"
    table = frame_table(values)
    return None if table is None else (table, type(values).__name__)


def _contiguous(columns: Sequence[Any]) -> list[Any]:
    """Return columns; columns of numbers become contiguous arrays.

    A column of a two-dimensional array, also inside a DataFrame, is a view whose values lie a row apart. Such
    columns are copied block by block: one after another, each would read the whole array from memory. Masked
    arrays stay as they are, because a copy of their values would lose the mask.
    """
    result, views = list(columns), list[tuple[int, npt.NDArray[Any]]]()
    for i, column in enumerate(columns):
        if isinstance(kind := getattr(column, "dtype", None), np.dtype) and kind.kind in "biuf":
            values = np.asarray(column)
            masked = isinstance(column, np.ma.MaskedArray)
            if not masked and values.ndim == 1 and values.strides[0] > values.itemsize:
                views.append((i, values))
                result[i] = np.empty(values.shape, kind)
    for start in range(0, max((len(values) for _, values in views), default=0), _BLOCK):
        block = slice(start, start + _BLOCK)
        for i, values in views:
            result[i][block] = values[block]
    return result


def table_of(columns: Sequence[tuple[str, Any]], label: str) -> pa.Table:
    """Return the table of some (name, values); `label` names it in the errors of `to_table`."""
    arrays: list[pa.Array] = []
    names = [name for name, _ in columns]
    for name, values in zip(names, _contiguous([values for _, values in columns]), strict=True):
        try:
            arrays.append(as_array(values))
        except DataError as error:
            raise DataError(
                error.what, where=f"{label}, column {name!r}", why=error.why, fix=error.fix
            ) from error
    lengths = sorted(zip(map(len, arrays), names, strict=True))
    if lengths and lengths[0][0] != lengths[-1][0]:
        (fewest, shortest), (most, longest) = lengths[0], lengths[-1]
        raise DataError(
            f"column {shortest!r} has {fewest} rows, but column {longest!r} has {most}",
            where=label,
            fix="give all columns the same length",
        )
    return pa.Table.from_arrays(arrays, names)
