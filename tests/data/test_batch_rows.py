"""Rows cut, chosen and joined like lists; taken in any amounts, they are the rows of the pieces."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap import Batch, Jagged
from satrap.data.batch_rows import EpochRows, Mark, concat_rows, slice_rows, take_rows
from tests.data.helpers_data import same

BAGS = st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=4), min_size=1, max_size=12)


def batch_of(bags):
    counts = np.array([0, *map(len, bags)], np.int64)
    values = np.array([v for bag in bags for v in bag], np.uint64)
    single = np.arange(len(bags), dtype=np.uint64)
    offsets, weights = np.cumsum(counts), np.arange(len(values), dtype=np.float32)
    ids = {"m": Jagged(values, offsets), "w": Jagged(values, offsets, weights), "s": Jagged(single)}
    events = {"e": Jagged(weights * 2, offsets)}
    return Batch(len(bags), ids, numeric=single.astype(np.float32)[:, None], events=events)


def bags_of(batch):
    jagged = batch.ids["m"]
    return [jagged.values[a:b].tolist() for a, b in zip(jagged.offsets, jagged.offsets[1:], strict=False)]


@given(BAGS, st.data())
@settings(deadline=None)  # the first call loads machine code
def test_take_slice_and_concat_equal_lists(bags, data):
    batch = batch_of(bags)
    order = data.draw(st.lists(st.integers(0, len(bags) - 1)))
    taken = take_rows(batch, np.array(order, np.int64))
    assert bags_of(taken) == [bags[i] for i in order]
    weights = [batch.ids["w"].weights[slice(*batch.ids["w"].offsets[i : i + 2])] for i in order]
    assert taken.events["e"].values.tolist() == (2 * taken.ids["w"].weights).tolist()
    assert taken.events["e"].offsets.tolist() == taken.ids["w"].offsets.tolist()
    assert taken.ids["w"].weights.tolist() == [w for row in weights for w in row.tolist()]
    assert taken.ids["s"].values.tolist() == taken.numeric[:, 0].tolist() == order
    cut = data.draw(st.integers(0, len(bags)))
    parts = [slice_rows(batch, 0, cut), slice_rows(batch, cut, len(bags))]
    assert [bags_of(part) for part in parts] == [bags[:cut], bags[cut:]]
    assert same(concat_rows(parts), batch)


@given(st.lists(BAGS, max_size=5), st.lists(st.integers(1, 9), min_size=1), st.integers(0, 20))
def test_a_window_gives_all_rows_in_order_and_knows_where_it_stands(pieces, amounts, ahead):
    encoded = [(batch_of(bags), [i]) for i, bags in enumerate(pieces)]
    everything = [bag for bags in pieces for bag in bags]
    rows, seen, turn = EpochRows(iter(encoded), Mark()), [], 0
    while (batch := rows.take(amounts[turn % len(amounts)])) is not None:
        seen += bags_of(batch)
        rows.fill(ahead)
        mark = rows.mark
        again = EpochRows(iter(encoded[mark.cursor[0] :]), mark).take(10**6)
        assert (bags_of(again) if again else []) == everything[len(seen) :]
        turn += 1
    assert seen == everything


PIECES = [3, 1, 4, 0, 5]


def pieces(first: int = 0) -> Iterator[tuple[Batch, int]]:
    """Pieces from one on, whose cursor is their number; the ids are numbers of rows."""
    start = sum(PIECES[:first])
    for cursor, size in list(enumerate(PIECES))[first:]:
        yield Batch(size, {"row": Jagged(np.arange(start, start + size, dtype=np.uint64))}), cursor
        start += size


def taken(rows: EpochRows, *counts: int) -> list[list[int] | None]:
    found = [rows.take(count) for count in counts]
    return [None if batch is None else batch.ids["row"].values.tolist() for batch in found]


@pytest.mark.parametrize("count", range(1, 15))
def test_all_rows_come_once_in_order(count: int) -> None:
    found = taken(EpochRows(pieces(), Mark()), *[count] * 15)
    parts = [part for part in found if part is not None]
    assert [row for part in parts for row in part] == list(range(13))
    assert {len(part) for part in parts[:-1]} <= {count}
    assert found[len(parts) :] == [None] * (15 - len(parts))


@pytest.mark.parametrize("before", range(14))
def test_who_starts_at_a_mark_gets_the_rows_after_it(before: int) -> None:
    rows = EpochRows(pieces(), Mark())
    taken(rows, before)
    mark = rows.mark
    again = EpochRows(pieces(mark.cursor or 0), mark)
    assert again.mark == mark
    expected = list(range(before, 13)) or None
    assert taken(again, 99) == [expected]
    assert taken(rows, 99) == [expected]


def test_reading_ahead_does_not_move_the_mark() -> None:
    rows = EpochRows(pieces(), Mark())
    taken(rows, 2)
    rows.fill(9)
    assert rows.mark == Mark(0, 2)
    taken(rows, 1)
    assert rows.mark in (Mark(0, 3), Mark(1, 0))
    assert taken(rows, 4, 4, 9) == [[3, 4, 5, 6], [7, 8, 9, 10], [11, 12]]
    assert rows.mark == Mark(4, 5)


def test_no_more_is_read_than_is_needed() -> None:
    given = pieces()
    rows = EpochRows(given, Mark())
    rows.fill(4)
    assert next(given)[1] == 2
