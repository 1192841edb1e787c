"""The initial rows of tables: pretrained vectors from files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from satrap.data.formats.row_files import RowFileSpec, is_export, read_rows
from satrap.errors import ConfigError
from satrap.exchange import RowSource
from satrap.schema import Schema, Table
from satrap.store import RowChunk, StoreConfig
from satrap.store.row_spec import plan


def check_rows(schema: Schema, tables: Sequence[Table], store: StoreConfig) -> dict[str, int]:
    """Read the files that the settings of a store name; return table -> number of its rows.

    Args:
        schema: its features use the tables.
        tables: tables of the schema.
        store: names the files.

    Raises:
        ConfigError: a frozen table without a file, or ids that are not values of the data.
        DataError: a file cannot be read, does not fit the table, or has an id twice.
    """
    return {
        table.name: sum(len(chunk.ids) for chunk in chunks) for table, chunks in _files(schema, tables, store)
    }


def load_rows(rows: RowSource, schema: Schema, tables: Sequence[Table], store: StoreConfig) -> None:
    """Load the rows of these files into the tables; arguments and errors are as in `check_rows`."""
    for table, chunks in _files(schema, tables, store):
        for chunk in chunks:
            rows.load(table.name, chunk)


def _files(
    schema: Schema, tables: Sequence[Table], store: StoreConfig
) -> Iterator[tuple[Table, Iterator[RowChunk]]]:
    """Yield the tables that start with rows of a file, and these rows."""
    for table in tables:
        settings = store.tables.get(table.name)
        if settings is not None and settings.rows is not None:
            yield table, _chunks(schema, table, Path(settings.rows))
        elif table.frozen:
            raise ConfigError(
                f"table {table.name!r} is frozen, and has no rows",
                why="a frozen table is not trained, so every id would read zeros",
                fix="set rows to the file with the table's rows",
            )


def _chunks(schema: Schema, table: Table, file: Path) -> Iterator[RowChunk]:
    assert table.optimizer is not None
    layout = plan(table.optimizer, table.dim, table.dtype)
    selection = RowFileSpec(table.name, {table.dim: None if table.frozen else layout.width}, schema.salt)
    for number, rows in enumerate(read_rows(file, selection, raw=None)):
        if not number and not is_export(file):
            _check_ids(schema, table.name, file)
        state = layout.initial_states(len(rows.ids)) if rows.state is None else rows.state
        yield RowChunk(table.name, rows.ids, rows.weights, state)


def _check_ids(schema: Schema, table: str, file: Path) -> None:
    """Raise `ConfigError` unless a table's ids are values of the data, as the ids of a file are."""
    for name, feature in schema.categorical.items():
        made = [
            key for key in ("buckets", "boundaries", "cross", "time") if getattr(feature, key) is not None
        ]
        if made and schema.table_of(name) == table:
            raise ConfigError(
                f"feature {name!r} has {made[0]}, but its table {table!r} has rows from a file",
                where=str(file),
                why=f"{made[0]} computes ids from values of the data, but the ids in the file are the values",
                fix=f"remove {made[0]}, or give the feature another table",
            )
