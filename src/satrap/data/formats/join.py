"""Columns joined from a small side table, for example book attributes added to ratings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from satrap.data.encode.encoder import Missing
from satrap.data.encode.hashing import hash_ids
from satrap.data.fingerprint import Fingerprint, digest_of
from satrap.data.formats.columns import as_array, concatenated
from satrap.data.formats.csv import CsvOptions
from satrap.data.source import Scan, Source, check_columns
from satrap.errors import ConfigError, DataError
from satrap.runtime.arguments import checked
from satrap.schema import MISSING_ID


@checked()
@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Adds columns of a side table to rows with a matching key; other rows get missing values.

    Keys match if they have the same id (see `satrap.data.encode.hashing`): 7, "7" and 7.0 are one key.

    Args:
        source: anything `read` accepts; held in memory.
        on: key column in the data.
        key: key column in the side table, default: the same as `on`.
        columns: columns to add; default: all except the key.
        prefix: prepended to the names of added columns.
        csv: format of the side table's CSV file.
    """

    source: Any
    on: str
    key: str | None = None
    columns: Sequence[str] = ()
    prefix: str = ""
    csv: CsvOptions | None = None


class SideTable:
    """A side table in memory, ready to be joined; `DataError` for a missing column or a duplicate key."""

    def __init__(self, join: Join, source: Source) -> None:
        key = join.key or join.on
        columns = list(join.columns or (name for name in source.names if name != key))
        check_columns((key, *columns), source.names, source.label)
        pieces = source.scan(Scan(ids=[key, *columns], numbers=[]), None)
        tables = [piece.table for piece in pieces]
        if not tables:
            raise DataError("the side table has no rows", where=source.label)
        table = pa.table({name: _whole(tables, name, source.label) for name in (key, *columns)})
        self.on, self._missing = join.on, Missing((join.csv or CsvOptions()).missing, 0).ids
        hashed = hash_ids(table.column(key), missing=self._missing)
        self._order = order = np.argsort(hashed, kind="stable")
        self._keys = keys = hashed[order]
        twice = np.flatnonzero((keys[1:] == keys[:-1]) & (keys[1:] != np.uint64(MISSING_ID)))
        if len(twice):
            raise DataError(
                f"key {table.column(key)[int(order[twice[0]])].as_py()!r} appears more than once",
                where=f"{source.label}, column {key!r}",
                why="a row can be joined with only one row of the side table",
                fix="remove the duplicates from the side table",
            )
        self.columns = {join.prefix + name: _flat(table.column(name)) for name in columns}
        self._label = source.label

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the side table: a digest of its keys and columns."""
        columns = pa.RecordBatch.from_pydict(self.columns).serialize()
        parts = (self._keys.tobytes(), self._order.tobytes(), pa.ipc.read_message(columns).body)
        return Fingerprint(name=self._label, rows=len(self._keys), digest=digest_of(parts), whole=True)

    def attach(self, table: pa.Table, names: Sequence[str]) -> pa.Table:
        """Return the table with the joined columns that `names` lists, dictionary-encoded."""
        joined = [name for name in names if name in self.columns]
        if not joined:
            return table
        keys = hash_ids(table.column(self.on), missing=self._missing)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        missing = (self._keys[place] != keys) | (keys == np.uint64(MISSING_ID))
        indices = pa.array(self._order[place].astype(np.int32), mask=missing)
        added = []  # collected, because each change of a table copies it
        for values in map(self.columns.__getitem__, joined):
            nested = pa.types.is_nested(values.type)
            added.append(values.take(indices) if nested else pa.DictionaryArray.from_arrays(indices, values))
        return pa.Table.from_arrays([*table.columns, *added], [*table.column_names, *joined])


def _whole(tables: Sequence[pa.Table], name: str, label: str) -> pa.ChunkedArray:
    try:
        return concatenated([table.column(name) for table in tables])
    except DataError as error:
        where = f"{label}, column {name!r}"
        raise DataError(error.what, where=where, why=error.why, fix=error.fix) from error


def _flat(column: pa.ChunkedArray) -> pa.Array:
    array = as_array(column)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def check_joins(tables: Sequence[SideTable], names: Sequence[str]) -> None:
    """Raise `ConfigError` if a joined column has the name of an existing column."""
    seen = set(names)
    for table in tables:
        for name in table.columns:
            if name in seen:
                raise ConfigError(
                    f"join on {table.on!r}: column {name!r} exists already",
                    fix="list only the columns you need in Join(columns=...), or set a prefix; files of "
                    "satrap prepare are already joined: score raw files, or train from prepared ones",
                )
            seen.add(name)
