"""Sources whose row counts are known: what each worker reads, where it stands, and how far that is."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from satrap import Categorical, Numeric, Schema
from satrap.data import hash_ids, read
from satrap.data.formats.arrays import MemorySource
from satrap.data.formats.files import find_files
from satrap.data.formats.parquet import ParquetSource
from satrap.data.source import RowSplit, Scan, ScanPiece
from tests.data.helpers_data import error_of

SOURCE = MemorySource(pa.table({"x": range(20_000), "y": range(20_000)}), "rows")
"""In parts of 8192, 8192 and 3616 rows."""


def scan(**options: Any) -> Scan:
    return Scan(ids=[], numbers=["x"], **options)


def rows_of(pieces: list[ScanPiece]) -> list[int]:
    for piece in pieces:
        assert piece.table.column_names == ["x"]
        assert piece.table.column("x").to_pylist() == piece.origin.rows.tolist()
    return [row for piece in pieces for row in piece.origin.rows.tolist()]


def test_a_worker_reads_its_range_of_rows_and_no_part_before_it() -> None:
    shares = [scan(worker=worker, workers=3) for worker in range(3)]
    pieces = [list(SOURCE.scan(share, None)) for share in shares]
    assert [rows_of(one) for one in pieces] == [
        list(range(6666)),
        list(range(6666, 13_333)),
        list(range(13_333, 20_000)),
    ]
    assert [SOURCE.num_rows(share) for share in shares] == [6666, 6667, 6667]
    assert [[piece.cursor for piece in one] for one in pieces] == [
        [[0, 0]],
        [[0, 6666], [1, 0]],
        [[1, 5141], [2, 0]],
    ]
    assert {piece.origin.file for one in pieces for piece in one} == {"rows"}
    assert all(piece.raw is None for one in pieces for piece in one)


def test_other_columns_come_along_if_they_are_asked_for_and_there() -> None:
    pieces = list(SOURCE.scan(scan(raw=["y", "other", "x"]), None))
    assert rows_of(pieces) == list(range(20_000))
    assert [piece.raw.column_names for piece in pieces if piece.raw is not None] == [["y", "x"]] * 3
    [piece, *_] = SOURCE.scan(scan(raw=[]), None)
    assert piece.raw is not None
    assert piece.raw.shape == (8192, 0)


@pytest.mark.parametrize("options", [{}, {"rows": RowSplit(10, (3, 4))}, {"order": (1, 2)}], ids=str)
def test_a_pass_goes_on_from_each_of_its_cursors(options: dict[str, Any]) -> None:
    for worker in range(2):
        share = scan(worker=worker, workers=2, **options)
        pieces = list(SOURCE.scan(share, None))
        assert len(rows_of(pieces)) == SOURCE.num_rows(share) == (2000 if "rows" in options else 10_000)
        for number, piece in enumerate(pieces):
            again = list(SOURCE.scan(share, piece.cursor))
            assert rows_of(again) == rows_of(pieces[number:])


@pytest.mark.parametrize(
    ("options", "cursor", "share"),
    [
        ({}, [0, 0], 0.0),
        ({}, [1, 0], 0.4096),
        ({}, [2, 1000], 0.8692),
        ({}, [3, 0], 1.0),
        ({"worker": 0, "workers": 2}, [1, 0], 0.8192),
        ({"worker": 0, "workers": 2}, [2, 0], 1.0),
        ({"worker": 1, "workers": 2}, [1, 1808], 0.0),
        ({"worker": 1, "workers": 2}, [0, 9], 0.0),
        ({"worker": 1, "workers": 2}, [2, 116], 0.65),
        ({"rows": RowSplit(2, (1,))}, [1, 0], 0.4096),
    ],
)
def test_progress_is_the_share_of_the_workers_rows(
    options: dict[str, Any], cursor: list[int], share: float
) -> None:
    assert SOURCE.progress(scan(**options), cursor) == pytest.approx(share, abs=1e-12)


def test_a_source_without_rows() -> None:
    empty = MemorySource(pa.table({"x": pa.array([], pa.int64())}), "rows")
    assert (empty.num_rows(scan()), empty.progress(scan(), [0, 0])) == (0, 0.0)
    assert list(empty.scan(scan(), None)) == []


def test_parts_are_shuffled_file_by_file_and_each_row_comes_once() -> None:
    counts = [[2, 0, 3, 1], [4, 5]]

    class Counted(MemorySource):
        def __init__(self) -> None:
            super(MemorySource, self).__init__(
                "rows", ["one", "two"], [pa.schema([("x", pa.int64())])] * 2, counts
            )

    source = Counted()
    assert [(part.file, part.index, part.file_row, part.rows) for part in source._parts] == [
        *((0, 0, 0, 2), (0, 2, 2, 3), (0, 3, 5, 1), (1, 0, 0, 4), (1, 1, 4, 5))
    ]
    assert source._order(None).tolist() == [0, 1, 2, 3, 4]
    orders = {tuple(source._order((seed, 0)).tolist()) for seed in range(400)}
    of_files = [(*one, *two) for one in permutations((0, 1, 2)) for two in permutations((3, 4))]
    assert orders == {*of_files, *(order[3:] + order[:3] for order in of_files)}


def test_a_file_is_cut_between_its_parts(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"x": np.arange(250)}), path, row_group_size=100)
    source = ParquetSource(find_files(str(path)))
    size = path.stat().st_size
    assert [source.offset([place, 7]) for place in range(4)] == [
        0,
        size * 100 // 250,
        size * 200 // 250,
        size,
    ]
    assert list(source.cursors(None) or ()) == [[0, 0], [1, 0], [2, 0]]
    assert list(source.cursors([1, 7]) or ()) == [[1, 0], [2, 0]]


PARTS = Schema(
    ["clicked"],
    {"user": Categorical(dim=2), "city": Categorical(dim=2), "year": Numeric(missing=-1.0)},
)


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """A folder of parts by year and city, with marker files of other programs."""
    table = pa.table(
        {
            "user": ["a", "b", "c", "d"],
            "year": [2023, 2024, 2024, None],
            "city": ["Bad Ems", "Oslo", "Oslo", "Oslo"],
            "clicked": [0, 1, 0, 1],
        }
    )
    pq.write_to_dataset(table, tmp_path / "rows", partition_cols=["year", "city"])
    for name in ("_SUCCESS", ".hidden.parquet", "_metadata.parquet"):
        (tmp_path / "rows" / name).write_text("")
        (tmp_path / "rows" / "year=2024" / name).write_text("")
    return tmp_path / "rows"


@pytest.mark.parametrize("path", ["", "/", "/year=*/**/*-0.parquet", "/**/*-0.parquet"])
def test_names_of_folders_are_columns(parts: Path, path: str) -> None:
    dataset = read(f"{parts}{path}", PARTS)
    assert dataset.columns == ("user", "clicked", "year", "city")
    (batch,) = dataset
    assert batch.numeric[:, 0].tolist() == [2023, 2024, 2024, -1]
    assert np.array_equal(batch.ids["city"].values, hash_ids(["Bad Ems", "Oslo", "Oslo", "Oslo"]))
    assert np.array_equal(batch.ids["user"].values, hash_ids(["a", "b", "c", "d"]))
    ((table, _),) = [
        pair for pair in dataset.tables_and_batches() if "Bad Ems" in pair[0]["city"].to_pylist()
    ]
    assert table.to_pylist() == [{"user": "a", "clicked": 0, "year": "2023", "city": "Bad Ems"}]


def test_columns_of_folders_alone_have_the_rows_of_the_files(parts: Path) -> None:
    (batch,) = read(parts, Schema([], {"year": Numeric(missing=-1.0)}))
    assert batch.numeric[:, 0].tolist() == [2023, 2024, 2024, -1]


def test_a_column_of_a_file_comes_before_the_name_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "x=5").mkdir()
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "x=5" / "part.parquet")
    (batch,) = read(tmp_path, Schema([], {"x": Numeric()}))
    assert batch.numeric.tolist() == [[1]]


def test_folders_above_the_given_path_are_no_columns(tmp_path: Path) -> None:
    (tmp_path / "x=5").mkdir()
    pq.write_table(pa.table({"y": [1.0]}), tmp_path / "x=5" / "part.parquet")
    for path in (tmp_path / "x=5" / "part.parquet", tmp_path / "x=5" / "*.parquet"):
        assert (
            "'x' is missing" in error_of(lambda path=path: read(str(path), Schema([], {"x": Numeric()}))).what
        )


def test_a_folder_without_such_parts_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0]}), tmp_path / "part.parquet")
    assert "is a folder" in error_of(lambda: read(tmp_path, Schema([], {"x": Numeric()}))).what
