"""Where a row of the user's data came from, for error messages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from satrap.errors import DataError


@dataclass(frozen=True, slots=True)
class Origin:
    """File and row numbers of the rows of a chunk.

    Args:
        file: name of the file, or of the object in memory.
        rows: int64[n], index of each row in the file from 0 (header, comments and blank lines not counted).
    """

    file: str
    rows: npt.NDArray[np.int64]

    def at(self, row: int, column: str) -> str:
        """Return the place of a value for an error message; rows count from 1 there."""
        return f"{self.file}, row {int(self.rows[row]) + 1}, column {column!r}"


def check_columns(needed: Iterable[str], columns: Sequence[str], file: str) -> None:
    """Raise `DataError` for the first needed column that a file does not have."""
    there = set(columns)
    for column in needed:
        if column not in there:
            raise missing_column(column, columns, file)


def missing_column(column: str, columns: Sequence[str], file: str) -> DataError:
    """Return the error for a column that a file does not have, naming the nearest one it has."""
    near = difflib.get_close_matches(column, columns, 1, 0.5)
    shown = ", ".join(columns[:12]) + (", ..." if len(columns) > 12 else "")
    return DataError(
        f"column {column!r} is missing" + (f"; did you mean {near[0]!r}?" if near else ""),
        where=file,
        why="the schema needs it",
        fix=f"name one of the columns: {shown}",
    )
