"""Streams of events: each is in one batch, whoever reads them, however often they are begun anew."""

from __future__ import annotations

import tempfile
import time
import warnings
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.batch import Batch
from satrap.data.streams import EventStream, FolderLog, read_stream
from satrap.data.streams.events import merged_offsets
from satrap.errors import ConfigError, DataError
from tests.support.examples import examples
from tests.support.logs import SCHEMA, events, put, read_events


def stream(folder: Path, **options: Any) -> EventStream:
    return read_stream(FolderLog(str(folder)), SCHEMA, **options)


def filled(folder: Path, sizes: list[int]) -> int:
    """Fill files of a folder with so many events each; return how many there are."""
    start = 0
    for number, size in enumerate(sizes):
        put(folder, f"{'ab'[number % 2]}/{number:04d}.parquet", events(start, size))
        start += size
    return start


@settings(max_examples=examples(25), deadline=None)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    batch_size=st.integers(1, 50),
    readers=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    data=st.data(),
)
def test_each_event_is_read_once_by_changing_numbers_of_workers(
    sizes: list[int], batch_size: int, readers: list[int], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        total, seen, position = filled(Path(folder), sizes), list[int](), None
        for number, workers in enumerate(readers):
            reached = []
            for worker in range(workers):
                share = stream(Path(folder), batch_size=batch_size).with_options(
                    worker=worker, workers=workers
                )
                most = None if number + 1 == len(readers) else data.draw(st.integers(0, 4), "batches")
                batches = list(islice(share.batches(0, position), most))
                seen += read_events(batches)
                reached.append(batches[-1].position if batches and batches[-1] else position)
            position = merged_offsets(reached)
        assert sorted(seen) == list(range(total))


def test_one_reader_keeps_the_order_of_the_names_and_fills_batches(tmp_path: Path) -> None:
    filled(tmp_path, [100, 50, 1, 0, 149])
    batches = list(stream(tmp_path, batch_size=64, time="t").batches())
    assert read_events(batches) == list(range(300))
    assert [batch.size for batch in batches if batch] == [64, 64, 64, 64, 44]
    times = np.concatenate([np.asarray(batch.times) for batch in batches if batch])
    np.testing.assert_array_equal(times, 1.7e9 + np.arange(300))


def test_a_reader_that_follows_waits_and_then_yields_what_has_come(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", events(0, 10))
    batches = stream(tmp_path, batch_size=64, wait=0.3, follow=True).batches()
    begun = time.monotonic()
    assert read_events([next(batches)]) == list(range(10))
    assert time.monotonic() - begun >= 0.3
    assert next(batches) is None
    put(tmp_path, "1.parquet", events(10, 100))
    found: list[Batch] = []
    while sum(batch.size for batch in found) < 100:
        if (batch := next(batches)) is not None:
            found.append(batch)
    assert read_events(found) == list(range(10, 110))
    assert found[0].size == 64


def test_a_log_that_does_not_exist_yet_has_no_events(tmp_path: Path) -> None:
    assert list(stream(tmp_path / "later").batches()) == []
    following = stream(tmp_path / "later", follow=True).batches()
    assert next(following) is None
    put(tmp_path / "later", "0.parquet", events(0, 3))
    there = (batch for batch in following if batch is not None)
    assert read_events([next(there)]) == [0, 1, 2]


def test_the_first_events_are_a_data_set(tmp_path: Path) -> None:
    filled(tmp_path, [30, 30])
    assert read_events(stream(tmp_path).head(41).batches()) == list(range(41))
    assert read_events(stream(tmp_path).head(1000).batches()) == list(range(60))
    with pytest.raises(DataError, match="no events yet"):
        stream(tmp_path / "none").head(5)


@pytest.mark.parametrize("options", [{"batch_size": 0}, {"wait": 0.0}, {"wait": float("inf")}])
def test_impossible_settings_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="stream: "):
        stream(tmp_path, **options)


def test_impossible_shares_and_positions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="bad_events must be stop or skip"):
        stream(tmp_path, bad_events="drop")
    with pytest.raises(ConfigError, match=r"worker must be in 0\.\.1"):
        stream(tmp_path).with_options(worker=2, workers=2)
    with pytest.raises(ConfigError, match="unknown stream setting 'shuffle'"):
        stream(tmp_path).with_options(shuffle=True)
    with pytest.raises(ConfigError, match="does not belong to a stream"):
        next(stream(tmp_path).batches(0, {"cursor": None}))


def test_a_value_that_cannot_be_used_is_named_by_its_place(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", {**events(0, 3), "x": ["1", "two", "3"]})
    with pytest.raises(DataError) as caught:
        list(stream(tmp_path).batches())
    assert str(caught.value.where) == f"{tmp_path}/0.parquet, row 2, column 'x'"


@settings(max_examples=examples(20), deadline=None)
@given(bad=st.sets(st.integers(0, 59), max_size=20), batch_size=st.integers(1, 40))
def test_bad_events_are_left_out_if_asked_and_others_are_read_once(bad: set[int], batch_size: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        columns = events(0, 60)
        put(
            Path(folder), "0.parquet", {**columns, "x": ["two" if x in bad else str(x) for x in columns["x"]]}
        )
        made = stream(Path(folder), batch_size=batch_size, bad_events="skip")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            batches = list(made.batches())
            assert read_events(batches) == [x for x in range(60) if x not in bad]
            if len(batches) > 1 and batches[0] is not None:
                rest = made.batches(0, batches[0].position)
                assert read_events([batches[0], *rest]) == [x for x in range(60) if x not in bad]


def test_the_first_bad_event_is_told_of_and_many_alone_are_an_error(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", {**events(0, 3), "x": ["1", "two", "3"]})
    with pytest.warns(RuntimeWarning, match=r"1 events skipped so far; .*'two'.*row 2, column 'x'"):
        list(stream(tmp_path, bad_events="skip").batches())
    (tmp_path / "all").mkdir()
    pq.write_table(pa.table({**events(0, 70), "x": ["two"] * 70}), tmp_path / "all" / "0.parquet")
    with pytest.raises(DataError, match="'two' is not a number"):
        list(stream(tmp_path / "all", bad_events="skip").batches())


def test_the_first_events_may_have_numbers_and_texts(tmp_path: Path) -> None:
    put(tmp_path, "0.parquet", {**events(0, 3), "u": [1, 2, 3], "y": [0, 1, 0]})
    put(tmp_path, "1.parquet", {**events(3, 3), "u": ["1", "2", "x"], "y": [0.0, 1.0, 1.0]})
    [batch] = stream(tmp_path).head(10).batches()
    first = batch.ids["u"].values
    assert first[0] == first[3]
    assert read_events([batch]) == [0, 1, 2, 3, 4, 5]


def test_positions_of_files_are_no_offsets() -> None:
    assert merged_offsets([None, {"version": 1, "cursor": [0, 1]}]) is None
    ahead, behind = {"offsets": {"a": [7, "x"], "b": [1, "y"]}}, {"offsets": {"a": [5, "z"]}}
    assert merged_offsets([None, behind, ahead]) == ahead
