"""Keys of the data: the two kinds of split, and where a stream comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from satrap.config.keys.data import SplitKeys, TimeSplitKeys
from tests.config.recipes import edited, loaded, refused

SPLIT = "  split: {modulo: 10, validation: [8], test: [9]}\n"


def test_a_column_makes_a_split_one_by_time(tmp_path: Path) -> None:
    assert isinstance(loaded(tmp_path).sections.data.split, SplitKeys)
    by_time = loaded(tmp_path, text=edited(SPLIT, "  split: {column: day, test: 2024-02-01}\n"))
    assert isinstance(by_time.sections.data.split, TimeSplitKeys)


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        ("{folder: log, wait: 0s}", "data.stream.wait must be above 0, got 0.0"),
        ("{folder: log, wait: soon}", "data.stream.wait must be a time such as 500ms, 5s or 2m, got 'soon'"),
        ("{kafka: {topic: clicks}}", "key 'brokers' is missing in data.stream.kafka"),
        ("{redis: {url: redis://a, stream: clicks}}", "unknown key 'stream' in data.stream.redis"),
    ],
)
def test_what_a_stream_needs(tmp_path: Path, stream: str, what: str) -> None:
    error = refused(tmp_path, text=edited(f"  train: rows.csv\n{SPLIT}", f"  stream: {stream}\n"))
    assert error.what == what


def test_one_stream_of_redis_need_not_be_a_list(tmp_path: Path) -> None:
    text = edited(f"  train: rows.csv\n{SPLIT}", "  stream: {redis: {url: redis://a, streams: clicks}}\n")
    stream = loaded(tmp_path, text=text).sections.data.stream
    assert stream is not None
    assert stream.redis is not None
    assert stream.redis.streams == ["clicks"]
