"""Tables of other libraries: polars, DuckDB, Hugging Face datasets, and all with Arrow's PyCapsule interface.

The interface is the method `__arrow_c_stream__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from satrap.data.formats.columns import library
from satrap.data.source import Cursor, Origin, Scan, ScanPiece, check_columns
from satrap.errors import DataError

STREAM_ROWS = 32768
"""Rows of a stream that are converted at once."""


def frame_table(values: Any) -> pa.Table | None:
    """Return the table of an object that has all its rows; None for any other object, such as a stream.

    A lazy frame of polars is computed.

    Raises:
        DataError: the object has no columns, or Arrow cannot hold them.
    """
    with _converting(values):
        if library(values) == "polars" and hasattr(values, "collect"):
            values = values.collect()
        if library(values) == "datasets" and hasattr(values, "__len__"):
            return values.with_format("arrow")[:]
        # A DuckDB relation computes its length by a query, and its rows need not fit into memory.
        if (
            hasattr(values, "__arrow_c_stream__")
            and hasattr(values, "__len__")
            and library(values) != "duckdb"
        ):
            return pa.table(values)
        if hasattr(values, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            return from_dataframe(values)
    return None


def frame_stream(values: Any) -> FrameStream | None:
    """Return the source of an object that yields its rows; None for any other object.

    Raises:
        DataError: see `frame_table`.
    """
    open_stream: Callable[[], Any]
    if library(values) == "datasets" and hasattr(values, "with_format"):

        def open_stream() -> Any:
            return values.with_format("arrow").iter(STREAM_ROWS)

    elif library(values) == "pyarrow" and hasattr(values, "scanner"):

        def open_stream() -> Any:
            return values.scanner().to_reader()

    elif hasattr(values, "__arrow_c_stream__"):

        def open_stream() -> Any:
            return pa.RecordBatchReader.from_stream(values)

    else:
        return None
    with _converting(values):
        return FrameStream(type(values).__name__, open_stream, once=hasattr(values, "read_next_batch"))


@contextmanager
def _converting(values: Any) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"a {type(values).__name__} of {library(values)} is not a table: {str(error).splitlines()[0]}",
            fix='give a table, or columns by name: {"user": users, "clicked": clicks}',
        ) from error


class FrameStream:
    """Rows of a stream, read in their order; each worker takes every n-th row.

    Memory holds the rows being read only. A cursor is [first row, kept rows before it], and skips rows by
    reading them.

    Args:
        label: name for messages.
        open_stream: returns an iterator over record batches or tables. It is called for each scan; the first
            result serves the first scan.
        once: each row is read only once, so after part of a scan a second one would miss rows. Default False:
            only the number of rows of complete scans shows that.

    Raises:
        DataError: the second scan of a stream that yields its rows once.
    """

    files = 1

    def __init__(self, label: str, open_stream: Callable[[], Any], *, once: bool = False) -> None:
        self.label, self._open, self._once = label, open_stream, once
        stream = open_stream()
        first = next(iter(stream), None) if not hasattr(stream, "schema") else None
        self._schema: pa.Schema = stream.schema if first is None else first.schema
        self.names: Sequence[str] = list(self._schema.names)
        self._unread: Any = stream if first is None else open_stream()
        self._rows: int | None = None  # of a complete scan

    def columns(self) -> Iterator[tuple[str, pa.Schema]]:
        """Yield the label and the columns."""
        yield self.label, self._schema

    def scan(self, scan: Scan, cursor: Cursor | None) -> Iterator[ScanPiece]:
        """Yield pieces, see `Source.scan`; `Scan.order` has no effect."""
        first, before = cursor or (0, 0)
        names, raw_names = scan.names, scan.raw_of(self.names)
        check_columns([*names, *raw_names], self.names, self.label)
        for start, table in self._pieces():
            if start < first:
                continue
            rows = scan.kept(start, table.num_rows)
            mine = rows[(scan.worker - before) % scan.workers :: scan.workers]
            if len(mine):
                part = table.take(mine) if len(mine) < table.num_rows else table
                raw = None if scan.raw is None else part.select(raw_names)
                yield ScanPiece(part.select(names), Origin(self.label, start + mine), [start, before], raw)
            before += len(rows)

    def _pieces(self) -> Iterator[tuple[int, pa.Table]]:
        """Yield (first row, rows) of a scan; pieces have the same bounds each time."""
        stream, self._unread = self._unread, None
        if stream is None and self._once and self._rows != 0:
            raise self._read_once()
        start = 0
        try:
            for part in self._open() if stream is None else stream:
                table = part if isinstance(part, pa.Table) else pa.Table.from_batches([part])
                for offset in range(0, table.num_rows, STREAM_ROWS):
                    yield start + offset, table.slice(offset, STREAM_ROWS)
                start += table.num_rows
        except (OSError, ValueError, TypeError, pa.ArrowException) as error:
            raise self._read_once() if stream is None else self._broken(error) from error
        if self._rows is None:
            self._rows = start
        if start != self._rows:
            raise self._read_once()

    def _read_once(self) -> DataError:
        return DataError(
            "the rows can be read only once, and they were read before",
            where=self.label,
            why="each epoch, and each measurement of the data, reads all rows",
            fix="collect the rows in memory, for example with read_all(), or write them to a Parquet file",
        )

    def _broken(self, error: Exception) -> DataError:
        return DataError(
            f"the rows cannot be read: {str(error).splitlines()[0]}",
            where=self.label,
            fix="check that the object that was given yields all its rows",
        )

    def num_rows(self, scan: Scan) -> int | None:
        """Return None: the number of rows is unknown before reading."""
        return None

    def progress(self, scan: Scan, cursor: Cursor) -> float | None:
        """Return None: the number of rows is unknown before reading."""
        return None
