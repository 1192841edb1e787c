"""Columns become arrays, bytes and numbers, whatever held them."""

from __future__ import annotations

import datetime
import math
import uuid
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from satrap import Categorical, Schema
from satrap.data import RowSplit, hash_ids, read
from satrap.data.formats.columns import as_array, bytes_of, is_text, taken, to_floats
from satrap.errors import DataError

VIEWS = {
    "text": pa.array(["a", None, "c" * 20], pa.string_view()),
    "bytes": pa.array([b"a", None, b"c" * 20], pa.binary_view()),
    "runs": pc.run_end_encode(pa.array(["a", "a", "b"])),
    "lists": pa.array([["a"], None, ["b", "c"]], pa.list_(pa.string_view())),
    "large": pa.array([[b"a"], None, []], pa.large_list(pa.binary_view())),
    "fixed": pa.array([["a", "b"], None, ["c", None]], pa.list_(pa.string_view(), 2)),
    "struct": pa.array([{"a": "x"}, None, {"a": None}], pa.struct([("a", pa.string_view())])),
    "number": pa.array([1, None, 3]),
}


@pytest.mark.parametrize("name", VIEWS)
def test_rows_are_taken_of_columns_of_which_pyarrow_takes_none(name: str) -> None:
    table = pa.table({"x": pa.chunked_array([VIEWS[name], VIEWS[name].slice(1)])})
    found = taken(table, np.array([4, 0, 1]))
    values = table["x"].to_pylist()
    assert found["x"].to_pylist() == [values[4], values[0], values[1]]
    assert taken(table.slice(0, 0), np.array([], np.int64)).num_rows == 0


def test_rows_of_a_split_have_views_of_text(tmp_path: Path) -> None:
    """A split by place leaves rows that are no neighbours."""
    table = pa.table({"y": [0, 1] * 20, "t": pa.array([f"v{i % 7}" for i in range(40)], pa.string_view())})
    pq.write_table(table, tmp_path / "views.parquet", store_schema=True)
    pq.write_table(table.set_column(1, "t", table["t"].cast(pa.string())), tmp_path / "plain.parquet")
    schema, rows = Schema(["y"], {"t": Categorical(dim=2)}), RowSplit(3, (0, 1))
    views, plain = (
        list(read(str(tmp_path / f"{name}.parquet"), schema, batch_size=7, rows=rows).batches(0))
        for name in ("views", "plain")
    )
    assert len(views) == len(plain) > 1
    assert all((a.ids["t"].values == b.ids["t"].values).all() for a, b in zip(views, plain, strict=True))


def test_values_of_all_kinds_become_one_array() -> None:
    array = pa.array([1, 2])
    assert as_array(array) is array
    for chunks in ([], [[1, 2]], [[1], [2, 3]]):
        found = as_array(pa.chunked_array(chunks, pa.int64()))
        assert isinstance(found, pa.Array)
        assert found.to_pylist() == [value for chunk in chunks for value in chunk]
    assert as_array([1, 2**63]).type == pa.uint64()
    assert as_array([1, 2**62]).type == pa.int64()
    assert as_array(np.array(["a", np.nan, None], object)).to_pylist() == ["a", None, None]
    matrix = as_array(np.arange(6).reshape(2, 3)[:, ::-1])
    assert (matrix.type, matrix.to_pylist()) == (pa.list_(pa.int64(), 3), [[2, 1, 0], [5, 4, 3]])


KEYS = [uuid.UUID(int=number * 2**64 + 2**127 - number) for number in range(5)] + [None]
UUIDS = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([None if key is None else key.bytes for key in KEYS], pa.binary(16))
)
KEY_TEXTS = [None if key is None else str(key) for key in KEYS]


def test_uuids_have_the_ids_of_their_texts_wherever_they_are(tmp_path: Path) -> None:
    expected = hash_ids(KEY_TEXTS).tolist()
    assert len(set(expected)) == len(KEYS)
    chunks = pa.chunked_array([UUIDS.slice(0, 2), UUIDS.slice(2, 0), UUIDS.slice(2)])
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 3, 4, None]), UUIDS.slice(0, 5))
    for values in (UUIDS, chunks, encoded, pd.Series(KEYS), KEYS, np.array(KEYS, object)):
        assert hash_ids(values).tolist() == expected
    assert hash_ids(pa.nulls(2, pa.uuid())).tolist() == [0, 0]
    assert as_array(UUIDS.slice(1)).to_pylist() == KEY_TEXTS[1:]
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 2, 6]), UUIDS)
    pq.write_table(
        pa.table({"one": UUIDS.slice(3), "many": lists}), tmp_path / "rows.parquet", store_schema=False
    )
    schema = Schema([], {"one": Categorical(dim=2), "many": Categorical(dim=2, multi=True)})
    [batch] = read(tmp_path / "rows.parquet", schema)
    assert batch.ids["one"].values.tolist() == expected[3:]
    assert batch.ids["many"].values.tolist() == expected[:5]


