"""Buckets are dealt evenly, and few of them move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.exchange.resharding.balance import balanced, gain, towards
from satrap.exchange.shard_map import Owners, ShardMap
from satrap.store import BUCKETS
from satrap.train.resharding.moves import WORTH
from tests.support.examples import examples


@settings(deadline=None, max_examples=examples(60))
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


def test_buckets_that_are_free_are_dealt_in_order_of_the_shards() -> None:
    """Shard 2 leaves; shard 0 needs 1048 of its buckets, and shard 1 the other 1548."""
    owners = np.repeat(np.array([0, 1, 2], np.uint16), [1000, 500, 2596])
    found = balanced(owners, np.full(BUCKETS, 10), [0, 1])
    np.testing.assert_array_equal(found, np.repeat(np.array([0, 1, 0, 1]), [1000, 500, 1048, 1548]))


def loads_of(owners: Owners, weights: np.ndarray, members: Sequence[int]) -> np.ndarray:
    return np.array([weights[owners == shard].sum() for shard in members])


@st.composite
def skewed(draw: st.DrawFn) -> np.ndarray:
    """Weights of buckets of any skew, with a few buckets that may have more than all others together."""
    rng = np.random.default_rng(draw(st.integers(0, 999)))
    weights = (1000 * rng.pareto(draw(st.sampled_from([0.5, 1.0, 1.5, 3.0, 20.0])), BUCKETS)).clip(0, 2**34)
    weights[rng.random(BUCKETS) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = 0
    for part in draw(st.lists(st.sampled_from([0.01, 0.3, 0.5, 1.5]), max_size=4)):
        weights[rng.integers(BUCKETS)] = part * weights.sum()
    return weights.astype(np.int64)


@settings(deadline=None, max_examples=examples(300))
@given(skewed(), st.sets(st.integers(0, 8), min_size=1), st.integers(1, 9), st.booleans(), st.integers(0, 9))
def test_no_shard_has_more_than_the_share_beside_a_bucket_and_balances_soon_gain_nothing(
    weights: np.ndarray, some: set[int], before: int, scattered: bool, seed: int
) -> None:
    members, owners = sorted(some), ShardMap(before).owners
    if scattered:
        owners = np.random.default_rng(seed).permutation(owners)
    found = balanced(owners, weights, members)
    assert set(np.unique(found).tolist()) <= some
    share, heaviest = weights.sum() / len(members), weights.max()
    mean = weights.sum() / max(1, np.count_nonzero(weights)) + 1
    assert loads_of(found, weights, members).max() <= share + heaviest + mean
    if some == set(range(before)) and weights.sum() > 10 * BUCKETS:
        assert loads_of(found, weights, members).max() <= loads_of(owners, weights, members).max() + mean
    gains = []  # of the balances after the first, as a run carries them out
    while not gains or gains[-1] > WORTH:
        again = balanced(found, weights, members)
        gains.append(gain(found, again, weights, members))
        found = again
    assert len(gains) <= 3
    if heaviest <= share / 50:
        assert abs(gains[0]) <= WORTH


@pytest.mark.parametrize("hot", [0, 100, 2047, 2048, 4095])
def test_a_bucket_of_more_than_a_share_keeps_its_shard_to_itself(hot: int) -> None:
    owners, weights = ShardMap(3).owners, np.full(BUCKETS, 10)
    weights[hot] = 10 * BUCKETS
    found = balanced(owners, weights, [0, 1, 2])
    assert found[hot] == owners[hot]
    loads = sorted(loads_of(found, weights, [0, 1, 2]).tolist())
    assert loads[2] == 10 * BUCKETS
    assert loads[1] - loads[0] <= 10
    assert gain(owners, found, weights, [0, 1, 2]) == pytest.approx(
        (loads_of(owners, weights, [0, 1, 2]).max() - loads[2]) / (weights.sum() / 3)
    )
    np.testing.assert_array_equal(balanced(found, weights, [0, 1, 2]), found)


@pytest.mark.parametrize("seed", range(5))
def test_traffic_as_it_is_gets_even(seed: int) -> None:
    """Rows of a Zipf law, dealt to buckets by chance: the fullest shard has 1 % more than its share."""
    rng = np.random.default_rng(seed)
    rows = np.minimum(1.0, 300 / np.arange(1, 10**5))  # a row is in a step once at most
    weights = np.bincount(rng.integers(0, BUCKETS, len(rows)), rows * 1000, BUCKETS).astype(np.int64)
    owners, members = ShardMap(5).owners, list(range(5))
    weights[owners == 3] *= 2
    found = balanced(owners, weights, members)
    assert loads_of(owners, weights, members).max() > 1.5 * weights.sum() / 5
    assert loads_of(found, weights, members).max() < 1.01 * weights.sum() / 5
    assert abs(gain(found, balanced(found, weights, members), weights, members)) < 0.01
    moved = weights[found != owners].sum() / weights.sum()
    assert moved < 0.2  # the surplus of shard 3 is 13 %


def test_one_hot_bucket_moves_in_place_of_many_and_what_it_is_too_heavy_comes_back() -> None:
    owners, weights = ShardMap(2).owners, np.full(BUCKETS, 10)
    weights[[7, 9]] = 8000
    found = balanced(owners, weights, [0, 1])
    assert np.flatnonzero(found != owners).tolist() == [7, 4095]


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
