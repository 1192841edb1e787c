"""A request to score: columns of values, some shared by all items."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import pyarrow as pa

from satrap.data.formats.columns import as_array
from satrap.errors import DataError

ITEMS, CONTEXT = "items", "context"
"""Used instead of file names in errors about values of a request."""


@dataclass(frozen=True, slots=True)
class ScoreRequest:
    """Rows to score; each column is in either `context` or `items`.

    Args:
        size: number of items, at least 1.
        context: column -> the JSON value shared by all items.
        items: column -> one value per item: a list of JSON values, an array int64[items] or
            float64[items], or an Arrow array.
        step: the training step whose rows and network must compute the scores; None: any step.
        tower: the tower whose vectors are requested; None: scores.
    """

    size: int
    context: Mapping[str, Any]
    items: Mapping[str, list[Any] | npt.NDArray[Any] | pa.Array]
    step: Any = None
    tower: str | None = None

    def table(self, columns: Sequence[str]) -> pa.Table:
        """Return some columns as Arrow arrays.

        Raises:
            DataError: the values of a column have no common type; the error names the first odd value.
        """
        return pa.table({name: self._array(name) for name in columns})

    def _array(self, name: str) -> pa.Array:
        if name in self.context:
            return pa.repeat(_array(name, [self.context[name]], CONTEXT)[0], self.size)
        values = self.items[name]
        return _array(name, values, ITEMS) if isinstance(values, list) else as_array(values)


def _array(name: str, values: list[Any], where: str) -> pa.Array:
    try:
        return as_array(values)
    except DataError as error:
        kinds = [kind_of(value) for value in values]
        first = next((kind for kind in kinds if kind != "null"), "null")
        odd = next((row for row, kind in enumerate(kinds) if kind not in ("null", first)), 0)
        raise DataError(
            f"value {str(values[odd])[:60]!r} is a {kinds[odd]}, and the first value is a {first}"
            if odd
            else error.what,
            where=f"{where}, row {odd + 1}, column {name!r}",
            why=error.why,
            fix="send all values of the column as numbers, or all as text",
        ) from error


_KINDS = {dict: "object", list: "list", str: "text", bool: "truth value", int: "number", float: "number"}


def kind_of(value: Any) -> str:
    """Return the type of a JSON value, as a word for messages."""
    return "null" if value is None else _KINDS.get(type(value), type(value).__name__)
