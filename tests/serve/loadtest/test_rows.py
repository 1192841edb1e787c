"""Requests have the rows of a file, whatever it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satrap.data import read
from satrap.errors import ConfigError, DataError
from satrap.schema import Categorical, Schema
from satrap.serve.loadtest.rows import columns_of, requests_of, rows_of
from tests.serve.requests import plain
from tests.serve.served import COLUMNS, Served, frame


@given(rows=st.integers(1, 40), items=st.integers(1, 12), count=st.integers(1, 5), data=st.data())
def test_requests_are_the_rows_in_order(rows: int, items: int, count: int, data: Any) -> None:
    names = ["a", "b", "c"]
    table = {name: data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows)) for name in names}
    dataset = read(table, Schema((), {name: Categorical(dim=1) for name in names}))
    found = requests_of(dataset, names, items=items, count=count)
    sizes = [min(items, rows)] if rows < items else [items] * min(count, rows // items)
    assert [len(columns_of(request)["a"]) for request in found] == sizes
    for name in names:
        got = [value for request in found for value in columns_of(request)[name]]
        assert got == table[name][: sum(sizes)]


def test_the_context_is_that_of_the_first_row(server: Served, tmp_path: Path) -> None:
    table = frame(30, seed=4)[COLUMNS]
    table.to_parquet(tmp_path / "rows.parquet")
    model = server.scorer.model
    columns = model.kinds()
    rows = rows_of([str(tmp_path / "rows.parquet")], columns)
    first, second, third = requests_of(rows, list(columns), items=10, count=9, context=["user", "tags"])
    values = plain(table)
    for number, request in enumerate((first, second, third)):
        assert request["context"]["user"] == values["user"][10 * number]
        assert request["context"]["tags"] == values["tags"][10 * number]
        assert request["items"]["book"] == values["book"][10 * number : 10 * number + 10]
        status, answer = server.score(request)
        assert (status, len(answer["predictions"]["clicked_probability"])) == (200, 10)


def test_text_is_sent_as_it_is_in_the_file(tmp_path: Path) -> None:
    pd.DataFrame({"user": ["007", "x"], "age": [1.5, None]}).to_csv(tmp_path / "rows.csv", index=False)
    rows = rows_of([str(tmp_path / "rows.csv")], {"user": "id", "age": "number"})
    [request] = requests_of(rows, ["user", "age"], items=5, count=5)
    assert request == {"context": {}, "items": {"user": ["007", "x"], "age": [1.5, None]}}


def test_what_cannot_be_sent(tmp_path: Path) -> None:
    dataset = read({"user": [1, 2]}, Schema((), {"user": Categorical(dim=1)}))
    with pytest.raises(ConfigError, match="did you mean 'user'") as caught:
        requests_of(dataset, ["user"], items=1, count=1, context=["usr"])
    assert "'usr' is not a column" in caught.value.what
    (tmp_path / "rows.csv").write_text("user\n", encoding="utf-8")
    with pytest.raises(DataError, match="no rows"):
        requests_of(rows_of([str(tmp_path / "rows.csv")], {"user": "id"}), ["user"], items=1, count=1)
