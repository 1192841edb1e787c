"""Events as brokers have them, as columns."""

from __future__ import annotations

import pytest

from satrap.data.streams.columns import table_of
from satrap.errors import DataError


def test_what_an_event_lacks_is_null() -> None:
    table = table_of([{"a": 1, "b": [1, 2]}, {"a": 2}], ["a", "b"], "here")
    assert table.to_pydict() == {"a": [1, 2], "b": [[1, 2], None]}


def test_numbers_texts_and_truth_values_of_one_column_are_texts() -> None:
    table = table_of([{"a": 1}, {"a": "1"}, {"a": True}, {"a": None}], ["a"], "here")
    assert table.to_pydict() == {"a": ["1", "1", "true", None]}


def test_a_list_among_single_values_is_refused() -> None:
    with pytest.raises(DataError, match="incompatible types") as caught:
        table_of([{"a": 1}, {"a": [1]}], ["a"], "topic x")
    assert caught.value.where == "topic x, column 'a'"


def test_a_column_that_no_event_has_is_named_with_the_nearest() -> None:
    with pytest.raises(DataError, match="column 'item' is missing") as caught:
        table_of([{"itme": 1}], ["item"], "here")
    assert "did you mean 'itme'" in str(caught.value)
