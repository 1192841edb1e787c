"""Events as brokers have them, each a mapping, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from satrap.data.columns import as_array
from satrap.data.source import Origin, check_columns
from satrap.errors import DataError


@dataclass(frozen=True, slots=True)
class EventOrigin(Origin):
    """Where events came from; `offsets` are those of the rows 0, 1, ..."""

    offsets: Sequence[object]

    def at(self, row: int, column: str) -> str:
        """See `Origin.at`."""
        return f"{self.file}, offset {self.offsets[self.rows[row]]}, column {column!r}"


def table_of(events: Sequence[Mapping[str, Any]], columns: Sequence[str], where: str) -> pa.Table:
    """Return the columns of some events, null where an event lacks one.

    Raises:
        DataError: none of them has a column, or its values cannot be one.
    """
    there = list(dict.fromkeys(name for event in events for name in event))
    check_columns(columns, there, where)
    arrays = []
    for name in columns:
        values = [event.get(name) for event in events]
        try:
            arrays.append(as_array(values))
        except DataError:
            try:  # one value is one id, whether it is written as a number or as text
                arrays.append(pa.array([v if v is None else _text(v) for v in values], pa.string()))
            except (TypeError, pa.ArrowInvalid) as error:
                raise DataError(
                    f"the values are of different kinds: {error}", where=f"{where}, column {name!r}"
                ) from error
    return pa.Table.from_arrays(arrays, list(columns))


def _text(value: object) -> str:
    if isinstance(value, list | dict):
        raise TypeError("a list or an object among single values")
    return ("true" if value else "false") if isinstance(value, bool) else str(value)
