"""Events and their labels from two logs: each event once, with the labels of its window."""

from __future__ import annotations

import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap import Categorical, Label, Numeric, Schema
from satrap.batch import Batch
from satrap.data.streams import EventStream, FolderLog, LabelledLog, labels, read_stream
from satrap.data.streams.events import merged_offsets
from satrap.errors import ConfigError, DataError
from tests.support.examples import examples
from tests.support.logs import put

SCHEMA = Schema(["y", "z"], {"x": Numeric(), "u": Categorical(dim=2)})
LONG_AGO = 1.6e9


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(labels, "LABELS_AT_ONCE", 3)


def put_events(folder: Path, name: str, numbers: list[int], at: float = LONG_AGO) -> None:
    columns = {"x": numbers, "u": [x % 7 for x in numbers], "r": [f"r{x}" for x in numbers]}
    put(folder / "events", name, {**columns, "t": [at + x for x in numbers]})


def put_labels(folder: Path, name: str, given: list[tuple[int, Any, Any]], at: float = LONG_AGO) -> None:
    ids, y, z = zip(*given, strict=True)
    put(
        folder / "labels",
        name,
        {"r": [f"r{x}" for x in ids], "y": list(y), "z": list(z), "t": [at + x + 5 for x in ids]},
    )


def stream(folder: Path, window: float = 10.0, schema: Schema = SCHEMA, **options: Any) -> EventStream:
    log = LabelledLog(
        events=FolderLog(str(folder / "events")),
        labels=FolderLog(str(folder / "labels")),
        id="r",
        time="t",
        window=window,
        schema=schema,
    )
    return read_stream(log, schema, **options)


def found(batches: list[Batch | None]) -> list[tuple[int, float, float]]:
    """Number and labels of each event."""
    rows = []
    for batch in batches:
        if batch is not None:
            assert batch.numeric is not None
            assert batch.labels is not None
            rows += [
                (int(x), *pair) for x, pair in zip(batch.numeric[:, 0], batch.labels.tolist(), strict=True)
            ]
    return rows


