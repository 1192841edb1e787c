"""Rows taken in any amounts are the rows of the pieces, and each mark is the place of the next row."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from satrap.batch import Batch, Jagged
from satrap.data.window import Mark, Rows

PIECES = [3, 1, 4, 0, 5]


def pieces(first: int = 0) -> Iterator[tuple[Batch, int]]:
    """Pieces from one on, whose cursor is their number; the ids are numbers of rows."""
    start = sum(PIECES[:first])
    for cursor, size in list(enumerate(PIECES))[first:]:
        yield Batch(size, {"row": Jagged(np.arange(start, start + size, dtype=np.uint64))}), cursor
        start += size


def taken(rows: Rows, *counts: int) -> list[list[int] | None]:
    found = [rows.take(count) for count in counts]
    return [None if batch is None else batch.ids["row"].values.tolist() for batch in found]


@pytest.mark.parametrize("count", range(1, 15))
def test_all_rows_come_once_in_order(count: int) -> None:
    found = taken(Rows(pieces(), Mark()), *[count] * 15)
    parts = [part for part in found if part is not None]
    assert [row for part in parts for row in part] == list(range(13))
    assert {len(part) for part in parts[:-1]} <= {count}
    assert found[len(parts) :] == [None] * (15 - len(parts))


@pytest.mark.parametrize("before", range(14))
def test_who_starts_at_a_mark_gets_the_rows_after_it(before: int) -> None:
    rows = Rows(pieces(), Mark())
    taken(rows, before)
    mark = rows.mark
    again = Rows(pieces(mark.cursor or 0), mark)
    assert again.mark == mark
    expected = list(range(before, 13)) or None
    assert taken(again, 99) == [expected]
    assert taken(rows, 99) == [expected]


def test_reading_ahead_does_not_move_the_mark() -> None:
    rows = Rows(pieces(), Mark())
    taken(rows, 2)
    rows.fill(9)
    assert rows.mark == Mark(0, 2)
    taken(rows, 1)
    assert rows.mark in (Mark(0, 3), Mark(1, 0))
    assert taken(rows, 4, 4, 9) == [[3, 4, 5, 6], [7, 8, 9, 10], [11, 12]]
    assert rows.mark == Mark(4, 5)


def test_no_more_is_read_than_is_needed() -> None:
    given = pieces()
    rows = Rows(given, Mark())
    rows.fill(4)
    assert next(given)[1] == 2
