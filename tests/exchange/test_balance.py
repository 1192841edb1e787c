"""Buckets are dealt evenly by rows, and few of them move."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange.balance import balanced, towards
from satrap.exchange.shard_map import ShardMap
from satrap.store import BUCKETS


@settings(deadline=None, max_examples=60)
@given(st.sets(st.integers(0, 6), min_size=1), st.integers(1, 7), st.integers(0, 99), st.integers(0, 50))
def test_shards_are_even_and_no_more_moves_than_that_takes(
    members: set[int], before: int, seed: int, most: int
) -> None:
    rng = np.random.default_rng(seed)
    owners, rows = ShardMap(before).owners, rng.integers(0, most + 1, BUCKETS)
    found = balanced(owners, rows, sorted(members))
    assert set(np.unique(found).tolist()) <= members
    weights, heaviest = rows * BUCKETS + 1, most * BUCKETS + 1
    loads = np.array([weights[found == shard].sum() for shard in sorted(members)])
    share = weights.sum() / len(members)
    assert np.abs(loads - share).max() <= heaviest * len(members)
    leaving = weights[~np.isin(owners, sorted(members))].sum()
    surplus = sum(max(weights[owners == shard].sum() - share, 0) for shard in members)
    assert weights[found != owners].sum() <= leaving + surplus + heaviest * len(members)


def test_a_third_shard_takes_a_third_in_two_pieces() -> None:
    even = ShardMap(2).owners
    found = balanced(even, np.full(BUCKETS, 10), [0, 1, 2])
    assert np.bincount(found).tolist() == [1366, 1366, 1364]
    assert (found[found != even] == 2).all()
    assert np.count_nonzero(np.diff(found)) <= 4


def test_what_is_even_stays() -> None:
    even = ShardMap(3).owners
    np.testing.assert_array_equal(balanced(even, np.zeros(BUCKETS, np.int64), [0, 1, 2]), even)


def test_towards_a_goal_go_the_next_buckets_whose_rows_fit_and_at_least_one() -> None:
    goal = np.where(np.arange(BUCKETS) % 2, np.uint16(1), np.uint16(0))
    rows, now, steps = np.full(BUCKETS, 3), np.zeros(BUCKETS, np.uint16), []
    while not (now == goal).all():
        before, now = now, towards(now, goal, rows, 1000)
        steps.append(int((before != now).sum()))
        assert set(np.flatnonzero(before != now)) <= set(np.flatnonzero(before != goal))
    assert steps == [333] * 6 + [2048 - 6 * 333]
    one = towards(np.zeros(BUCKETS, np.uint16), goal, rows, 0)
    assert np.flatnonzero(one).tolist() == [1]
    np.testing.assert_array_equal(towards(goal, goal, rows, 5), goal)
    np.testing.assert_array_equal(towards(np.zeros(BUCKETS, np.uint16), goal, 0 * rows, 5), goal)
