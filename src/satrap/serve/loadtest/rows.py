"""Requests from the rows of a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from satrap.data import Dataset, read
from satrap.errors import ConfigError, DataError, did_you_mean
from satrap.schema import Categorical, Feature, Numeric, Schema, Vector
from satrap.serve.example import plain_values, request_of

KINDS: Mapping[str, Feature] = {
    "id": Categorical(dim=1),
    "number": Numeric(),
    "list of ids": Categorical(dim=1, multi=True),
    "list of numbers": Vector(dim=1),
}
"""What a server says that a column holds -> a feature that is read from such a column."""


def rows_of(sources: Sequence[str], columns: Mapping[str, str]) -> Dataset:
    """Return the rows of files, to be read as they are.

    Args:
        sources: paths, globs or URLs.
        columns: of the model -> what they hold, one of `KINDS`.

    Raises:
        ConfigError, DataError: they cannot be read, or lack a column.
    """
    features = {name: KINDS.get(kind, KINDS["id"]) for name, kind in columns.items()}
    return read(list(sources), Schema((), features))


def requests_of(
    rows: Dataset, columns: Sequence[str], *, items: int, count: int, context: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return requests with the first rows of a data set.

    Args:
        rows: with the columns.
        columns: of the model.
        items: rows of each request; the last one may have fewer if there is no other.
        count: most requests.
        context: columns whose value in the first row of a request counts for all of them; columns whose
            values are all equal are context anyway.

    Raises:
        ConfigError: `context` names another column.
        DataError: there are no rows, or they cannot be read.
    """
    for name in context:
        if name not in columns:
            raise ConfigError(
                f"{name!r} is no column of the model",
                fix=f"{did_you_mean(name, columns)}its columns: {', '.join(columns)}",
            )
    found: list[dict[str, Any]] = []
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for more in _values(rows, columns, items * count):
        for name in columns:
            values[name] += more[name]
        while len(values[columns[0]]) >= items and len(found) < count:
            found.append(request_of({name: column[:items] for name, column in values.items()}, context))
            values = {name: column[items:] for name, column in values.items()}
    if not found:
        if not values[columns[0]]:
            raise DataError("there are no rows to send", fix="name other rows: --input FILE")
        found.append(request_of(values, context))
    return found


def columns_of(request: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of a request, with one value for each item."""
    count = len(next(iter(request["items"].values())))
    return {**{name: [value] * count for name, value in request["context"].items()}, **request["items"]}


def _values(rows: Dataset, columns: Sequence[str], most: int) -> Iterator[dict[str, list[Any]]]:
    """Yield the values of rows, piece by piece."""
    for piece in rows.pieces():
        table = piece.table.slice(0, most)
        yield {name: plain_values(table.column(name)) for name in columns}
        most -= table.num_rows
        if most <= 0:
            return
