"""Streams: whatever is cut, shared out and gone on with, every batch is trained once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from satrap.batch import Batch
from satrap.train.state.epoch_cursor import EpochCursor, ShareCursor, shared_out


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


def train(reading: EpochCursor, data: Numbers, most: int | None = None) -> list[int]:
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
        readings = [EpochCursor(rank, world) for rank in range(world)]
        for rank, reading in enumerate(readings):
            if states:
                reading.restore(states)
            share = data.with_options(worker=rank, workers=world)
            seen += train(reading, share, None if last else 3 + rank % 2)
        states = [reading.state() for reading in readings]
    assert sorted(seen) == list(range(101))


def test_the_next_pass_is_shared_out_anew() -> None:
    reading = EpochCursor(0, 2)
    reading.restore([[{"worker": 0, "workers": 1, "position": 4, "done": 5}]])
    assert train(reading, Numbers(20, 0, 2)) == [5, 7, 9, 11, 13, 15, 17, 19]
    reading.begin()
    assert train(reading, Numbers(20, 0, 2)) == list(range(0, 20, 2))


class Samples:
    """Whole samples, numbered; worker w of W has every W-th, in batches; the last may be smaller."""

    def __init__(self, count: int, batch_size: int, worker: int = 0, workers: int = 1) -> None:
        self.count, self.batch_size, self.worker, self.workers = count, batch_size, worker, workers

    def with_options(self, *, worker: int, workers: int, batch_size: int | None = None) -> Samples:
        return Samples(self.count, batch_size or self.batch_size, worker, workers)

    def batches(self, epoch: int = 0, position: Any = None) -> Iterator[Batch]:
        mine = np.arange(self.worker, self.count, self.workers)
        for start in range(0 if position is None else position, len(mine), self.batch_size):
            numbers = mine[start : start + self.batch_size]
            where = start + len(numbers)
            yield Batch(len(numbers), {}, numbers[:, None].astype(np.float32), position=where)


def steps_of(readings: list[EpochCursor], data: Samples, most: int | None = None) -> list[list[int]]:
    """Train steps together, each worker its part, and return the samples of each; one more is read ahead."""
    world, steps = len(readings), []
    shares = [data.with_options(worker=rank, workers=world) for rank in range(world)]
    each = [list(reading.batches(share, 0)) for reading, share in zip(readings, shares, strict=True)]
    for step in range(max(map(len, each), default=0)):
        if most == step:
            break
        parts = [(reading, own[step]) for reading, own in zip(readings, each, strict=True) if step < len(own)]
        for reading, batch in parts:
            reading.trained(batch)
        steps.append(sorted(int(n) for _, batch in parts for n in np.ravel(batch.numeric)))  # type: ignore[arg-type]
    return steps


@pytest.mark.parametrize("later", [5, 99])
@pytest.mark.parametrize("count", [240, 241, 247, 259])
@pytest.mark.parametrize("worlds", [[1, 2, 1], [2, 1], [3, 2, 6, 1], [6, 4, 6], [2, 3, 3, 2], [1, 12, 4]])
def test_workers_that_share_a_batch_take_the_same_steps_however_many_they_are(
    worlds: list[int], count: int, later: int
) -> None:
    """The first take five steps, others later as many, or all that are left."""
    first, found = worlds[0], list[list[int]]()
    undisturbed = steps_of(
        [EpochCursor(r, first, 12 // first, together=True) for r in range(first)], Samples(count, 12 // first)
    )
    states: list[Any] = []
    for turn, world in enumerate(worlds):
        readings = [EpochCursor(rank, world, 12 // world, together=True) for rank in range(world)]
        for reading in readings if states else ():
            reading.restore(states)
        most = None if turn == len(worlds) - 1 else later if turn else 5
        found += steps_of(readings, Samples(count, 12 // world), most)
        states = json.loads(json.dumps([reading.state() for reading in readings]))
    assert found == undisturbed


def test_workers_that_share_a_batch_divide_a_pass_anew_that_has_not_begun() -> None:
    states = [[asdict(ShareCursor(rank, 2, batch=6))] for rank in range(2)]
    reading = EpochCursor(2, 3, 4, together=True)
    reading.restore(states)
    assert reading.state() == EpochCursor(2, 3, 4).state()
    apart = EpochCursor(2, 3, 4)  # then each goes its own pace: no step is one of all
    apart.restore(states)
    assert [(s["worker"], s["workers"], s["cut"]) for s in apart.state()] == [(0, 2, None)]


def test_more_workers_than_streams_read_them_in_turn() -> None:
    found = shared_out([ShareCursor(0, 2), ShareCursor(1, 2)], 3)
    assert [(s.worker, s.skip, s.stride) for [s] in found] == [(0, 0, 2), (1, 0, 1), (0, 1, 2)]


@pytest.mark.parametrize("cut", range(0, 20, 2))
def test_the_order_of_several_streams_goes_on(cut: int) -> None:
    """What was read ahead of a snapshot is read again in the same order."""
    states = [[{"worker": w, "workers": 3, "position": None}] for w in range(3)]
    data = Numbers(20)
    whole, first, second = EpochCursor(0, 1), EpochCursor(0, 1), EpochCursor(0, 1)
    whole.restore(states)
    first.restore(states)
    expected = train(whole, data)
    assert sorted(expected) == list(range(20))
    begun = train(first, data, cut)
    second.restore([first.state()])
    assert begun + train(second, data) == expected
