"""An error names file, row and column, and the nearest column there is."""

from __future__ import annotations

import numpy as np
import pytest

from satrap.data.origin import Origin, check_columns
from satrap.errors import DataError


def test_rows_count_from_one() -> None:
    origin = Origin("rows.csv", np.array([0, 41], np.int64))
    assert origin.at(0, "user") == "rows.csv, row 1, column 'user'"
    assert origin.at(1, "item") == "rows.csv, row 42, column 'item'"


def test_the_first_missing_column_is_named_with_the_nearest_one() -> None:
    check_columns(["b", "a"], ["a", "b", "c"], "rows.csv")
    check_columns([], [], "rows.csv")
    with pytest.raises(DataError) as caught:
        check_columns(["user", "user_id", "itme"], ["user", "item", "users_id"], "rows.csv")
    assert "column 'user_id' is missing; did you mean 'users_id'?" in str(caught.value)
    assert caught.value.where == "rows.csv"
    assert "name one of the columns: user, item, users_id" in str(caught.value)


@pytest.mark.parametrize(("count", "more"), [(12, ""), (13, ", ...")])
def test_of_many_columns_twelve_are_named(count: int, more: str) -> None:
    columns = [f"x{n}" for n in range(count)]
    with pytest.raises(DataError) as caught:
        check_columns(["quite different"], columns, "rows.csv")
    assert "did you mean" not in str(caught.value)
    assert str(caught.value).endswith(", ".join(columns[:12]) + more)
