import datetime
import uuid
from decimal import Decimal
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from satrap import launch
from satrap.config import load
from satrap.errors import DataError
from satrap.launch.folder.run_folder import RunFolder
from satrap.launch.predictions import output_columns, writer_of
from tests.launch.runs import frame, make_recipe

SCORE = "clicked_probability"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("predictions")
    return launch.train(load(make_recipe(folder), ["training.steps=5"]), str(folder / "run")).folder


def scored(run: RunFolder, inputs: list[Path], output: Path, columns: list[str] | None = None) -> pa.Table:
    """What `predict` writes, checked against the scores of each file on its own."""
    launch.predict(run, [str(path) for path in inputs], output, columns=columns)
    table = pc.read_csv(output) if output.suffix == ".csv" else pq.read_table(output)
    alone = []
    for i, path in enumerate(inputs):
        launch.predict(run, [str(path)], output.with_name(f"alone{i}.parquet"), columns=[])
        alone.append(pq.read_table(output.with_name(f"alone{i}.parquet"), columns=[SCORE]))
    expected = pa.concat_tables(alone)[SCORE].to_numpy()
    np.testing.assert_allclose(table[SCORE].to_numpy(), expected, rtol=1e-6)
    return table


def rows(count: int, seed: int) -> pa.Table:
    table = pa.Table.from_pandas(frame(count, seed=seed).drop(columns="clicked"), preserve_index=False)
    return table.append_column("row", pa.array([f"r{seed}.{i}" for i in range(count)]))


def written(path: Path, table: pa.Table) -> Path:
    match path.suffix:
        case ".csv":
            pc.write_csv(table, path)
        case ".arrow":
            feather.write_feather(table, path)
        case _:
            pq.write_table(table, path)
    return path


@pytest.mark.parametrize(
    ("kind", "output"), [("csv", "out.csv"), ("parquet", "out.parquet"), ("arrow", "out.csv")]
)
def test_columns_of_several_files_are_put_together_by_their_names(
    run: RunFolder, tmp_path: Path, kind: str, output: str
) -> None:
    """Another order, one column more, and one fewer: each row comes with its own values and score."""
    one, other, more, fewer = rows(30, 1), rows(20, 2), rows(10, 3), rows(5, 4)
    one = one.append_column("city", pa.array(["Bern"] * 30))
    other = other.append_column("city", pa.array(["Oslo"] * 20)).select(
        ["row", "price", "city", "item", "user"]
    )
    more = more.append_column("city", pa.array(["Rome"] * 10)).append_column("note", pa.array(["x"] * 10))
    files = [
        written(tmp_path / f"{i}.{kind}", table.slice(0)) for i, table in enumerate([one, other, more, fewer])
    ]
    found = scored(run, files, tmp_path / output).to_pandas()
    assert list(found) == ["user", "item", "price", "row", "city", "note", SCORE]
    parts = [part.to_pandas() for part in (one, other, more, fewer)]
    expected = pd.concat(parts, ignore_index=True)
    for name in ("item", "price"):  # CSV has only texts
        assert pd.to_numeric(found[name]).tolist() == expected[name].tolist(), name
    for name in ("user", "row"):
        assert found[name].tolist() == expected[name].tolist(), name
    assert found["city"].fillna("").tolist() == ["Bern"] * 30 + ["Oslo"] * 20 + ["Rome"] * 10 + [""] * 5
    assert found["note"].fillna("").tolist() == [""] * 50 + ["x"] * 10 + [""] * 5


def test_a_column_gets_the_type_that_holds_the_values_of_all_files(run: RunFolder, tmp_path: Path) -> None:
    parts = {
        "count": [pa.array([1, 2], pa.int32()), pa.array([3, 2**40]), pa.nulls(2)],
        "city": [pa.nulls(2), pa.array(["Bern", None]), pa.array(["Oslo", "Bern"]).dictionary_encode()],
        "size": [pa.array([1, 2]), pa.array([0.5, None]), pa.array([7, 8], pa.int8())],
        "when": [
            pa.array([1, 2], pa.timestamp("ms")),
            pa.array([3, None], pa.timestamp("us")),
            pa.array([4, 5], pa.timestamp("ms")),
        ],
    }
    files = []
    for i in range(3):
        table = rows(2, i)
        for name, arrays in parts.items():
            table = table.append_column(
                pa.field(name, arrays[i].type, nullable=i > 0 or arrays[i].null_count > 0), arrays[i]
            )
        files.append(written(tmp_path / f"{i}.parquet", table))
    found = scored(run, files, tmp_path / "out.parquet")
    assert found["count"].to_pylist() == [1, 2, 3, 2**40, None, None]
    assert found["city"].to_pylist() == [None, None, "Bern", None, "Oslo", "Bern"]
    assert found["size"].to_pylist() == [1, 2, 0.5, None, 7, 8]
    assert found["when"].cast(pa.int64()).to_pylist() == [1000, 2000, 3, None, 4000, 5000]
    launch.predict(run, list(map(str, files)), tmp_path / "out.csv", columns=["count"])
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", str(2**40), "", ""]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (pa.array([1]), pa.array(["a"])),
        (pa.array([[1]]), pa.array([1])),
        (pa.array([Decimal("1.10")]), pa.array([1.1])),
        (pa.array([1], pa.timestamp("s")), pa.array([1], pa.timestamp("s", "UTC"))),
        (pa.array([2**53 + 1]), pa.array([0.5])),
        (pa.array([2**64 - 1], pa.uint64()), pa.array([1])),
    ],
    ids=lambda array: str(array.type),
)
def test_types_that_no_column_holds_are_refused_by_name_in_parquet_and_written_to_csv(
    run: RunFolder, tmp_path: Path, first: pa.Array, second: pa.Array
) -> None:
    files = [
        written(tmp_path / f"{i}.parquet", rows(1, i).append_column("odd", array))
        for i, array in enumerate((first, second))
    ]
    names = [str(path) for path in files]
    with pytest.raises(DataError, match="column 'odd'") as caught:
        launch.predict(run, names, tmp_path / "out.parquet")
    assert "--keep" in caught.value.fix
    assert launch.predict(run, names, tmp_path / "out.parquet", columns=["row", "user"]) == 2
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["row", "user", SCORE]
    if not pa.types.is_list(first.type):
        assert launch.predict(run, names, tmp_path / "out.csv") == 2
    assert not list(tmp_path.glob(".*.partial"))


