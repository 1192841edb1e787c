import fsspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from satrap import Categorical, Numeric, Schema
from satrap.data import hash_ids, read
from satrap.data.formats.files import File
from tests.data.helpers_data import click_schema, error_of, numbers

N = Schema([], {"x": Numeric()})


def table(count, start=0):
    x = np.arange(start, start + count)
    return pa.table({"x": x, "a": [f"v{i % 7}" for i in x], "tags": [[int(i), None] * (i % 3) for i in x]})


def test_a_file_of_another_system_is_closed_once_it_has_been_read(tmp_path, monkeypatch):
    pq.write_table(table(100), tmp_path / "a.parquet")
    opened, plain = [], File.open
    monkeypatch.setattr(File, "local", None)
    monkeypatch.setattr(File, "open", lambda file: opened.append(plain(file)) or opened[-1])
    dataset = read(str(tmp_path / "a.parquet"), N, batch_size=30)
    assert sum(batch.size for batch in dataset) == 100
    assert opened
    assert all(handle.closed for handle in opened)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_rows_columns_and_counts(tmp_path, kind):
    for i in range(3):
        part = table(1000, 1000 * i)
        if kind == "parquet":
            pq.write_table(part, tmp_path / f"{i}.parquet", row_group_size=300)
        else:
            feather.write_feather(part, tmp_path / f"{i}.arrow", chunksize=300)
    schema = Schema([], {"x": Numeric(), "a": Categorical(dim=2), "tags": Categorical(dim=2, multi=True)})
    dataset = read(str(tmp_path / f"*.{kind}"), schema, batch_size=700)
    assert dataset.num_rows() == 3000
    batches = list(dataset)
    assert [b.size for b in batches] == [700] * 4 + [200]
    whole = pa.concat_tables(table(1000, 1000 * i) for i in range(3))
    assert np.array_equal(np.concatenate([b.numeric[:, 0] for b in batches]), np.arange(3000))
    assert np.array_equal(np.concatenate([b.ids["a"].values for b in batches]), hash_ids(whole["a"]))
    tags = np.concatenate([b.ids["tags"].values for b in batches])
    flat = [v for row in whole["tags"].to_pylist() for v in row if v is not None]
    assert np.array_equal(tags, hash_ids(flat))
    shares = [dataset.progress(b.position) for b in batches]
    assert shares == sorted(shares)


def test_a_shuffled_pass_holds_every_row_once_in_another_order_each_epoch(tmp_path):
    for i in range(3):
        pq.write_table(table(1000, 1000 * i), tmp_path / f"{i}.parquet", row_group_size=100)
    dataset = read(str(tmp_path / "*.parquet"), N, batch_size=64, shuffle=True)
    dataset = dataset.with_options(buffer_rows=256, seed=5)
    first, again, second = numbers(dataset), numbers(dataset), numbers(dataset, 1)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)
    assert sorted(first) == sorted(second) == list(range(3000))
    other = numbers(dataset.with_options(seed=6))
    assert not np.array_equal(first, other)
    # Files and row groups are mixed, not only neighbours.
    assert first[:256].max() - first[:256].min() > 256 * 2


def test_url():
    system = fsspec.filesystem("memory")
    with system.open("/parquet-test/a.parquet", "wb") as handle:
        pq.write_table(table(10), handle)
    assert numbers(read("memory://parquet-test/a.parquet", N)).tolist() == list(range(10))


def test_only_needed_columns_are_read(tmp_path):
    # A column of a type that cannot be read as an id does no harm when no feature names it.
    odd = pa.table({"x": [1, 2], "odd": [{"k": 1}, {"k": 2}]})
    pq.write_table(odd, tmp_path / "a.parquet")
    assert numbers(read(tmp_path / "a.parquet", N)).tolist() == [1, 2]
    ((raw, _),) = read(tmp_path / "a.parquet", N).tables_and_batches()
    assert raw.to_pydict() == odd.to_pydict()


def test_original_columns_and_batches_in_file_order(tmp_path):
    pq.write_table(table(1000), tmp_path / "a.parquet", row_group_size=300)
    dataset = read(tmp_path / "a.parquet", N, batch_size=128, shuffle=True)
    pairs = list(dataset.tables_and_batches())
    assert all(raw.num_rows == batch.size for raw, batch in pairs)
    assert pa.concat_tables([raw for raw, _ in pairs]).equals(table(1000))
    assert np.array_equal(np.concatenate([b.numeric[:, 0] for _, b in pairs]), np.arange(1000))


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_unreadable(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"not a table at all")
    error = error_of(lambda: read(path, N))
    assert "not a readable" in error.what
    assert str(path) in error.where


def test_truncated_parquet_data(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": np.arange(50_000) ** 3 % 1009}), path, use_dictionary=False)
    raw = bytearray(path.read_bytes())
    raw[100:1000] = bytes(range(90)) * 10
    path.write_bytes(raw)
    assert "not a readable Parquet" in error_of(lambda: list(read(path, N))).what


def test_errors_name_file_and_row(tmp_path):
    frame = pd.DataFrame({"user": ["u"] * 500, "clicked": [0] * 499 + [3], "price": ["1"] * 500})
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=200)
    error = error_of(lambda: list(read(tmp_path / "a.parquet", click_schema())))
    assert error.what == "value 3 is neither 0 nor 1"
    assert "a.parquet, row 500, column 'clicked'" in error.where
    frame["clicked"], frame.loc[321, "price"] = 1, "cheap"
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=200)
    error = error_of(lambda: list(read(tmp_path / "a.parquet", click_schema())))
    assert error.what == "value 'cheap' is not a number"
    assert "row 322, column 'price'" in error.where


def test_a_later_file_without_a_column(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"y": [1]}), tmp_path / "2.parquet")
    error = error_of(lambda: list(read(str(tmp_path / "*.parquet"), N)))
    assert error.where.endswith("2.parquet")


def test_empty(tmp_path):
    pq.write_table(pa.table({"x": pa.array([], pa.int64())}), tmp_path / "a.parquet")
    assert "no rows" in error_of(lambda: list(read(tmp_path / "a.parquet", N))).what
