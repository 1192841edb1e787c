"""Example requests for a trained model, made from rows of its data."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from satrap.checkpoint.files.storage import Storage
from satrap.checkpoint.manifest import read_manifest, reading_settings
from satrap.config import Recipe
from satrap.data import Dataset
from satrap.data.encode.encoder import needed_columns
from satrap.data.formats.columns import as_array
from satrap.errors import ConfigError, DataError
from satrap.launch.datasets import open_part, open_sources
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.scoring import model_place
from satrap.schema import Schema


def example_of(folder: RunFolder, sources: Sequence[str], count: int) -> dict[str, Any]:
    """Return a request for the model of a run.

    The request has the first rows of `sources`. Without sources, it has the first test rows of the recipe, or
    else its first validation or training rows.

    Raises:
        ConfigError, DataError: rows are missing, or cannot be read.
    """
    recipe = folder.recipe()
    schema = schema_of(folder, recipe)
    ids, numbers = needed_columns(schema)
    columns = list(dict.fromkeys([*ids, *numbers]))
    if sources:
        return example(open_sources(recipe, schema, sources), columns, count)
    for part in ("test", "validation", "train") if folder.knows_rows() else ():
        if (rows := open_part(recipe, schema, part)) is not None:
            return example(rows, columns, count)
    raise ConfigError(
        "no rows are available for an example request",
        where=str(folder),
        why="a saved model or a feed does not record its training rows",
        fix="name a file with rows: --input FILE",
    )


def schema_of(folder: RunFolder, recipe: Recipe) -> Schema:
    """Return the features of a run's model, without labels."""
    settings = read_manifest(Storage(model_place(folder, recipe))).settings
    with reading_settings(str(folder)):
        saved = Schema.from_dict(settings["schema"])
    return Schema((), saved.features, salt=saved.salt)


def example(rows: Dataset, columns: Sequence[str], count: int) -> dict[str, Any]:
    """Return a request with the first rows of a data set; columns with equal values become context.

    Args:
        rows: data set that has the columns.
        columns: the model's columns.
        count: maximum number of items.

    Raises:
        DataError: rows are missing, or cannot be read.
    """
    piece = next(rows.pieces(), None)
    if piece is None:
        raise DataError("the data has no rows for an example request", fix="name other rows: --input FILE")
    table = piece.table.slice(0, count)
    return request_of({name: plain_values(table.column(name)) for name in columns})


def request_of(values: Mapping[str, list[Any]], context: Collection[str] = ()) -> dict[str, Any]:
    """Return a request with the given rows; columns with equal values become context.

    Args:
        values: column -> one JSON value per row.
        context: columns whose first value applies to all rows.
    """
    shared = [
        name
        for name, column in values.items()
        if name in context or (len(column) > 1 and all(v == column[0] for v in column))
    ]
    if len(shared) == len(values):
        shared = shared[:-1]  # the request needs a column in items, which sets the number of items
    return {
        "context": {name: values[name][0] for name in shared},
        "items": {name: column for name, column in values.items() if name not in shared},
    }


def plain_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a column as JSON values: numbers, text, booleans, lists and null."""
    array = as_array(column)
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    return [_plain(value) for value in array.to_pylist()]


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, bool | int | float | str | None) else str(value)
