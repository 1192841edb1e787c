"""Which columns a request must have, and how many values each."""

from __future__ import annotations

from typing import Any

import pytest

from satrap.serve.http.errors import RequestError
from satrap.serve.scoring.columns import to_request


class Model:
    columns = ("user", "item", "price")
    known = frozenset(columns)


def read(context: dict[str, Any], items: Any) -> Any:
    return to_request(Model(), context, items, max_items=3)  # type: ignore[arg-type]


def test_items_come_by_columns_or_by_rows() -> None:
    by_columns = read({"user": 1}, {"price": [1.5, None], "item": [4, 5]})
    by_rows = read({"user": 1}, [{"price": 1.5, "item": 4}, {"item": 5, "price": None}])
    assert (by_columns.size, by_columns.context) == (by_rows.size, by_rows.context) == (2, {"user": 1})
    assert by_columns.items == by_rows.items == {"price": [1.5, None], "item": [4, 5]}


@pytest.mark.parametrize(
    ("context", "items", "what"),
    [
        ({}, [{"user": 1, "item": 2, "price": 3}, {"user": 1, "item": 2}], "'price' is missing"),
        ({}, [{"user": 1, "item": 2, "price": 3}, 7], "item 2 is a number"),
        ({"user": 1, "item": 2, "price": 3}, {}, "no items"),
        ({"user": 1, "item": 2, "price": 3}, [{}], "no items"),
        ({"user": 1}, {"item": [1], "price": "x"}, "'price' is a text"),
        ({"user": 1}, {"item": [1] * 4, "price": [1] * 4}, "4 items"),
        ({"user": 1}, "x", "items is a text"),
        ({"user": 1, "itm": 3}, {"price": [1]}, "'itm' is unknown"),
    ],
)
def test_the_first_mistake_is_told(context: dict[str, Any], items: Any, what: str) -> None:
    with pytest.raises(RequestError) as error:
        read(context, items)
    assert what in error.value.what
    assert error.value.status == 422
