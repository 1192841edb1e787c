"""Columns of a request as Arrow arrays."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from satrap.errors import DataError
from satrap.serve.http.request import ScoreRequest


def test_the_context_is_repeated() -> None:
    request = ScoreRequest(
        3, {"user": "u", "tags": [1, 2]}, {"item": [1, None, 3], "age": pa.array([1, 2, 3])}
    )
    assert request.table(["item", "user", "tags", "age"]).to_pydict() == {
        "item": [1, None, 3],
        "user": ["u"] * 3,
        "tags": [[1, 2]] * 3,
        "age": [1, 2, 3],
    }


@pytest.mark.parametrize(
    ("values", "what", "row"),
    [
        ([None, 1, "x"], "'x' is a text, and the first value is a number", 3),
        (["x", 1], "'1' is a number, and the first value is a text", 2),
        ([[1], 2], "'2' is a number, and the first value is a list", 2),
        ([1 << 70], "64 bits", 1),
    ],
)
def test_values_of_unlike_types_are_named(values: list[Any], what: str, row: int) -> None:
    with pytest.raises(DataError) as error:
        ScoreRequest(len(values), {}, {"item": values}).table(["item"])
    assert what in error.value.what
    assert error.value.where == f"items, row {row}, column 'item'"
