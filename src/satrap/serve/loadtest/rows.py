"""Requests from the rows of a file."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from satrap.data import Dataset, read
from satrap.errors import ConfigError, DataError, did_you_mean
from satrap.schema import Categorical, Feature, Numeric, Schema, Vector
from satrap.serve.scoring.example import plain_values, request_of

KINDS: Mapping[str, Feature] = {
    "id": Categorical(dim=1),
    "number": Numeric(),
    "list of ids": Categorical(dim=1, multi=True),
    "list of numbers": Vector(dim=1),
}
"""Kind of a column, as reported by the server -> a feature that reads such a column."""


def rows_of(sources: Sequence[str], columns: Mapping[str, str]) -> Dataset:
    """Return the rows of files, with their values unchanged.

    Args:
        sources: paths, globs or URLs.
        columns: column of the model -> kind, one of `KINDS`.

    Raises:
        ConfigError, DataError: the files cannot be read, or lack a column.
    """
    features = {name: KINDS.get(kind, KINDS["id"]) for name, kind in columns.items()}
    return read(list(sources), Schema((), features))


def requests_of(
    rows: Dataset, columns: Sequence[str], *, items: int, count: int, context: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Return requests with the first rows of a data set.

    Args:
        rows: data set that has the columns.
        columns: the model's columns.
        items: rows per request; fewer only if the data set has too few rows for one request.
        count: maximum number of requests.
        context: columns whose value in the first row of a request applies to all its rows; columns with equal
            values become context anyway.

    Raises:
        ConfigError: `context` names an unknown column.
        DataError: rows are missing, or cannot be read.
    """
    for name in context:
        if name not in columns:
            raise ConfigError(
                f"{name!r} is not a column of the model",
                fix=f"{did_you_mean(name, columns)}the model's columns: {', '.join(columns)}",
            )
    requests: list[dict[str, Any]] = []
    values: dict[str, list[Any]] = {name: [] for name in columns}
    for more in _values(rows, columns, items * count):
        for name in columns:
            values[name] += more[name]
        while len(values[columns[0]]) >= items and len(requests) < count:
            requests.append(request_of({name: column[:items] for name, column in values.items()}, context))
            values = {name: column[items:] for name, column in values.items()}
    if not requests:
        if not values[columns[0]]:
            raise DataError("the data has no rows to send", fix="name other rows: --input FILE")
        requests.append(request_of(values, context))
    return requests


def columns_of(request: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of a request with one value per item."""
    count = len(next(iter(request["items"].values())))
    return {**{name: [value] * count for name, value in request["context"].items()}, **request["items"]}


def _values(rows: Dataset, columns: Sequence[str], most: int) -> Iterator[dict[str, list[Any]]]:
    """Yield the values of at most `most` rows, one piece of the data set at a time."""
    for piece in rows.pieces():
        table = piece.table.slice(0, most)
        yield {name: plain_values(table.column(name)) for name in columns}
        most -= table.num_rows
        if most <= 0:
            return
