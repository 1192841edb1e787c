"""In-memory rows: Arrow tables, data frames, dicts of arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from satrap.data.formats.columns import as_array, library
from satrap.data.formats.frames import frame_table
from satrap.data.formats.indexed import IndexedPart, IndexedSource
from satrap.errors import DataError

SLICE_ROWS = 8192
"""Rows per part; shuffling permutes the parts."""


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


def table_of(columns: Sequence[tuple[str, Any]], label: str) -> pa.Table:
    """Return the table of some (name, values); `label` names it in the errors of `to_table`."""
    arrays: list[pa.Array] = []
    for name, values in columns:
        try:
            arrays.append(as_array(values))
        except DataError as error:
            raise DataError(
                error.what, where=f"{label}, column {name!r}", why=error.why, fix=error.fix
            ) from error
    names = [name for name, _ in columns]
    lengths = sorted(zip(map(len, arrays), names, strict=True))
    if lengths and lengths[0][0] != lengths[-1][0]:
        (fewest, shortest), (most, longest) = lengths[0], lengths[-1]
        raise DataError(
            f"column {shortest!r} has {fewest} rows, but column {longest!r} has {most}",
            where=label,
            fix="give all columns the same length",
        )
    return pa.Table.from_arrays(arrays, names)
