"""The file of predictions: the input's columns, matched by name, and the columns of predictions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from satrap.data.formats.columns import as_array, is_text
from satrap.errors import DataError, did_you_mean

Predictions = npt.NDArray[np.floating[Any]]
Types = Sequence[tuple[pa.DataType, str]]
"""Each type once, with a file that has it."""

ENDINGS = (".parquet", ".csv", ".csv.gz")

_LEAVE = "leave the column out with --keep, which selects columns"
_OTHERS = f"predict the files one at a time, or {_LEAVE}"


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns to write: input columns, with their types and a file for each type, and predictions."""

    inputs: Mapping[str, Types]
    predictions: Mapping[str, pa.DataType]


def output_columns(
    schemas: Iterable[tuple[str, pa.Schema]],
    predictions: Mapping[str, pa.DataType],
    wanted: Sequence[str] | None,
) -> Columns:
    """Return the columns to write, in order of first occurrence in the files.

    Args:
        schemas: name of each input file and its columns.
        predictions: columns of the predictions, and their types.
        wanted: the columns of the input to write, in order; None: all.

    Raises:
        DataError: a wanted column is in no file, or has the name of one of predictions.
    """
    columns: dict[str, list[tuple[pa.DataType, str]]] = {}
    for file, schema in schemas:
        for field in schema:
            types = columns.setdefault(field.name, [])
            if all(kind != field.type for kind, _ in types):
                types.append((field.type, file))
    for name in wanted or ():
        if name not in columns:
            raise DataError(
                f"the input has no column {name!r}",
                fix=f"{did_you_mean(name, columns)}columns: {', '.join(list(columns)[:12])}",
            )
    chosen = columns if wanted is None else {name: columns[name] for name in wanted}
    for name in predictions:
        if name in chosen:
            raise DataError(
                f"the input already has a column {name!r}",
                where=chosen[name][0][1],
                fix=f"rename the column in the input, or {_LEAVE}",
            )
    return Columns(chosen, predictions)


class TableWriter(ABC):
    """Writes tables, which may lack columns, with columns in a fixed order; a context manager."""

    def __init__(self, columns: Columns) -> None:
        self.rows, self._columns, self._stack = 0, columns, ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def write(self, table: pa.Table, values: Predictions) -> None:
        """Write rows: columns of their input, and their predictions, float32 or float64 [n, columns]."""
        arrays = [
            self._input(name, table.column(name) if name in table.column_names else None, table.num_rows)
            for name in self._columns.inputs
        ]
        arrays += self._values(values)
        self._write(pa.Table.from_arrays(arrays, [*self._columns.inputs, *self._columns.predictions]))
        self.rows += table.num_rows

    def _values(self, values: Predictions) -> list[pa.Array]:
        """Return the columns of predictions."""
        kinds = self._columns.predictions.values()
        return [pa.array(values[:, index], kind) for index, kind in enumerate(kinds)]

    @abstractmethod
    def _input(self, name: str, column: pa.ChunkedArray | None, rows: int) -> Any:
        """Return a column for writing; `column` is None if the input lacks it."""

    @abstractmethod
    def _write(self, table: pa.Table) -> None: ...


class ParquetWriter(TableWriter):
    """Writes Parquet: each column has one type that can hold the values of all files.

    Raises `DataError` for a column without such a type, or with a type that Parquet lacks.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        super().__init__(columns)
        self._types = {name: _common(name, types) for name, types in columns.inputs.items()}
        for name, kind in self._types.items():
            with _naming(name, kind, "Parquet does not support this type", _OTHERS):
                pyarrow.parquet.ParquetWriter(pa.BufferOutputStream(), pa.schema([(name, kind)])).close()
        schema = pa.schema([*self._types.items(), *columns.predictions.items()])
        self._file = self._stack.enter_context(pyarrow.parquet.ParquetWriter(path, schema))

    def _input(self, name: str, column: pa.ChunkedArray | None, rows: int) -> Any:
        kind = self._types[name]
        if column is None:
            return pa.nulls(rows, kind)
        if column.type == kind:
            return column
        with _naming(
            name,
            column.type,
            f"other files have the type {kind}, which cannot hold all values of this column",
            _OTHERS,
        ):
            return _plain(column).cast(kind)

    def _write(self, table: pa.Table) -> None:
        self._file.write_table(table)


class CsvWriter(TableWriter):
    """Writes CSV: values as in the input file, and an empty field for a missing value.

    Raises `DataError` for a column of values without a text form, such as lists and non-UTF-8 bytes.
    """

    def __init__(self, path: Path, columns: Columns) -> None:
        super().__init__(columns)
        for name, types in columns.inputs.items():
            for kind, _ in types:  # before the first row is scored
                self._input(name, pa.chunked_array([], kind), 0)
        compression = "gzip" if path.name.endswith(".gz.partial") else None
        self._sink = self._stack.enter_context(pa.output_stream(str(path), compression=compression))

    def _input(self, name: str, column: pa.ChunkedArray | None, rows: int) -> Any:
        if column is None:
            return pa.nulls(rows)
        with _naming(
            name, column.type, "CSV does not support this type", f"--output NAME.parquet, or {_LEAVE}"
        ):
            return _text(_plain(column))

    def _write(self, table: pa.Table) -> None:
        header = pyarrow.csv.WriteOptions(include_header=self.rows == 0)
        pyarrow.csv.write_csv(table, self._sink, header)


def writer_of(path: Path, columns: Columns) -> TableWriter:
    """Return the writer of a file with one of the `ENDINGS`."""
    return (ParquetWriter if path.name.removesuffix(".partial").endswith(".parquet") else CsvWriter)(
        path, columns
    )


def _common(name: str, types: Types) -> pa.DataType:
    """Return the type that holds the values of all given types unchanged."""
    if len(types) == 1 and not pa.types.is_run_end_encoded(types[0][0]):
        return types[0][0]
    plain = [_plain(pa.chunked_array([], kind)).type for kind, _ in types]
    try:
        if any(map(pa.types.is_decimal, plain)) and any(map(pa.types.is_floating, plain)):
            raise pa.ArrowTypeError("decimals and floats have no common type")
        schemas = [pa.schema([(name, kind)]) for kind in plain]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException as error:
        raise DataError(
            f"column {name!r} has incompatible types",
            where=", ".join(f"{kind} in {file}" for kind, file in types[:3]),
            why="a column of a Parquet file has one type",
            fix=f"--output NAME.csv, or {_OTHERS}",
        ) from error


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as plain values: UUIDs as text, without dictionary, views or runs."""
    array = as_array(column)
    return as_array(array.dictionary_decode()) if pa.types.is_dictionary(array.type) else array


def _text(array: pa.Array) -> pa.Array:
    """Return a column that pyarrow can write as CSV; raise `pyarrow.ArrowException` if this is impossible."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):  # ids of `satrap prepare` become plain numbers
        return _text(as_array(array.storage))
    if is_text(kind) or pa.types.is_fixed_size_binary(kind):
        return array.cast(pa.large_string())
    if pa.types.is_nested(kind) or pa.types.is_interval(kind):
        raise pa.ArrowTypeError("the values have no text form")
    return array


@contextmanager
def _naming(name: str, kind: pa.DataType, why: str, fix: str) -> Iterator[None]:
    try:
        yield
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0]
        raise DataError(
            f"column {name!r} of type {kind} cannot be written: {reason}", why=why, fix=fix
        ) from error
