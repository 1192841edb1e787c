"""Buckets move while messages get lost and shards die: each update once, staleness exact, right table."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sim.cluster import SimCluster

STEPS = 12


def moved(
    place: Path, seed: int, *, staleness: int | None = 2, fault: float = 0.0, crash: float = 0.0
) -> SimCluster:
    """Return a cluster before its first move, and train up to there."""
    cluster = SimCluster(
        place, seed, shards=2, workers=2, steps=3 * STEPS, staleness=staleness, fault=fault, crash=crash
    )
    cluster.run_to(STEPS)
    return cluster


@pytest.mark.parametrize("staleness", [2, None])
@pytest.mark.parametrize("given", [*range(4), None])
def test_two_three_and_two_shards_over_a_bad_network(
    tmp_path: Path, given: int | None, staleness: int | None
) -> None:
    seed = random.SystemRandom().randrange(10**9) if given is None else given
    print(f"seed {seed}")  # shown if it fails
    cluster = moved(tmp_path, seed, staleness=staleness, fault=0.1, crash=0.02)
    cluster.move([0, 1, cluster.add_shard()], seed)
    cluster.run_to(2 * STEPS)
    cluster.move([1, 2], seed)
    cluster.run()
    assert len(cluster.history.lookups) == 2 * 3 * STEPS


def requests_of_a_move(place: Path) -> list[range]:
    """Return, by shard, the numbers of the requests that a move writes to its journal."""
    cluster = moved(place, 1)
    before = [shard.written for shard in cluster.shards] + [0]
    cluster.move([0, 1, cluster.add_shard()], 1)
    after = [shard.written for shard in cluster.shards]
    cluster.run()
    return [range(a + 1, b + 1) for a, b in zip(before, after, strict=True)]


@pytest.mark.slow
def test_a_shard_that_dies_before_or_after_any_request_of_a_move_comes_back_into_it(tmp_path: Path) -> None:
    """Source, target and new shard: every request of the move, enumerated."""
    crashes = 0
    for shard, numbers in enumerate(requests_of_a_move(tmp_path / "whole")):
        assert len(numbers) > 2
        for number in numbers:
            for doomed in (number, -number):
                cluster = moved(tmp_path / f"{shard}.{doomed}", 1)
                joining = cluster.add_shard()
                cluster.shards[shard].doomed = doomed
                cluster.move([0, 1, joining], 1)
                cluster.run()
                crashes += cluster.shards[shard].crashes
    assert crashes >= 20
