"""A feed belongs to one run, and begins again where its run does."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satrap.checkpoint import Checkpoint, Series, read_checkpoint
from satrap.checkpoint.feed import FEED, Feed, check_resumable, feed_settings, is_feed, published_at
from satrap.errors import CheckpointError, ConfigError
from satrap.store import RowChunk
from tests import faults

NO_IDS: dict[str, Any] = {"t": np.empty(0, np.uint64)}


def version(run: str | None, *, delta: bool = False) -> Checkpoint:
    settings = {} if run is None else {FEED: feed_settings(run, "float32")}
    return Checkpoint(settings, {}, {}, (), deleted=NO_IDS if delta else None)


def with_row(step: int) -> Checkpoint:
    """A version in which one row of table "t" changed, that of the step; step 3 removes that of step 1."""
    ids = np.array([step], np.uint64)
    chunk = RowChunk("t", ids, np.full((1, 2), step, np.float32), np.empty((1, 0), np.float32))
    gone = {"t": np.array([1], np.uint64)} if step == 3 else NO_IDS
    settings = {FEED: feed_settings("a", "float32")}
    return Checkpoint(settings, {}, {}, [("t", chunk)], deleted=None if step == 1 else gone)


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
    ("run", "match"), [("b", "another run publishes to this folder"), (None, "holds snapshots, not a feed")]
)
def test_what_others_have_written_is_left_alone(run: str | None, match: str, tmp_path: Path) -> None:
    written(tmp_path, [3, 5], run)
    feed = Feed(str(tmp_path))
    with pytest.raises(ConfigError, match=match):
        feed.take_over("a", 0)
    with pytest.raises(CheckpointError, match=match):
        feed.write(7, version("a"))
    assert feed.steps() == [3, 5]


def test_now_and_then_a_delta_becomes_a_full_version_that_followers_have_read(tmp_path: Path) -> None:
    feed = Feed(str(tmp_path), keep=2, full_every=4)
    for step in range(1, 31):
        feed.write(step, with_row(step))
        feed.finish()
    kept = {step: feed.manifest(step).delta is None for step in feed.steps()}
    full = [step for step, whole in kept.items() if whole]
    assert full == [13, 17]
    assert list(kept) == list(range(13, 31))
    for step in kept:
        rows = np.concatenate([chunk.ids for _, chunk in read_checkpoint(feed.place(step)).chunks])
        assert sorted(rows.tolist()) == list(range(2, step + 1))


def test_a_version_can_be_read_while_one_before_it_is_made_full(tmp_path: Path) -> None:
    feed = Feed(str(tmp_path), full_every=2)
    for step in range(1, 13):
        feed.write(step, with_row(step))
    reading = read_checkpoint(feed.place(12)).chunks
    feed.write(13, with_row(13))
    feed.finish()
    assert feed.manifest(3).delta is None
    assert sorted(id_ for _, chunk in reading for id_ in chunk.ids.tolist()) == list(range(2, 13))


def test_after_a_delta_that_cannot_be_made_full_the_next_version_is(tmp_path: Path) -> None:
    """What it was to be made from may be damaged: without a full version nobody could ever begin again."""
    told: list[str] = []
    feed = Feed(str(tmp_path), full_every=2, notice=told.append)
    with faults.armed("checkpoint.data_written", faults.fail(lambda: OSError(28, "no space")), at=14):
        for step in range(1, 14):
            feed.write(step, version("a", delta=step > 1))
        feed.finish()
    assert ["no space" in text and "next version is full" in text for text in told] == [True]
    assert feed.manifest(3).delta is not None
    assert not feed.followable(14)
    for step in range(14, 28):
        feed.write(step, version("a", delta=step > 14))
        feed.finish()
    assert len(told) == 1
    assert [step for step in feed.steps() if feed.manifest(step).delta is None] == [14, 16]


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
    with pytest.raises(CheckpointError, match="holds only weights"):
        check_resumable(settings, "here")


def test_a_feed_of_another_format_is_refused_by_number() -> None:
    settings = {FEED: feed_settings("a", "float16")}
    assert abs(published_at(settings, "here") - time.time()) < 60
    assert abs(published_at({}, "here") - time.time()) < 60
    for wrong in ({**settings[FEED], "format": 2}, "feed"):
        with pytest.raises(CheckpointError, match=r"cannot read feed format .*, only format 1"):
            published_at({FEED: wrong}, "here")
