"""Turns: as many for every worker, with weights that make the mean one over all samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.batch import Batch
from satrap.dense import Workers
from satrap.embedding import Ticket
from satrap.train.loss import known_weight
from satrap.train.turns import Turn, turns
from tests.dense.threads import together


def tickets(sizes: list[int]) -> list[Ticket]:
    return [cast(Ticket, SimpleNamespace(batch=SimpleNamespace(size=size))) for size in sizes]


def weight(batch: Any) -> float:
    return float(batch.size)


def test_one_worker_takes_its_batches_as_they_are() -> None:
    given_tickets = tickets([3, 5])
    assert list(turns(given_tickets, Workers(), weight)) == [
        Turn(t, 1.0, t.batch.size) for t in given_tickets
    ]


def test_processes_with_the_same_batches_count_them_once() -> None:
    sizes = [[4, 4], [2]]  # of each share of the data; four processes, two for each share
    taken = together(
        4, lambda workers: list(turns(tickets(sizes[workers.data.rank]), workers, weight)), copies=2
    )
    assert [[(turn.share, turn.samples) for turn in part] for part in taken] == [
        *[[(pytest.approx(2 * 4 / 6), 6), (2.0, 4)]] * 2,
        *[[(pytest.approx(2 * 2 / 6), 6), (0.0, 4)]] * 2,
    ]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=2, max_size=3))
def test_all_take_equally_many_turns_and_every_sample_counts_the_same(sizes: list[list[int]]) -> None:
    world = len(sizes)
    taken = together(world, lambda workers: list(turns(tickets(sizes[workers.rank]), workers, weight)))
    count = max(len(part) for part in sizes)
    assert [len(part) for part in taken] == [count] * world
    for step in range(count):
        present = [part[step] if step < len(part) else 0 for part in sizes]
        for rank, mine in enumerate(taken):
            turn = mine[step]
            assert (turn.ticket is None) == (present[rank] == 0)
            assert turn.samples == sum(present)
            assert turn.share / world == pytest.approx(present[rank] / sum(present))


def test_equal_batches_are_not_scaled_at_all() -> None:
    taken = together(3, lambda workers: list(turns(tickets([7, 7]), workers, weight)))
    assert all(turn.share == 1.0 for part in taken for turn in part)


def test_samples_that_weigh_nothing_are_no_division_by_zero() -> None:
    taken = together(2, lambda workers: list(turns(tickets([3]), workers, lambda _: 0.0)))
    assert [[(turn.share, turn.samples) for turn in part] for part in taken] == [[(1.0, 6)]] * 2


def test_the_weight_of_a_batch_is_the_denominator_of_its_loss() -> None:
    def batch(**columns: Any) -> Batch:
        return Batch(3, {}, labels=np.zeros((3, 2), np.float32), **columns)

    mask = np.array([[True, False], [True, True], [False, False]])
    weights = np.array([0.5, 2.0, 4.0], np.float32)
    assert known_weight(batch()) == 6
    assert known_weight(batch(weights=weights)) == 13
    assert known_weight(batch(label_mask=mask)) == 3
    assert known_weight(batch(label_mask=mask, weights=weights)) == 4.5
