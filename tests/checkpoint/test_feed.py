"""A feed belongs to one run, and begins again where its run does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, Series
from satrap.checkpoint.feed import FEED, Feed, check_resumable, feed_settings, is_feed
from satrap.errors import CheckpointError, ConfigError

NO_IDS: dict[str, Any] = {"t": np.empty(0, np.uint64)}


def version(run: str | None, *, delta: bool = False) -> Checkpoint:
    settings = {} if run is None else {FEED: feed_settings(run, "float32")}
    return Checkpoint(settings, {}, {}, (), deleted=NO_IDS if delta else None)


def written(place: Path, steps: list[int], run: str | None = "a") -> Feed | Series:
    feed = Series(str(place), keep=9) if run is None else Feed(str(place), keep=9)
    for step in steps:
        feed.write(step, version(run))
    return feed


def test_a_run_takes_its_own_feed_over_and_removes_what_came_later(tmp_path: Path) -> None:
    written(tmp_path, [3, 5, 8, 9])
    feed = Feed(str(tmp_path), keep=9)
    feed.take_over("a", 5)
    assert feed.steps() == [3, 5]
    assert not feed.followable(6)
    feed.write(6, version("a"))
    assert feed.steps() == [3, 5, 6]


def test_an_empty_place_is_free(tmp_path: Path) -> None:
    Feed(str(tmp_path / "new")).take_over("a", 0)


@pytest.mark.parametrize(
    ("run", "match"), [("b", "another run publishes here"), (None, "has snapshots, and is no feed")]
)
def test_what_others_have_written_is_left_alone(run: str | None, match: str, tmp_path: Path) -> None:
    written(tmp_path, [3, 5], run)
    feed = Feed(str(tmp_path))
    with pytest.raises(ConfigError, match=match):
        feed.take_over("a", 0)
    with pytest.raises(CheckpointError, match=match):
        feed.write(7, version("a"))
    assert feed.steps() == [3, 5]


def test_deltas_are_counted_from_the_last_full_version(tmp_path: Path) -> None:
    feed = Feed(str(tmp_path))
    assert feed.deltas == 0
    counts = []
    for step, delta in ((1, False), (2, True), (3, True), (4, False)):
        feed.write(step, version("a", delta=delta))
        counts.append(feed.deltas)
    assert counts == [0, 1, 2, 0]


def test_after_an_intruder_the_next_version_is_full(tmp_path: Path) -> None:
    feed = written(tmp_path, [1])
    other = Series(str(tmp_path))
    other.write(2, version("b"))
    with pytest.raises(CheckpointError, match="two runs must not publish"):
        feed.write(3, version("a", delta=True))
    assert not feed.followable(4)


def test_a_version_is_told_from_a_snapshot() -> None:
    settings = {FEED: feed_settings("a", "float16")}
    assert is_feed(settings)
    assert not is_feed({})
    check_resumable({}, "here")
    with pytest.raises(CheckpointError, match="holds weights only"):
        check_resumable(settings, "here")
