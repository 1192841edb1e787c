import json
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap import Categorical, Numeric, Schema
from satrap.data import Join, RowSplit, prefetch, read
from satrap.errors import ConfigError
from tests.data.helpers_data import error_of, numbers, same
from tests.support.examples import examples

SCHEMA = Schema(
    ["y"],
    {"x": Numeric(), "u": Categorical(dim=2), "m": Categorical(dim=2, multi=True, separator="|")},
    group="u",
)
ROWS = (1000, 17, 0, 801)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """The same 1818 rows as CSV, gzip, Parquet and in memory; x counts the rows."""
    folder = tmp_path_factory.mktemp("sources")
    start, tables = 0, []
    for i, count in enumerate(ROWS):
        x = np.arange(start, start + count)
        start += count
        table = pa.table(
            {"x": x, "y": x % 2, "u": [f"u{v % 50}" for v in x], "m": ["|".join("abc"[: v % 4]) for v in x]}
        )
        kinds = pa.schema({"x": pa.int64(), "y": pa.int64(), "u": pa.string(), "m": pa.string()})
        table = table.cast(kinds)
        tables.append(table)
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=130)
        text = table.to_pandas().to_csv(index=False)
        (folder / f"{i}.csv").write_text(text)
        table.to_pandas().to_csv(folder / f"{i}.csv.gz", index=False)
    return {
        "parquet": str(folder / "*.parquet"),
        "csv": str(folder / "*.csv"),
        "gzip": str(folder / "*.csv.gz"),
        "memory": pa.concat_tables(tables),
    }


@pytest.fixture(scope="module", autouse=True)
def small_pieces():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("satrap.data.formats.csv.BLOCK_BYTES", 1500)
        patch.setattr("satrap.data.formats.parquet.READ_ROWS", 50)
        patch.setattr("satrap.data.formats.arrays.SLICE_ROWS", 90)
        yield


KINDS = st.sampled_from(["parquet", "csv", "gzip", "memory"])
SPLITS = st.sampled_from([None, RowSplit(10, (9,)), RowSplit(3, (0, 2)), RowSplit(7, (1, 2, 3, 4, 5, 6))])


@given(
    kind=KINDS,
    batch=st.integers(11, 400),
    shuffle=st.booleans(),
    buffer=st.integers(1, 900),
    split=SPLITS,
    workers=st.integers(1, 4),
    epoch=st.integers(0, 3),
    stop=st.integers(0, 1000),
    data=st.data(),
)
@settings(max_examples=examples(120), deadline=None)
def test_resuming_anywhere_equals_never_stopping(
    sources, kind, batch, shuffle, buffer, split, workers, epoch, stop, data
):
    worker = data.draw(st.integers(0, workers - 1))
    dataset = read(sources[kind], SCHEMA, batch_size=batch, shuffle=shuffle, rows=split)
    dataset = dataset.with_options(buffer_rows=buffer, workers=workers, worker=worker)
    whole = list(dataset.batches(epoch))
    stop %= len(whole)
    position = json.loads(json.dumps(whole[stop].position))
    assert len(json.dumps(position)) < 300
    again = list(dataset.batches(epoch, position))
    assert len(again) == len(whole) - stop - 1
    for one, other in zip(whole[stop + 1 :], again, strict=True):
        assert same(one, other)
        assert one.position == other.position


@given(kind=KINDS, shuffle=st.booleans(), split=SPLITS, workers=st.integers(1, 9), epoch=st.integers(0, 2))
@settings(max_examples=examples(80), deadline=None)
def test_workers_share_each_row_exactly_once_and_equally(sources, kind, shuffle, split, workers, epoch):
    parts = []
    for worker in range(workers):
        dataset = read(sources[kind], SCHEMA, batch_size=100, shuffle=shuffle, rows=split)
        dataset = dataset.with_options(buffer_rows=300, seed=3, worker=worker, workers=workers)
        part = numbers(dataset, epoch)
        assert dataset.num_rows() in (None, len(part))
        parts.append(part)
    index = np.arange(sum(ROWS))
    expected = index if split is None else index[np.isin(index % split.modulo, split.keep)]
    assert np.array_equal(np.sort(np.concatenate(parts)), expected)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_all_kinds_give_the_same_batches_in_file_order(sources):
    passes = [list(read(source, SCHEMA, batch_size=256)) for source in sources.values()]
    assert [b.size for b in passes[0]] == [256] * 7 + [26]
    for other in passes[1:]:
        assert all(same(a, b) for a, b in zip(passes[0], other, strict=True))


def test_two_passes_at_once_do_not_disturb_each_other(sources):
    dataset = read(sources["parquet"], SCHEMA, batch_size=100, shuffle=True)
    one, two = dataset.batches(), dataset.batches()
    assert all(same(a, b) for a, b in zip(one, two, strict=True))
    ahead = prefetch(dataset.batches())
    assert all(same(a, b) for a, b in zip(ahead, dataset.batches(), strict=True))


def test_a_worker_without_rows_ends_at_once_and_quietly():
    dataset = read({"x": [1]}, Schema([], {"x": Numeric()}))
    assert sum(len(numbers(dataset.with_options(worker=w, workers=3))) for w in range(3)) == 1


