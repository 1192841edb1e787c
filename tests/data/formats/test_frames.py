"""Tables and streams of other libraries give the batches of a dict with the same columns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pytest
import torch

import satrap
from satrap.data import RowSplit, read
from satrap.errors import ConfigError, DataError
from tests.data.helpers_data import numbers

COLUMNS: dict[str, Any] = {
    "user": ["a", "b", None, "a"],
    "price": [1.0, None, 3.0, 4.0],
    "tags": [["p", "q"], None, [], ["p"]],
    "clicked": [0, 1, 0, 1],
}
SCHEMA = satrap.Schema(
    ["clicked"],
    {
        "user": satrap.Categorical(dim=2),
        "tags": satrap.Categorical(dim=2, multi=True),
        "price": satrap.Numeric(),
    },
)
NUMBERS = satrap.Schema([], {"x": satrap.Numeric()})


class Capsule:
    """Only Arrow's interface, and its rows again in each pass."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(requested_schema)


class Interchange:
    """Only the older interface of data frames."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __dataframe__(self, **arguments: Any) -> Any:
        return self._table.__dataframe__(**arguments)


def polars(columns: Any) -> Any:
    return pytest.importorskip("polars").DataFrame(columns)


def polars_categories(columns: Any) -> Any:
    pl = pytest.importorskip("polars")
    return pl.DataFrame(columns).with_columns(pl.col("user").cast(pl.Categorical))


def duckdb(columns: Any) -> Any:
    return pytest.importorskip("duckdb").arrow(pa.table(columns))


def hugging_face(columns: Any) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


KINDS: dict[str, Callable[[Any], Any]] = {
    "capsule": lambda columns: Capsule(pa.table(columns)),
    "reader": lambda columns: pa.table(columns).to_reader(),
    "dataset of pyarrow": lambda columns: pyarrow.dataset.dataset(pa.table(columns)),
    "pandas": pd.DataFrame,
    "polars": polars,
    "polars categories": polars_categories,
    "polars, lazy": lambda columns: polars(columns).lazy(),
    "columns of polars": lambda columns: {name: polars(columns)[name] for name in columns},
    "duckdb": duckdb,
    "hugging face": hugging_face,
    "hugging face, shuffled": lambda columns: hugging_face(columns).select([3, 2, 1, 0]).select([3, 2, 1, 0]),
    "hugging face, iterable": lambda columns: hugging_face(columns).to_iterable_dataset(),
}


def values(batch: satrap.Batch) -> list[Any]:
    assert batch.numeric is not None
    assert batch.labels is not None
    arrays = [batch.numeric, batch.labels, *(jagged.values for jagged in batch.ids.values())]
    return [array.tolist() for array in arrays]


@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_give_the_same_batch(kind: str) -> None:
    dataset = read(KINDS[kind](COLUMNS), SCHEMA)
    (expected,) = read(COLUMNS, SCHEMA)
    passes = 1 if kind == "reader" else 3
    for _ in range(passes):
        (batch,) = dataset
        assert values(batch) == values(expected)
    assert dataset.columns == tuple(COLUMNS)


def test_a_frame_with_the_older_interface_is_a_table() -> None:
    dataset = read(Interchange(pa.table({"x": [1.0, 2.0]})), NUMBERS)
    assert (dataset.num_rows(), numbers(dataset).tolist()) == (2, [1, 2])


def test_a_join_takes_them_as_well() -> None:
    side = satrap.data.Join(source=Capsule(pa.table({"key": [1, 2], "x": [10.0, 20.0]})), on="key")
    assert numbers(read({"key": [2, 1, 2]}, NUMBERS, join=[side])).tolist() == [20, 10, 20]


def test_a_stream_that_is_over_says_so() -> None:
    dataset = read(pa.table({"x": [1.0]}).to_reader(), NUMBERS)
    assert dataset.num_rows() is None
    list(dataset)
    with pytest.raises(DataError, match=r"(?s)can be read only once.*RecordBatchReader.*read_all\(\)"):
        list(dataset)


def test_a_stream_that_gives_nothing_the_second_time_says_so() -> None:
    stream, tables = Capsule(pa.table({"x": [1.0, 2.0]})), iter([pa.table({"x": [1.0, 2.0]})])
    stream.__class__ = type(
        "Once", (Capsule,), {"__arrow_c_stream__": lambda self, _=None: _stream_of(tables)}
    )
    dataset = read(stream, NUMBERS)
    list(dataset)
    with pytest.raises(DataError, match="can be read only once"):
        list(dataset)


def _stream_of(tables: Any) -> Any:
    return next(tables, pa.table({"x": pa.array([], pa.float64())})).__arrow_c_stream__()


def test_an_epoch_more_than_the_stream_has_is_an_error() -> None:
    reader = pa.table({"x": np.arange(8.0), "clicked": [0, 1] * 4}).to_reader()
    schema = satrap.Schema(["clicked"], {"x": satrap.Numeric()})
    trainer = satrap.Trainer(satrap.models.create("lr", schema), schema, mode="sync")
    with pytest.raises(DataError, match="can be read only once"):
        trainer.fit(read(reader, schema), epochs=2)
    trainer.close()


def test_an_empty_stream_is_empty() -> None:
    with pytest.raises(DataError, match="no rows: the data is empty"):
        list(read(pa.table({"x": pa.array([], pa.float64())}).to_reader(), NUMBERS))


@pytest.mark.parametrize("rows", [None, RowSplit(3, (0, 2))])
def test_positions_and_shares_of_a_stream(rows: RowSplit | None) -> None:
    x = np.arange(100_000.0)
    dataset = read(Capsule(pa.table({"x": x})), NUMBERS, batch_size=1000, rows=rows)
    expected = x if rows is None else x[np.isin(np.arange(len(x)) % 3, rows.keep)]
    assert np.array_equal(numbers(dataset), expected)
    batches = list(dataset)
    for place in (0, 40, 60):
        rest = [batch.numeric for batch in dataset.batches(0, batches[place].position)]
        assert np.array_equal(np.concatenate(rest)[:, 0], expected[(place + 1) * 1000 :])  # type: ignore[arg-type]
    shares = [numbers(dataset.with_options(worker=worker, workers=3)) for worker in range(3)]
    assert np.array_equal(np.sort(np.concatenate(shares)), expected)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    shuffled = numbers(dataset.with_options(shuffle=True, buffer_rows=10_000))
    assert not np.array_equal(shuffled, expected)
    assert np.array_equal(np.sort(shuffled), expected)


def test_a_stream_has_its_original_columns() -> None:
    dataset = read(Capsule(pa.table({"x": [1.0, 2.0], "name": ["a", "b"]})), NUMBERS)
    ((table, batch),) = dataset.tables_and_batches()
    assert (table.to_pydict()["name"], batch.size) == (["a", "b"], 2)


def test_a_stream_is_not_read_for_its_fingerprint() -> None:
    dataset = read(pa.table({"x": [1.0]}).to_reader(), NUMBERS)
    assert dataset.fingerprint()[0]["name"] == "RecordBatchReader"
    assert numbers(dataset).tolist() == [1]


def test_tensors_are_columns() -> None:
    dataset = read({"x": torch.tensor([1, 2], dtype=torch.bfloat16, requires_grad=False)}, NUMBERS)
    assert numbers(dataset).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (pa.chunked_array([[1.0]]), "a ChunkedArray of pyarrow is not a table"),
        (5, r"data source of type int \(builtins\) is not supported"),
        ([Capsule(pa.table({"x": [1.0]}))], r"type Capsule \(.*test_frames\) is not supported"),
    ],
)
def test_other_types_are_named(source: Any, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        read(source, NUMBERS)


def test_a_reader_after_a_part_of_its_rows_is_refused() -> None:
    table = pa.table({"x": np.arange(100.0)})
    dataset = read(
        pa.RecordBatchReader.from_batches(table.schema, table.to_batches(10)), NUMBERS, batch_size=5
    )
    next(dataset.batches())
    with pytest.raises(DataError, match="can be read only once"):
        list(dataset.batches())
