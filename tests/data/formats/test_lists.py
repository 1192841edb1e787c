"""Lists that say something of the same events: aligned, cut at one end, refused where lengths differ."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.data.formats.lists import align, as_lists, no_lists, within
from satrap.data.source import Origin
from satrap.errors import DataError

LENGTHS = st.lists(st.integers(0, 5), max_size=8)


@given(LENGTHS, st.one_of(st.none(), st.integers(1, 6)), st.booleans())
@settings(deadline=None)
def test_the_ends_of_lists_are_those_of_slices(lengths: list[int], limit: int | None, last: bool) -> None:
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64)
    lists = [list(range(a, b)) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]
    expected = [row if limit is None else row[-limit:] if last else row[:limit] for row in lists]
    kept, bounds = within(offsets, limit, last=last)
    found = np.arange(offsets[-1]) if kept is None else np.flatnonzero(kept)
    assert found.tolist() == [value for row in expected for value in row]
    assert np.diff(bounds).tolist() == [len(row) for row in expected]


def origin(rows: int) -> Origin:
    return Origin("data.csv", np.arange(10, 10 + rows))


def test_null_beside_one_event_is_an_event_whose_value_is_missing() -> None:
    items = pa.array([["a", "b"], ["c"], None, []])
    prices = pa.array([[1.0, None], None, None, None])
    counts, values = align("past", {"item": ("item", items), "price": ("paid", prices)}, origin(4))
    assert counts.tolist() == [2, 1, 0, 0]
    assert values["item"].to_pylist() == ["a", "b", "c"]
    assert values["price"].to_pylist() == [1.0, None, None]


@pytest.mark.parametrize(
    ("prices", "row"),
    [([[1.0], [2.0], None], 11), ([[1.0, 2.0], [2.0, 3.0], None], 12), ([None, None, []], 11)],
)
def test_lists_of_different_lengths_name_the_row(prices: list[list[float] | None], row: int) -> None:
    items = pa.array([["a", "b"], ["c"], None])
    columns = {"item": ("item", items), "price": ("paid", pa.array(prices, pa.list_(pa.float64())))}
    with pytest.raises(DataError, match=f"data.csv, row {row}, column '(paid|item)'") as caught:
        align("past", columns, origin(3))
    assert "sequence 'past'" in caught.value.why
    assert len(str(caught.value).splitlines()) <= 4


def test_brackets_may_surround_numbers_and_are_part_of_ids() -> None:
    texts, missing = pa.array(["[1|2]", "NA", ""]), pa.array(["NA"])
    numbers = as_lists(texts, "|", missing)
    ids = as_lists(texts, "|", missing, brackets=False)
    assert numbers is not None
    assert ids is not None
    assert numbers.to_pylist() == [["1", "2"], None, None]
    assert ids.to_pylist() == [["[1", "2]"], None, None]
    assert as_lists(texts, None, missing) is None


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        (pa.string(), "set a separator for the feature"),
        (pa.dictionary(pa.int32(), pa.string()), "set a separator for the feature"),
        (pa.int64(), "write the column as lists"),
        (pa.dictionary(pa.int32(), pa.int64()), "write the column as lists"),
    ],
    ids=str,
)
def test_a_column_without_lists_is_told_what_would_help(kind: pa.DataType, fix: str) -> None:
    error = no_lists(kind, "rows.csv, column 'a'")
    assert (error.what, error.fix) == (f"a column of type {kind} has no lists", fix)
    assert error.where == "rows.csv, column 'a'"
