"""Parquet and Arrow (IPC, Feather) files, read by row group."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from satrap.data.formats.files import File
from satrap.data.formats.indexed import IndexedFiles, IndexedPart
from satrap.data.source import check_columns
from satrap.errors import DataError

READ_ROWS = 32768
"""Rows decoded at once."""
_BUFFER_BYTES = 1 << 20


@contextmanager
def _decoding(file: File, kind: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # a column name may be invalid text
        raise DataError(
            f"the file is not a readable {kind} file: {str(error).splitlines()[0]}",
            where=file.name,
            fix="write the file again, or set the correct format",
        ) from error


def _add(schemas: list[pa.Schema], schema: pa.Schema) -> None:
    """Append a schema; reuse the last one if they are equal, because there may be many files."""
    schemas.append(schemas[-1] if schemas and schemas[-1].equals(schema) else schema)


class ParquetSource(IndexedFiles):
    """Parquet files; a part is a row group, decoded `READ_ROWS` at a time with bounded buffers.

    Raises `DataError` if a file is not a Parquet file.
    """

    def __init__(self, files: Sequence[File]) -> None:
        counts: list[list[int]] = []
        schemas: list[pa.Schema] = []
        for file in files:
            with _opened(file) as reader:
                _add(schemas, reader.schema_arrow)
                groups = map(reader.metadata.row_group, range(reader.metadata.num_row_groups))
                counts.append([group.num_rows for group in groups])
        super().__init__(files, schemas, counts)

    def single(self, file: int) -> ParquetSource:
        """Return the source of a single file."""
        return ParquetSource([self.inputs[file]])

    def read(self, part: IndexedPart, row: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the row group from `row` on; rows before it are decoded and dropped."""
        file = self.inputs[part.file]
        with _opened(file) as reader:
            check_columns(columns, reader.schema_arrow.names, file.name)
            batches = reader.iter_batches(
                READ_ROWS, row_groups=[part.index], columns=columns, use_threads=False
            )
            start = 0
            while True:
                with _decoding(file, "Parquet"):
                    batch = next(batches, None)
                if batch is None:
                    return
                skip = max(0, row - start)
                if skip < batch.num_rows:
                    yield start + skip, pa.Table.from_batches([batch.slice(skip)])
                start += batch.num_rows


@contextmanager
def _opened(file: File) -> Iterator[Any]:
    handle = file.local or file.open()
    with _decoding(file, "Parquet"):
        reader = pq.ParquetFile(handle, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    try:
        yield reader
    finally:
        reader.close(force=True)


class ArrowSource(IndexedFiles):
    """Arrow IPC files (Feather version 2); a part is a record batch.

    Raises `DataError` if a file is not an Arrow file.
    """

    def __init__(self, files: Sequence[File]) -> None:
        counts: list[list[int]] = []
        schemas: list[pa.Schema] = []
        for file in files:
            with _opened_arrow(file) as reader:
                _add(schemas, reader.schema)
            # The length of a batch is known only after reading it; one column is enough.
            with _opened_arrow(file, lambda _: [0]) as reader, _decoding(file, "Arrow"):
                counts.append([reader.get_batch(i).num_rows for i in range(reader.num_record_batches)])
        super().__init__(files, schemas, counts)

    def single(self, file: int) -> ArrowSource:
        """Return the source of a single file."""
        return ArrowSource([self.inputs[file]])

    def read(self, part: IndexedPart, row: int, columns: Sequence[str]) -> Iterator[tuple[int, pa.Table]]:
        """Yield the record batch from `row` on, `READ_ROWS` at a time."""
        file = self.inputs[part.file]

        def places(names: Sequence[str]) -> list[int]:
            check_columns(columns, names, file.name)
            return [names.index(name) for name in columns]

        with _opened_arrow(file, places) as reader:
            with _decoding(file, "Arrow"):
                table = pa.Table.from_batches([reader.get_batch(part.index)])
            for start in range(row, part.rows, READ_ROWS):
                yield start, table.slice(start, READ_ROWS)


@contextmanager
def _opened_arrow(file: File, chosen: Callable[[Sequence[str]], list[int]] | None = None) -> Iterator[Any]:
    """Open a file; `chosen` returns the indices of the columns to read, given their names."""
    with _decoding(file, "Arrow"):
        handle = pa.memory_map(file.local) if file.local else file.open()
    with handle:
        with _decoding(file, "Arrow"):
            reader = pa.ipc.open_file(handle)
            if chosen is not None:
                options = pa.ipc.IpcReadOptions(included_fields=chosen(reader.schema.names))
                reader = pa.ipc.open_file(handle, options=options)
        yield reader