KEY = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")
TEXTS = {
    "bytes": (pa.array([b"Z\xc3\xbcrich", None]), "Zürich"),
    "large bytes": (pa.array([b"Bern", None], pa.large_binary()), "Bern"),
    "fixed bytes": (pa.array([b"Bern", None], pa.binary(4)), "Bern"),
    "bytes view": (pa.array([b"Bern", None], pa.binary_view()), "Bern"),
    "text view": (pa.array(["Bern", None], pa.string_view()), "Bern"),
    "uuid": (pa.ExtensionArray.from_storage(pa.uuid(), pa.array([KEY.bytes, None], pa.binary(16))), str(KEY)),
    "dictionary": (pa.array(["Bern", None]).dictionary_encode(), "Bern"),
    "runs": (pa.RunEndEncodedArray.from_arrays([1, 2], pa.array(["Bern", None])), "Bern"),
    "json": (pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(["{}", None])), "{}"),
    "decimal": (pa.array([Decimal("1.20"), None]), "1.20"),
    "date": (pa.array([datetime.date(2024, 1, 31), None]), "2024-01-31"),
    "nothing": (pa.nulls(2), ""),
}


@pytest.mark.parametrize("name", TEXTS)
def test_values_of_every_type_of_text_are_written(name: str, tmp_path: Path) -> None:
    array, text = TEXTS[name]
    table = pa.table({"id": ["a", "b"], "x": array})
    columns = output_columns([("file", table.schema)], {SCORE: pa.float32()}, None)
    for output in ("x.csv", "x.parquet"):
        with writer_of(tmp_path / f".{output}.partial", columns) as writer:
            writer.write(table, np.array([[0.25], [0.5]], np.float32))
    found = pd.read_csv(tmp_path / ".x.csv.partial", dtype=str, keep_default_na=False)
    assert found.to_dict("list") == {"id": ["a", "b"], "x": [text, ""], SCORE: ["0.25", "0.5"]}
    assert pq.read_table(tmp_path / ".x.parquet.partial").num_rows == 2


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_what_a_format_cannot_hold_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    refused = {
        "csv": [pa.array([b"\xff"]), pa.array([[1]]), pa.array([{"a": 1}]), pa.array([(1, 2, 3)], INTERVAL)],
        "parquet": [pa.array([(1, 2, 3)], INTERVAL)],
    }
    for array in refused[kind]:
        table = pa.table({"id": ["a"], "x": array})
        columns = output_columns([("file", table.schema)], {SCORE: pa.float32()}, None)
        with (
            pytest.raises(DataError, match="column 'x'"),
            writer_of(tmp_path / f".x.{kind}.partial", columns) as writer,
        ):
            writer.write(table, np.zeros((1, 1), np.float32))


INTERVAL = pa.month_day_nano_interval()


def test_only_the_columns_asked_for_are_written_in_that_order(run: RunFolder, tmp_path: Path) -> None:
    odd = rows(40, 1).append_column(SCORE, pa.array([b"\xff"] * 40))
    path = written(tmp_path / "in.parquet", odd)
    found = scored(run, [path], tmp_path / "out.csv", ["row", "user"])
    assert found.column_names == ["row", "user", SCORE]
    assert found["user"].to_pylist() == odd["user"].to_pylist()
    with pytest.raises(DataError, match="the input has no column 'rows'") as caught:
        launch.predict(run, [str(path)], tmp_path / "other.csv", columns=["rows"])
    assert "did you mean 'row'?" in caught.value.fix
    with pytest.raises(DataError, match="already has a column 'clicked_probability'"):
        launch.predict(run, [str(path)], tmp_path / "other.csv")


def test_a_later_file_without_a_needed_column_is_refused_before_the_first_row(
    run: RunFolder, tmp_path: Path
) -> None:
    files = [
        written(tmp_path / "0.csv", rows(3, 0)),
        written(tmp_path / "1.csv", rows(3, 1).drop_columns("item")),
    ]
    with pytest.raises(DataError, match="column 'item' is missing") as caught:
        launch.predict(run, [str(path) for path in files], tmp_path / "out.csv")
    assert caught.value.where.endswith("1.csv")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.csv", "1.csv"]
