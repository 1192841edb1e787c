"""Turns: as many for every worker, with weights that make the mean one over all samples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.embedding import BatchLookup
from satrap.train.step.agree import StepInput, agreed_steps, first, stretches
from satrap.train.step.loss import known_weight
from tests.dense.threads import together
from tests.support.examples import examples


def tickets(sizes: list[int]) -> list[BatchLookup]:
    return [cast(BatchLookup, SimpleNamespace(batch=SimpleNamespace(size=size))) for size in sizes]


def weight(batch: Any) -> float:
    return float(batch.size)


def taken(
    sizes: list[int], workers: Workers, weight: Callable[[Any], float] = weight, ends_with: int | None = None
) -> list[StepInput]:
    """The turns of a worker; after that number of them, counted from 0, it wants to end."""
    found, ending = list[StepInput](), threading.Event()
    for turn in agreed_steps(tickets(sizes), workers, weight, ending):
        if len(found) == ends_with:
            ending.set()
        found.append(turn)
    return found


def test_one_worker_takes_its_batches_as_they_are() -> None:
    given_tickets = tickets([3, 5])
    found = list(agreed_steps(given_tickets, Workers(), weight, threading.Event()))
    assert found == [StepInput(t, 1.0, t.batch.size) for t in given_tickets]


def test_processes_with_the_same_batches_count_them_once() -> None:
    sizes = [[4, 4], [2]]  # of each share of the data; four processes, two for each share
    found = together(4, lambda workers: taken(sizes[workers.data.rank], workers), copies=2)
    assert [[(turn.share, turn.samples) for turn in part] for part in found] == [
        *[[(pytest.approx(2 * 4 / 6), 6), (2.0, 4)]] * 2,
        *[[(pytest.approx(2 * 2 / 6), 6), (0.0, 4)]] * 2,
    ]


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=2, max_size=3))
def test_all_take_equally_many_turns_and_every_sample_counts_the_same(sizes: list[list[int]]) -> None:
    world = len(sizes)
    found = together(world, lambda workers: taken(sizes[workers.rank], workers))
    count = max(len(part) for part in sizes)
    assert [len(part) for part in found] == [count] * world
    for step in range(count):
        present = [part[step] if step < len(part) else 0 for part in sizes]
        for rank, mine in enumerate(found):
            turn = mine[step]
            assert turn.idle == (present[rank] == 0)
            assert turn.samples == sum(present)
            assert turn.share / world == pytest.approx(present[rank] / sum(present))


def test_equal_batches_are_not_scaled_at_all() -> None:
    found = together(3, lambda workers: taken([7, 7], workers))
    assert all(turn.share == 1.0 for part in found for turn in part)


def test_samples_that_weigh_nothing_are_no_division_by_zero() -> None:
    found = together(2, lambda workers: taken([3], workers, lambda _: 0.0))
    assert [[(turn.share, turn.samples) for turn in part] for part in found] == [[(1.0, 6)]] * 2


@pytest.mark.parametrize(("ends_with", "turns"), [(0, 1), (2, 3), (4, 5), (None, 5)])
def test_one_that_wants_to_end_ends_all_after_the_same_count(ends_with: int | None, turns: int) -> None:
    found = together(2, lambda w: taken([3] * 5, w, ends_with=ends_with if w.rank else None))
    assert list(map(len, found)) == [turns, turns]


def test_the_weight_of_a_batch_is_the_denominator_of_its_loss() -> None:
    def batch(**columns: Any) -> Batch:
        return Batch(3, {}, labels=np.zeros((3, 2), np.float32), **columns)

    mask = np.array([[True, False], [True, True], [False, False]])
    weights = np.array([0.5, 2.0, 4.0], np.float32)
    assert known_weight(batch()) == 6
    assert known_weight(batch(weights=weights)) == 13
    assert known_weight(batch(label_mask=mask)) == 3
    assert known_weight(batch(label_mask=mask, weights=weights)) == 4.5


def test_workers_without_a_batch_at_present_wait_together() -> None:
    """None of one worker is a turn without weight if another has a batch; None of all is None for all."""
    given = [[1, None, None, 2], [None, None, 3]]

    def work(worker: Workers) -> list[tuple[int | None, int] | None]:
        own = [None if size is None else tickets([size])[0] for size in given[worker.rank]]
        found = agreed_steps(own, worker, weight, threading.Event())
        return [None if t is None else (None if t.idle else t.ticket.batch.size, t.samples) for t in found]

    one, other = together(2, work)
    assert one == [(1, 1), None, (None, 3), (2, 2)]
    assert other == [(None, 1), None, (3, 3), (None, 2)]


def test_one_worker_passes_on_that_it_has_no_batch() -> None:
    [ticket] = tickets([4])
    found = list(agreed_steps([None, ticket, None], Workers(), weight, threading.Event()))
    assert [turn and turn.samples for turn in found] == [None, 4, None]


@given(st.lists(st.one_of(st.none(), st.integers())), st.one_of(st.none(), st.integers(0, 9)))
def test_what_is_none_does_not_count(items: list[int | None], most: int | None) -> None:
    found = list(first(most, items))
    there = [item for item in items if item is not None]
    assert [item for item in found if item is not None] == there[:most]
    assert found == items[: len(found)]
    if most is None or len(there) < most:
        assert found == items


@given(st.lists(st.one_of(st.none(), st.integers())))
def test_stretches_are_what_is_between_two_none(items: list[int | None]) -> None:
    expected: list[list[int]] = [[]]
    for item in items:
        if item is None:
            expected.append([])
        else:
            expected[-1].append(item)
    assert [list(stretch) for stretch in stretches(items)] == expected
