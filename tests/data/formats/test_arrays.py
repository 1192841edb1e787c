import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from satrap import Categorical, Numeric, Schema
from satrap.data import hash_ids, read
from tests.data.helpers_data import error_of, numbers

SCHEMA = Schema([], {"x": Numeric(), "a": Categorical(dim=2), "m": Categorical(dim=2, multi=True)})
X, A_, M = [1.0, None, 3.0], ["p", None, "q"], [["u", "v"], None, []]


@pytest.mark.parametrize(
    "source",
    [
        {"x": X, "a": A_, "m": M},
        {"x": np.array([1, np.nan, 3]), "a": np.array(A_, object), "m": pa.array(M)},
        pa.table({"x": X, "a": A_, "m": M}),
        pa.record_batch({"x": X, "a": A_, "m": M}),
        pd.DataFrame({"x": X, "a": A_, "m": M}),
        pd.DataFrame({"x": X, "a": pd.Categorical(A_), "m": M}),
        pa.concat_tables([pa.table({"x": X, "a": A_, "m": M}).slice(i, 1) for i in range(3)]),
    ],
    ids=["lists", "arrays", "table", "batch", "frame", "pandas categories", "chunks"],
)
def test_all_kinds_give_the_same_batch(source):
    dataset = read(source, SCHEMA)
    (batch,) = dataset
    assert dataset.num_rows() == 3
    assert batch.numeric[:, 0].tolist() == [1, 0, 3]
    assert np.array_equal(batch.ids["a"].values, hash_ids(["p", "", "q"]))
    assert batch.ids["m"].offsets.tolist() == [0, 2, 2, 2]
    assert np.array_equal(batch.ids["m"].values, hash_ids(["u", "v"]))


@pytest.mark.parametrize("kind", ["f4", "f8", "i1", "u8", "?"])
@pytest.mark.parametrize("frame", [False, True], ids=["arrays", "frame"])
def test_columns_of_one_array_of_rows_read_like_separate_ones(kind, frame):
    rows = np.random.default_rng(1).integers(0, 100, (5000, 3)).astype(kind)
    if kind == "f8":
        rows[::7] = np.nan
    schema = Schema([], {"x": Numeric(), "y": Numeric(), "a": Categorical(dim=2)})
    views = dict(zip("xya", rows.T, strict=True))
    assert not views["x"].flags.c_contiguous
    separate = read({name: values.copy() for name, values in views.items()}, schema, batch_size=5000)
    together = read(pd.DataFrame(rows, columns=list("xya")) if frame else views, schema, batch_size=5000)
    [expected], [batch] = separate, together
    assert np.array_equal(batch.numeric, expected.numeric)
    assert np.array_equal(batch.ids["a"].values, expected.ids["a"].values)


def test_masked_columns_of_one_array_of_rows_have_missing_values():
    rows = np.ma.masked_array(np.array([[1.0, 9.0], [2.0, 9.0], [3.0, 9.0]]), mask=[[0, 0], [1, 0], [0, 0]])
    schema = Schema([], {"x": Numeric(), "a": Categorical(dim=2)})
    [batch] = read({"x": rows[:, 0], "a": rows[:, 0]}, schema)
    assert batch.numeric[:, 0].tolist() == [1, 0, 3]
    assert np.array_equal(batch.ids["a"].values, hash_ids([1.0, None, 3.0]))


def test_views_of_different_lengths_are_an_error():
    rows = np.zeros((10, 2))
    error = error_of(lambda: read({"x": rows[:, 0], "a": rows[:4, 1], "m": M}, SCHEMA))
    assert "rows" in str(error)


def test_matrix_is_a_bag_of_fixed_length():
    schema = Schema([], {"m": Categorical(dim=2, multi=True)})
    (batch,) = read({"m": np.arange(6).reshape(3, 2)}, schema)
    assert batch.ids["m"].offsets.tolist() == [0, 2, 4, 6]
    assert np.array_equal(batch.ids["m"].values, hash_ids(np.arange(6)))


def test_many_slices():
    x = np.arange(30_000)
    dataset = read({"x": x}, Schema([], {"x": Numeric()}), batch_size=4000)
    assert np.array_equal(numbers(dataset), x)
    assert np.array_equal(np.sort(numbers(dataset.with_options(shuffle=True))), x)


def test_errors():
    error = error_of(lambda: read({"x": [1, 2], "a": ["p"], "m": [[], []]}, SCHEMA))
    assert error.what == "column 'a' has 1 rows, but column 'x' has 2"
    error = error_of(lambda: read({"x": [1, "b"], "a": ["p", "q"], "m": [[], []]}, SCHEMA))
    assert error.where == "dict, column 'x'"
    error = error_of(lambda: list(read({"x": [1], "a": [["p"]], "m": [[]]}, SCHEMA)))
    assert error.where == "dict, column 'a'"
    assert "multi: true" in error.fix
    assert "did you mean 'aa'" in error_of(lambda: read({"x": [1], "aa": ["p"], "m": [[]]}, SCHEMA)).fix
    assert "no rows" in error_of(lambda: list(read({"x": [], "a": [], "m": []}, SCHEMA))).what
