"""Conversion of events from brokers, one mapping each, to columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from satrap.data.formats.columns import as_array
from satrap.data.source import Origin, check_columns
from satrap.errors import DataError


@dataclass(frozen=True, slots=True)
class EventOrigin(Origin):
    """Origin of events; `offsets` are the log's offsets of rows 0, 1, ..."""

    offsets: Sequence[object]

    def at(self, row: int, column: str) -> str:
        """See `Origin.at`."""
        return f"{self.file}, offset {self.offsets[self.rows[row]]}, column {column!r}"


def table_of(events: Sequence[Mapping[str, Any]], columns: Sequence[str], where: str) -> pa.Table:
    """Return the columns of some events, null where an event lacks one.

    Raises:
        DataError: a column is missing from all events, or its values have no common type.
    """
    there = list(dict.fromkeys(name for event in events for name in event))
    check_columns(columns, there, where)
    arrays = []
    for name in columns:
        values = [event.get(name) for event in events]
        try:
            arrays.append(as_array(values))
        except DataError:
            try:  # a value has the same id as a number and as text
                arrays.append(pa.array([v if v is None else _text(v) for v in values], pa.string()))
            except (TypeError, pa.ArrowInvalid) as error:
                raise DataError(
                    f"the values have incompatible types: {error}", where=f"{where}, column {name!r}"
                ) from error
    return pa.Table.from_arrays(arrays, list(columns))


def _text(value: object) -> str:
    if isinstance(value, list | dict):
        raise TypeError("a list or an object is mixed with single values")
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
