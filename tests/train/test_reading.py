"""Streams: whatever is cut, shared out and gone on with, every batch is trained once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from satrap.batch import Batch
from satrap.train.reading import Reading, Stream, shared_out


class Numbers:
    """Batches that hold their number; a share is every `workers`-th number."""

    def __init__(self, count: int, worker: int = 0, workers: int = 1, positions: bool = True) -> None:
        self.count, self.worker, self.workers, self.positions = count, worker, workers, positions

    def with_options(self, *, worker: int, workers: int) -> Numbers:
        return Numbers(self.count, worker, workers, self.positions)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        for number in range(self.worker, self.count, self.workers):
            if position is None or number > position:
                where = number if self.positions else None
                yield Batch(size=1, ids={}, numeric=np.array([[number]], np.float32), position=where)


def train(reading: Reading, data: Numbers, most: int | None = None) -> list[int]:
    """Train some batches, with more of them read ahead; return their numbers."""
    done: list[int] = []
    batches, ahead = reading.batches(data, 0), []
    for batch in batches:
        ahead.append(batch)
        if len(ahead) > 2:
            if most is not None and len(done) == most:
                return done
            reading.trained(ahead[0])
            done.append(int(ahead.pop(0).numeric[0, 0]))  # type: ignore[index]
    for batch in ahead[: None if most is None else most - len(done)]:
        reading.trained(batch)
        done.append(int(batch.numeric[0, 0]))  # type: ignore[index]
    return done


@pytest.mark.parametrize("positions", [True, False])
@pytest.mark.parametrize("worlds", [[1], [2, 2], [2, 3], [3, 2], [1, 4, 1], [5, 2, 7, 3], [2, 5, 5, 1, 6]])
def test_each_batch_once(worlds: list[int], positions: bool) -> None:
    data, seen = Numbers(101, positions=positions), []
    states: list[Any] = []
    for turn, world in enumerate(worlds):
        last = turn == len(worlds) - 1
        readings = [Reading(rank, world) for rank in range(world)]
        for rank, reading in enumerate(readings):
            if states:
                reading.restore(states)
            share = data.with_options(worker=rank, workers=world)
            seen += train(reading, share, None if last else 3 + rank % 2)
        states = [reading.state() for reading in readings]
    assert sorted(seen) == list(range(101))


def test_the_next_pass_is_shared_out_anew() -> None:
    reading = Reading(0, 2)
    reading.restore([[{"worker": 0, "workers": 1, "position": 4, "done": 5}]])
    assert train(reading, Numbers(20, 0, 2)) == [5, 7, 9, 11, 13, 15, 17, 19]
    reading.begin()
    assert train(reading, Numbers(20, 0, 2)) == list(range(0, 20, 2))


def test_more_workers_than_streams_read_them_in_turn() -> None:
    found = shared_out([Stream(0, 2), Stream(1, 2)], 3)
    assert [(s.worker, s.skip, s.stride) for [s] in found] == [(0, 0, 2), (1, 0, 1), (0, 1, 2)]


@pytest.mark.parametrize("cut", range(0, 20, 2))
def test_the_order_of_several_streams_goes_on(cut: int) -> None:
    """What was read ahead of a snapshot is read again in the same order."""
    states = [[{"worker": w, "workers": 3, "position": None}] for w in range(3)]
    data = Numbers(20)
    whole, first, second = Reading(0, 1), Reading(0, 1), Reading(0, 1)
    whole.restore(states)
    first.restore(states)
    expected = train(whole, data)
    assert sorted(expected) == list(range(20))
    begun = train(first, data, cut)
    second.restore([first.state()])
    assert begun + train(second, data) == expected