def test_a_position_of_another_run_is_refused(sources):
    dataset = read(sources["csv"], SCHEMA, batch_size=100, shuffle=True)
    position = next(iter(dataset)).position
    for other, epoch in (
        (dataset, 1),
        (dataset.with_options(batch_size=50), 0),
        (dataset.with_options(seed=1), 0),
    ):
        with pytest.raises(ConfigError, match="belongs to other data"):
            next(other.batches(epoch, position))


def test_a_position_of_data_in_order_does_not_depend_on_the_seed(sources):
    dataset = read(sources["csv"], SCHEMA, batch_size=100, shuffle=False)
    position = next(iter(dataset)).position
    whole = list(dataset)
    left = list(dataset.with_options(seed=1, buffer_rows=7).batches(0, position))
    assert len(left) == len(whole) - 1
    assert all(same(a, b) for a, b in zip(left, whole[1:], strict=True))


def test_impossible_settings():
    schema = Schema([], {"x": Numeric()})
    for bad in ({"batch_size": 0}, {"batch_size": 2.5}, {"workers": 0}, {"worker": 1}, {"buffer_rows": -1}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            read({"x": [1]}, schema).with_options(**bad)
    for modulo, keep in ((0, (0,)), (10, ()), (10, (10,))):
        with pytest.raises(ConfigError, match="invalid"):
            RowSplit(modulo, keep)
    with pytest.raises(ConfigError, match="format 'xml' is unknown"):
        read(__file__, schema, format="xml")
    with pytest.raises(ConfigError, match="unknown setting 'batchsize'"):
        read({"x": [1]}, schema).with_options(batchsize=3)


def test_nothing_left_after_the_split():
    dataset = read({"x": [1, 2]}, Schema([], {"x": Numeric()}), rows=RowSplit(10, (9,)))
    assert "remain after the row split" in error_of(lambda: list(dataset)).what


def test_a_small_file_is_shuffled_as_a_whole():
    x = np.arange(100_000)
    dataset = read({"x": x}, Schema([], {"x": Numeric()}), shuffle=True, batch_size=1000)
    first = next(iter(dataset)).numeric[:, 0]
    # 1000 draws without replacement from 0..99999: mean 50000, deviation of the mean about 910.
    assert abs(first.mean() - 50_000) < 5 * 910
    assert len(set(first.tolist())) == 1000


def test_memory_is_flat(tmp_path):
    """Five times the rows must not take more memory: Python's and Arrow's peaks are compared."""
    schema = Schema([], {"x": Numeric(), "u": Categorical(dim=2)})
    join = Join(source={"u": np.arange(100), "k": np.arange(100)}, on="u")

    def peak(rows):
        path = tmp_path / f"{rows}.parquet"
        x = np.arange(rows)
        pq.write_table(pa.table({"x": x, "u": x % 1000}), path, row_group_size=10_000)
        dataset = read(path, schema, batch_size=512, shuffle=True, join=[join])
        dataset = dataset.with_options(buffer_rows=10_000)
        tracemalloc.start()
        arrow = max(pa.total_allocated_bytes() for _ in dataset)
        python = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return arrow + python

    peak(10_000)
    small, large = peak(20_000), peak(100_000)
    assert large < small * 1.3


@pytest.mark.parametrize(
    ("kind", "multi"),
    [
        (pa.map_(pa.string(), pa.int64()), True),
        (pa.struct([("x", pa.int64())]), True),
        (pa.struct([("x", pa.int64())]), False),
        (pa.list_view(pa.int64()), True),
        (pa.list_(pa.list_(pa.int64())), True),
        (pa.list_(pa.struct([("x", pa.int64())])), True),
    ],
    ids=str,
)
def test_values_that_are_no_ids_get_advice_that_can_be_followed(kind, multi):
    schema = Schema([], {"a": Categorical(dim=2, multi=multi)})
    table = pa.table({"a": pa.nulls(2, kind)})
    error = error_of(lambda: list(read(table, schema)))
    assert "multi" not in error.fix
    assert "write" in error.fix
    lists = pa.table({"a": pa.nulls(2, pa.list_(pa.int64()))})
    single = Schema([], {"a": Categorical(dim=2)})
    assert "multi: true" in error_of(lambda: list(read(lists, single))).fix


def test_files_of_two_formats_in_one_list_are_refused(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "b.parquet")
    (tmp_path / "a.csv").write_text("a\n1\n")
    paths = [str(tmp_path / name) for name in ("a.csv", "b.parquet")]
    error = error_of(lambda: read(paths, Schema([], {"a": Categorical(dim=2)})))
    assert "a.csv is csv" in error.what
    assert "b.parquet is parquet" in error.what


def test_integers_of_more_than_64_bits_are_named():
    for values in ([1, 2**64], [-1, 2**63]):
        error = error_of(
            lambda values=values: list(read({"a": values}, Schema([], {"a": Categorical(dim=2)})))
        )
        assert "64 bits" in error.what
        assert "text" in error.fix
