"""A folder as a log: which files are read, in which order, and what cannot be read is said."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import fsspec
import pytest

from satrap.data import CsvOptions
from satrap.data.streams import FolderLog, read_stream
from satrap.errors import ConfigError, DataError
from tests.support.logs import SCHEMA, events, put, read_events


def test_files_that_are_still_written_are_left_out(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", events(0, 5))
    for name in (".1.parquet", "1.parquet.tmp", "2.inprogress", "_SUCCESS", "3.parquet.part"):
        (tmp_path / name).write_bytes(b"half")
    assert read_events(read_stream(FolderLog(str(tmp_path)), SCHEMA).batches()) == list(range(5))


def test_subfolders_come_in_turn_by_the_names_of_their_files(tmp_path: Path) -> None:
    for number in (0, 1, 2, 3):
        put(tmp_path, f"{'ab'[number % 2]}/{number:02d}.parquet", events(10 * number, 10))
    assert read_events(read_stream(FolderLog(str(tmp_path)), SCHEMA).batches()) == list(range(40))


def test_text_files_are_read_as_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "0.csv").write_text("x;y;u\n1;0;a\n2;1;b\n")
    log = FolderLog(str(tmp_path), csv=CsvOptions(separator=";"))
    assert read_events(read_stream(log, SCHEMA).batches()) == [1, 2]


def test_an_object_store_is_a_log_too(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", events(0, 20))
    system = fsspec.filesystem("memory")
    system.pipe("/events-of-a-test/0.parquet", (tmp_path / "0.parquet").read_bytes())
    stream = read_stream(FolderLog("memory://events-of-a-test"), SCHEMA, batch_size=6)
    batches = list(stream.batches())
    assert read_events(batches) == list(range(20))
    assert batches[1] is not None
    assert read_events(stream.batches(0, batches[1].position)) == list(range(12, 20))


def test_a_file_that_comes_late_is_refused_or_read(tmp_path: Path) -> None:
    for number in range(60):
        put(tmp_path, f"m{number:02d}.parquet", events(number, 1))
    batches = read_stream(FolderLog(str(tmp_path)), SCHEMA, batch_size=60, follow=True).batches()
    assert read_events([next(batches)]) == list(range(60))
    late = {f"a{number:02d}.parquet": 1000 + number for number in range(40)}
    for name, x in late.items():
        put(tmp_path, name, events(x, 1))
    with pytest.raises(DataError, match=r"arrived late: a\d\d.parquet sorts before m\d\d.parquet"):
        list(islice(batches, 60))


def test_a_file_that_is_gone_is_named_with_the_offset(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", events(0, 30))
    stream = read_stream(FolderLog(str(tmp_path)), SCHEMA, batch_size=10)
    first = next(stream.batches())
    assert first is not None
    (tmp_path / "0.parquet").unlink()
    with pytest.raises(DataError, match=r"0.parquet is missing; .* of its rows after cursor .* were read"):
        next(stream.batches(0, first.position))


def test_a_file_that_was_read_may_go(tmp_path: Path) -> None:
    for number in range(3):
        put(tmp_path, f"{number}.parquet", events(10 * number, 10))
    stream = read_stream(FolderLog(str(tmp_path)), SCHEMA, batch_size=20)
    first = next(stream.batches())
    assert first is not None
    for number in range(2):
        (tmp_path / f"{number}.parquet").unlink()
    assert read_events(stream.batches(0, first.position)) == list(range(20, 30))


def test_a_file_without_a_column_is_named(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", {"x": [1], "y": [0], "v": [1]})
    with pytest.raises(DataError, match="column 'u' is missing"):
        list(read_stream(FolderLog(str(tmp_path)), SCHEMA).batches())


def test_more_workers_than_partitions_are_refused(tmp_path: Path) -> None:
    stream = read_stream(FolderLog(str(tmp_path)), SCHEMA).with_options(worker=0, workers=65)
    with pytest.raises(ConfigError, match="65 workers cannot share a folder"):
        next(stream.batches())