@settings(max_examples=examples(25), deadline=None)
@given(
    labelled=st.dictionaries(
        st.integers(0, 59), st.tuples(st.integers(0, 1), st.integers(0, 1)), max_size=40
    ),
    sizes=st.lists(st.integers(1, 20), min_size=3, max_size=8),
    batch_size=st.integers(1, 25),
    readers=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    data=st.data(),
)
def test_each_event_comes_once_with_its_labels_whoever_reads_it(
    labelled: dict[int, tuple[int, int]],
    sizes: list[int],
    batch_size: int,
    readers: list[int],
    data: st.DataObject,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, start = Path(name), 0
        for number, size in enumerate(sizes):
            numbers = list(range(start, start + size))
            put_events(folder, f"{number:02d}.parquet", numbers)
            start += size
        shuffled = data.draw(st.permutations(list(labelled)), "order of labels")
        for number in range(0, len(shuffled), 4):
            some = [(x, *labelled[x]) for x in shuffled[number : number + 4]]
            put_labels(folder, f"{number:02d}.parquet", some)
        seen, position = list[tuple[int, float, float]](), None
        for turn, workers in enumerate(readers):
            reached = []
            for worker in range(workers):
                share = stream(folder, batch_size=batch_size).with_options(worker=worker, workers=workers)
                most = None if turn + 1 == len(readers) else data.draw(st.integers(0, 3), "batches")
                there = (batch for batch in share.batches(0, position) if batch is not None)
                batches = list(islice(there, most))
                seen += found(batches)
                reached.append(batches[-1].position if batches else position)
            position = merged_offsets(reached)
        expected = [(x, *map(float, labelled.get(x, (0, 0)))) for x in range(start)]
        assert sorted(seen) == expected


def test_an_event_waits_for_its_window_and_then_comes_with_what_has_come(tmp_path: Path) -> None:
    now = time.time()
    put_events(tmp_path, "0.parquet", [0, 1], at=now - 0.5)  # 1 is half a second ahead
    following = stream(tmp_path, window=1.5, batch_size=1, wait=0.05, follow=True).batches()
    assert [next(following) for _ in range(3)] == [None] * 3
    put_labels(tmp_path, "0.parquet", [(0, 1, None), (1, None, 1)], at=now)
    put_labels(tmp_path, "1.parquet", [(0, 0, 1), (1, 0, None)], at=now)
    first = next(batch for batch in following if batch is not None)
    came = time.time() - now
    assert found([first]) == [(0, 1.0, 1.0)]
    second = next(batch for batch in following if batch is not None)
    assert found([second]) == [(1, 0.0, 1.0)]
    assert 0.95 <= came <= time.time() - now - 0.5


def test_without_following_events_whose_window_has_not_passed_are_left(tmp_path: Path) -> None:
    put_events(tmp_path, "0.parquet", [0, 1, 2])
    put_events(tmp_path, "1.parquet", [7, 8], at=time.time())
    put_labels(tmp_path, "0.parquet", [(1, 1, 1)])
    assert found(list(stream(tmp_path, window=1000.0).batches())) == [(0, 0, 0), (1, 1, 1), (2, 0, 0)]


def test_a_resumed_reader_needs_only_labels_of_events_that_it_may_still_read(tmp_path: Path) -> None:
    for number in range(20):
        put_events(tmp_path, f"{number:02d}.parquet", list(range(10 * number, 10 * number + 10)))
        put_labels(tmp_path, f"{number:02d}.parquet", [(10 * number + 3, 1, 0)])
    batches = stream(tmp_path, batch_size=10).batches()
    position = [batch for batch in islice(batches, 18) if batch is not None][-1].position
    for name in range(16):  # what was read and is not needed any more may go
        (tmp_path / "labels" / f"{name:02d}.parquet").unlink()
    rest = found(list(stream(tmp_path, batch_size=10).batches(0, position)))
    assert [x for x, _, _ in rest] == list(range(180, 200))
    assert {x for x, y, _ in rest if y} == {183, 193}


def test_labels_are_forgotten_once_their_events_were_read(tmp_path: Path) -> None:
    for number in range(30):
        put_events(tmp_path, f"{number:02d}.parquet", list(range(100 * number, 100 * number + 10)))
        put_labels(tmp_path, f"{number:02d}.parquet", [(100 * number + 3, 1, 0)])
    made = stream(tmp_path, batch_size=10)
    reader = made._log.open(["x", "y"], [], {}, 0, 1)
    while reader.read(10, 0.0) or not reader.caught_up():
        pass
    assert len(reader._labels._known) == 0  # type: ignore[attr-defined]
    reader.close()


@pytest.mark.parametrize(
    "label",
    [
        Label(name="y", kind="regression", mean=0.0, std=1.0),
        Label(name="y", kind="multiclass", classes=3),
        Label(name="y", positive=("yes",)),
        Label(name="y", mask="known"),
    ],
)
def test_labels_that_are_not_0_and_1_cannot_come_later(tmp_path: Path, label: Label) -> None:
    with pytest.raises(ConfigError, match="label 'y' cannot be delayed"):
        stream(tmp_path, schema=Schema([label], {"u": Categorical(dim=2)}))


@pytest.mark.parametrize("window", [0.0, -1.0, float("inf"), float("nan")])
def test_an_impossible_window_is_refused(tmp_path: Path, window: float) -> None:
    with pytest.raises(ConfigError, match="label_window must be a number of seconds above 0"):
        stream(tmp_path, window=window)


def test_an_event_without_a_time_is_named(tmp_path: Path) -> None:
    put(tmp_path / "events", "0.parquet", {"x": [1, 2], "u": [1, 2], "r": ["a", "b"], "t": [1.0, np.nan]})
    put_labels(tmp_path, "0.parquet", [(1, 1, 1)])
    with pytest.raises(DataError, match="an event has no time") as caught:
        list(stream(tmp_path).batches())
    assert str(caught.value.where).endswith("0.parquet, row 2, column 't'")
    put(tmp_path / "events", "0.parquet", {"x": [1], "u": [1], "r": ["a"], "t": ["noon"]})
    with pytest.raises(DataError, match="is not a time"):
        list(stream(tmp_path).batches())
