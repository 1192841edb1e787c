"""The clock counts its spans only; the length of a run is known, estimated or unknown."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from satrap.batch import Batch, Jagged
from satrap.dense import Workers
from satrap.train import Progress
from satrap.train.progress.throughput import Clock, Length


def test_a_clock_counts_between_start_and_stop() -> None:
    clock = Clock(5.0)
    assert clock.seconds == 5.0
    clock.start()
    time.sleep(0.02)
    running = clock.seconds
    assert running >= 5.02
    clock.stop()
    stopped = clock.seconds
    assert stopped >= running
    time.sleep(0.02)
    assert clock.seconds == stopped
    clock.start()
    time.sleep(0.02)
    assert clock.seconds >= stopped + 0.02


def test_no_time_is_more_than_none() -> None:
    assert Clock().seconds == 1e-9


class Rows:
    """Data that knows its length, or where a batch is."""

    def __init__(self, rows: int | None) -> None:
        self._rows = rows

    def num_rows(self) -> int | None:
        return self._rows


class Places(Rows):
    def progress(self, position: Any, epoch: int) -> float | None:
        return position["share"] / (epoch + 1) if position else None


class Two(Workers):
    """One of two workers, the other of which has 30 rows."""

    size = 2

    def count(self, values: Any) -> list[float]:
        return [value + 30 for value in values]


def batch(position: Any) -> Batch:
    return Batch(1, {"user": Jagged(np.zeros(1, np.uint64))}, position=position)


@pytest.mark.parametrize(("workers", "total"), [(Workers(), 210), (Two(), 300)])
def test_a_length_that_is_known_is_that_of_all_workers_and_passes(workers: Workers, total: int) -> None:
    length = Length(3)
    length.of(Rows(70), workers)
    assert length.total == total
    length.epoch_ended(Progress(samples=71))
    assert length.total == total
    assert length.before == 71


def test_one_that_is_not_known_is_estimated_until_the_first_pass_ends() -> None:
    length = Length(4)
    length.of(Places(None), Workers())
    assert length.total is None
    length.look(batch(None), Progress(samples=10))
    assert length.total is None
    length.look(batch({"share": 0.0}), Progress(samples=10))
    assert length.total is None
    length.look(batch({"share": 0.25}), Progress(samples=10))
    assert length.total == 160
    length.look(batch({"share": 0.5}), Progress(samples=24))
    assert length.total == 192
    length.epoch_ended(Progress(samples=50))
    assert length.total == 200
    length.look(batch({"share": 0.5}), Progress(samples=51, epoch=1))
    assert length.total == 200


def test_an_estimate_after_a_resume_counts_from_the_start_of_the_pass() -> None:
    length = Length(2)
    length.of(Places(None), Workers())
    length.before = 100
    length.look(batch({"share": 0.5}), Progress(samples=110))
    assert length.total == 40
    length.epoch_ended(Progress(samples=130))
    assert (length.total, length.before) == (60, 130)


def test_data_that_tells_nothing_has_no_length() -> None:
    length = Length(2)
    length.look(batch({"share": 0.5}), Progress(samples=10))
    length.of(iter(()), Workers())
    length.look(batch({"share": 0.5}), Progress(samples=10))
    assert length.total is None
