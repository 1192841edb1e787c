import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from satrap import Categorical, Numeric, Schema
from satrap.data import Join, hash_ids, read
from satrap.data.dataset import open_source
from satrap.data.formats.join import SideTable
from satrap.errors import ConfigError, DataError
from tests.data.helpers_data import Counted, error_of

SIDE = {
    "id": [1, 2, 3],
    "author": ["Ann|Bo", None, "Cy"],
    "pages": [100, 200, None],
    "tags": [["x"], [], ["y", "z"]],
}
SCHEMA = Schema(
    [],
    {
        "book": Categorical(dim=2),
        "author": Categorical(dim=2, multi=True, separator="|"),
        "whole": Categorical(dim=2, column="author"),
        "pages": Numeric(missing=-1),
        "tags": Categorical(dim=2, multi=True),
    },
)


@pytest.mark.parametrize("as_text", [False, True])
def test_left_join(tmp_path, as_text):
    data = {"book": ["2", "1", "9", "", "1"] if as_text else [2, 1, 9, None, 1]}
    (batch,) = read(data, SCHEMA, join=[Join(source=SIDE, on="book", key="id")])
    assert np.array_equal(batch.ids["author"].values, hash_ids(["Ann", "Bo", "Ann", "Bo"]))
    assert batch.ids["author"].offsets.tolist() == [0, 0, 2, 2, 2, 4]
    assert np.array_equal(batch.ids["whole"].values, hash_ids([None, "Ann|Bo", None, None, "Ann|Bo"]))
    assert batch.numeric[:, 0].tolist() == [200, 100, -1, -1, 100]
    assert batch.ids["tags"].offsets.tolist() == [0, 0, 1, 1, 1, 2]


def test_side_table_from_csv_with_prefix_and_several_pieces(tmp_path):
    (tmp_path / "side.csv").write_text("book,kind\n" + "".join(f"{i},k{i % 3}\n" for i in range(1000)))
    schema = Schema([], {"kind": Categorical(dim=2, column="b.kind")})
    join = Join(source=str(tmp_path / "side.csv"), on="book", prefix="b.")
    keys = np.random.default_rng(0).integers(0, 1100, 20_000)
    batches = list(read({"book": keys}, schema, join=[join], batch_size=4096))
    expected = hash_ids([f"k{k % 3}" if k < 1000 else None for k in keys])
    assert np.array_equal(np.concatenate([b.ids["kind"].values for b in batches]), expected)


def test_missing_keys_join_nothing_however_many_there_are():
    side = {"id": [1, None, None], "pages": [100, 7, 8]}
    schema = Schema([], {"pages": Numeric(missing=-1)})
    (batch,) = read({"book": [None, 1]}, schema, join=[Join(source=side, on="book", key="id")])
    assert batch.numeric[:, 0].tolist() == [-1, 100]


def test_a_side_table_of_many_rows():
    count = 70_000
    side = SideTable(Join(source=None, on="id"), open_source({"id": range(count), "pages": range(count)}))
    keys = [0, 127, 128, 32_767, 32_768, 65_535, 65_536, count - 1, count]
    table = side.attach(pa.table({"id": keys}), ["pages"])
    assert table.column("pages").to_pylist() == [*keys[:-1], None]


def test_many_joined_columns_cost_no_copy_of_the_table_each():
    names, copied = [f"c{i}" for i in range(60)], []
    source = open_source({"id": [2, 1], **{name: [i, -i] for i, name in enumerate(names)}})
    side = SideTable(Join(source=None, on="id"), source)
    table = side.attach(Counted(pa.table({"id": [1, 2, 3]}), copied), names)
    assert table.column_names == ["id", *names]
    for i, name in enumerate(names):
        assert table.column(name).to_pylist() == [-i, i, None]
    assert sum(copied) <= 2 * 61


def test_the_joined_columns_are_not_among_the_original_ones():
    dataset = read({"book": [1]}, SCHEMA, join=[Join(source=SIDE, on="book", key="id")])
    ((raw, _),) = dataset.tables_and_batches()
    assert raw.schema.names == ["book"]


def test_errors():
    def run(side, **keywords):
        return lambda: read(
            {"book": [1], "author": ["x"]}, SCHEMA, join=[Join(source=side, on="book", **keywords)]
        )

    error = error_of(run({"id": [1, 2, 1], "pages": [1, 1, 1]}, key="id"))
    assert error.what == "key 1 appears more than once"
    assert "column 'book' is missing" in error_of(run({"boook": [1], "pages": [1]})).what
    assert "side table has no rows" in error_of(run({"book": [], "pages": []})).what
    with pytest.raises(ConfigError, match="column 'author' exists already"):
        run({"book": [1], "author": ["y"]})()


def test_a_side_table_of_parts_of_unlike_types(tmp_path) -> None:
    """Numbers and text are one column; lists and text are refused by name, unless they are not used."""
    pq.write_table(pa.table({"k": [1, 2], "x": [7, 8], "t": [["a"], []]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"k": ["3", "b"], "x": ["7", "z"], "t": ["a", "b"]}), tmp_path / "1.parquet")
    schema = Schema([], {"x": Categorical(dim=4)})
    data = {"k": ["1", "3", "b", "9", "2"]}
    join = Join(source=str(tmp_path / "*.parquet"), on="k", columns=["x"])
    [batch] = read(data, schema, join=[join])
    assert batch.ids["x"].values.tolist() == hash_ids(["7", "7", "z", None, "8"]).tolist()
    with pytest.raises(DataError, match=r"types without a common type: list<.*, string") as caught:
        read(data, schema, join=[Join(source=join.source, on="k")])
    assert caught.value.where.endswith("column 't'")
