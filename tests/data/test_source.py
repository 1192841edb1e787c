"""An error names file, row and column, and the nearest column there is; an order depends on seeds alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap import Categorical, Numeric, Schema
from satrap.data import Join, read
from satrap.data.source import Origin, RowSplit, Scan, check_columns, permutation
from satrap.errors import ConfigError, DataError


def test_rows_count_from_one() -> None:
    origin = Origin("rows.csv", np.array([0, 41], np.int64))
    assert origin.at(0, "user") == "rows.csv, row 1, column 'user'"
    assert origin.at(1, "item") == "rows.csv, row 42, column 'item'"


@pytest.mark.parametrize(("modulo", "keep"), [(1, (0,)), (3, (2, 0, 2)), (5, (4,)), (4, (0, 1, 2, 3))])
def test_rows_are_kept_by_their_index(modulo: int, keep: tuple[int, ...]) -> None:
    rows, kept = RowSplit(modulo, keep), [index for index in range(40) if index % modulo in keep]
    assert rows.keep == tuple(sorted(set(keep)))
    assert [rows.before(index) for index in range(40)] == [sum(k < i for k in kept) for i in range(40)]
    for start, count in ((0, 40), (7, 13), (9, 0), (10, 1)):
        expected = [index - start for index in kept if start <= index < start + count]
        assert rows.select(start, count).tolist() == expected
        scan = Scan(ids=["b", "a"], numbers=["a", "c"], rows=rows)
        assert (scan.kept(start, count).tolist(), scan.kept_before(start)) == (expected, rows.before(start))
    everything = Scan(ids=["b", "a"], numbers=["a", "c"])
    assert (everything.kept(7, 3).tolist(), everything.kept_before(7)) == ([0, 1, 2], 7)
    assert everything.names == ["b", "a", "c"]
    assert (everything.raw, everything.order, everything.worker, everything.workers) == (None, None, 0, 1)


@pytest.mark.parametrize(("modulo", "keep"), [(0, (0,)), (3, ()), (3, (3,)), (3, (0, -1))])
def test_impossible_splits_of_rows_are_refused(modulo: int, keep: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        RowSplit(modulo, keep)
    assert caught.value.what == f"rows: modulo {modulo} with keep {sorted(keep)} is invalid"


X = Schema([], {"x": Numeric()})
TWICE = pa.Table.from_arrays([pa.array([1, 2]), pa.array([3, 4]), pa.array([5, 6])], ["x", "y", "y"])


def twice(kind: str, folder: Path) -> Any:
    """Rows with two columns y, beside one x."""
    path = folder / f"rows.{kind}"
    match kind:
        case "csv":
            path.write_text("x,y,y\n1,3,5\n2,4,6\n", encoding="utf-8")
        case "parquet":
            pq.write_table(TWICE, path)
        case "arrow":
            feather.write_feather(TWICE, path)
        case "frame":
            return pd.DataFrame([[1, 3, 5], [2, 4, 6]], columns=["x", "y", "y"])
        case _:
            return TWICE
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow", "frame", "table"])
def test_two_columns_of_one_name_are_refused_by_name_if_they_are_used(kind: str, tmp_path: Path) -> None:
    source = twice(kind, tmp_path)
    assert [batch.numeric.tolist() for batch in read(source, X)] == [[[1], [2]]]  # type: ignore[union-attr]
    [(raw, _)] = read(source, X).tables_and_batches(["x"])
    assert raw.num_columns == 1
    for used in (
        lambda: read(source, Schema([], {"x": Numeric(), "y": Numeric()})),
        lambda: read(source, Schema([], {"y": Categorical(dim=2)})),
        lambda: list(read(source, X).tables_and_batches()),
        lambda: read({"y": [3]}, X, join=[Join(source=source, on="y")]),
        lambda: read({"z": [3]}, X, join=[Join(source=source, on="z", key="y", columns=["x"])]),
    ):
        with pytest.raises(DataError, match="2 columns have the name 'y'"):
            used()


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_two_columns_of_one_name_in_a_later_file_are_refused_too(kind: str, tmp_path: Path) -> None:
    later = twice(kind, tmp_path)
    first = later.with_name(f"first.{kind}")
    {"csv": csv.write_csv, "parquet": pq.write_table, "arrow": feather.write_feather}[kind](
        pa.table({"y": [1], "x": [2]}), first
    )
    files = [str(first), str(later)]
    assert sum(batch.size for batch in read(files, X)) == 3
    with pytest.raises(DataError, match="2 columns have the name 'y'") as caught:
        list(read(files, Schema([], {"y": Numeric()})))
    assert caught.value.where == str(later)


def test_the_first_missing_column_is_named_with_the_nearest_one() -> None:
    check_columns(["b", "a"], ["a", "b", "c"], "rows.csv")
    check_columns([], [], "rows.csv")
    with pytest.raises(DataError) as caught:
        check_columns(["user", "user_id", "itme"], ["user", "item", "users_id"], "rows.csv")
    assert "column 'user_id' is missing" in str(caught.value)
    assert caught.value.where == "rows.csv"
    assert "did you mean 'users_id'? use one of the columns: user, item, users_id" in str(caught.value)


@pytest.mark.parametrize(("count", "more"), [(12, ""), (13, ", ...")])
def test_of_many_columns_twelve_are_named(count: int, more: str) -> None:
    columns = [f"x{n}" for n in range(count)]
    with pytest.raises(DataError) as caught:
        check_columns(["quite different"], columns, "rows.csv")
    assert "did you mean" not in str(caught.value)
    assert str(caught.value).endswith(", ".join(columns[:12]) + more)


@given(st.integers(0, 500), st.lists(st.integers(-(2**40), 2**64), min_size=1, max_size=3))
@settings(deadline=None)  # the first call loads machine code
def test_it_is_a_permutation_and_a_pure_function(count, seeds):
    order = permutation(count, *seeds)
    assert np.array_equal(np.sort(order), np.arange(count))
    assert np.array_equal(order, permutation(count, *seeds))


def test_seeds_and_their_order_matter():
    orders = {permutation(100, *seeds).tobytes() for seeds in [(0, 1), (1, 0), (0,), (0, 0), (1, 1)]}
    assert len(orders) == 5


def test_golden_order_never_changes():
    assert permutation(8, 1, 2).tolist() == [6, 7, 1, 0, 5, 3, 4, 2]


def test_positions_are_uniform():
    places = np.stack([permutation(10, seed) for seed in range(4000)])
    counts = np.stack([np.bincount(places[:, k], minlength=10) for k in range(10)])
    # Each cell is binomial(4000, 0.1): mean 400, deviation 19.
    assert np.abs(counts - 400).max() < 5 * 19