@pytest.mark.parametrize(
    "array",
    [
        pa.array(["Bern", None, "Oslo"], pa.string_view()),
        pa.array([b"Bern", None, b"Oslo"], pa.binary_view()),
        pa.RunEndEncodedArray.from_arrays([1, 2, 3], pa.array(["Bern", None, "Oslo"])),
    ],
    ids=lambda array: str(array.type),
)
def test_layouts_of_text_do_not_matter(array: pa.Array) -> None:
    assert is_text(as_array(array).type)
    assert hash_ids(array).tolist() == hash_ids(["Bern", None, "Oslo"]).tolist()
    numbers = {"Bern": "1.5", "Oslo": "2"}
    text = pa.array([numbers.get(value) for value in ("Bern", None, "Oslo")], pa.string_view())
    np.testing.assert_array_equal(to_floats(as_array(text)), [1.5, np.nan, 2])


@pytest.mark.parametrize("values", [[1, "a"], [2**63, -1], [[1], 2]], ids=str)
def test_values_without_a_common_type_are_refused(values: list[Any]) -> None:
    with pytest.raises(DataError, match=r"the values have no common type: .|64 bits") as caught:
        as_array(values)
    assert "\n" not in caught.value.what


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()], ids=str)
def test_bytes_of_texts_without_a_copy(kind: pa.DataType) -> None:
    assert is_text(kind)
    width = np.int64 if kind in (pa.large_string(), pa.large_binary()) else np.int32
    whole = pa.array(["ab", "", None, "cde"], pa.string()).cast(kind)
    for start, count in ((0, 4), (1, 3), (2, 1), (3, 1)):
        data, offsets = bytes_of(whole.slice(start, count))
        assert offsets.dtype == width
        texts = [data[a:b].tobytes() for a, b in pairwise(offsets)]
        assert texts == [b"ab", b"", b"", b"cde"][start : start + count]
    data, offsets = bytes_of(pa.array([], kind))
    assert (len(data), offsets.tolist(), offsets.dtype) == (0, [0], width)
    data, offsets = bytes_of(pa.array([None, None], kind))
    assert (len(data), offsets.tolist()) == (0, [0, 0, 0])


def test_other_types_are_no_text() -> None:
    assert not any(map(is_text, (pa.int64(), pa.list_(pa.string()), pa.dictionary(pa.int8(), pa.string()))))


NA = pa.array(["NA", "?"])
TEXTS = ["1.5", " 2 ", "", None, "true", "True", "TRUE", "false", "False", "FALSE", "NA", "?"]
NUMBERS = [1.5, 2.0, math.nan, math.nan, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, math.nan, math.nan]


def test_texts_are_read_as_numbers() -> None:
    for array in (pa.array(TEXTS), pa.array(TEXTS).dictionary_encode(), pa.array(TEXTS, pa.large_string())):
        np.testing.assert_array_equal(to_floats(array, NA), NUMBERS)
    np.testing.assert_array_equal(to_floats(pa.array(TEXTS[:10])), NUMBERS[:10])
    np.testing.assert_array_equal(to_floats(pa.array(TEXTS[:4])), NUMBERS[:4])
    for array, given in ((pa.array(TEXTS), None), (pa.array(["1", "x"]), NA), (pa.array(["true", "x"]), NA)):
        with pytest.raises(pa.ArrowInvalid):
            to_floats(array, given)


def test_numbers_and_truth_stay_and_dates_are_refused() -> None:
    np.testing.assert_array_equal(to_floats(pa.array([1, None, 3])), [1.0, math.nan, 3.0])
    np.testing.assert_array_equal(to_floats(pa.array([True, False, None])), [1.0, 0.0, math.nan])
    assert to_floats(pa.array([2**53 + 1])).tolist() == [2.0**53]
    for refused in (pa.array([datetime.date(2026, 1, 1)]), pa.array([b"0" * 16], pa.uuid())):
        with pytest.raises(pa.ArrowInvalid, match="dates, times and ids are not numbers"):
            to_floats(refused)
