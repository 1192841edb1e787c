"""Buckets move while messages get lost, and shards and workers die: see `invariants`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.sim.moving import MovingCluster
from tests.sim.stories import STEPS, Story

SEEDS = 1000


@pytest.mark.parametrize("staleness", [2, None])
@pytest.mark.parametrize("given", [*(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4)), None])
def test_two_three_and_two_shards_over_a_bad_network(
    tmp_path: Path, given: int | None, staleness: int | None
) -> None:
    seed = random.SystemRandom().randrange(10**9) if given is None else given
    print(f"seed {seed}")  # shown if it fails
    cluster = Story(seed, staleness=staleness, fault=0.1, crash=0.02).play(tmp_path)
    assert len(cluster.history.lookups) == 2 * 3 * STEPS


@pytest.mark.parametrize("given", [*(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8)), None])
def test_stories_by_chance(tmp_path: Path, given: int | None) -> None:
    story = Story.by_chance(random.SystemRandom().randrange(10**9) if given is None else given)
    print(story)
    story.play(tmp_path)


QUIET = Story(1)


def join(place: Path) -> MovingCluster:
    """Return a run without any death after its first move."""
    cluster = QUIET.begun(place)
    QUIET.join(cluster)
    return cluster


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_a_worker_dies_before_or_after_any_message_of_a_move(tmp_path: Path, rank: int) -> None:
    """Of rank 0, which coordinates the move, and of another one."""
    before = QUIET.begun(tmp_path / "before").lives[rank].sent
    count = join(tmp_path / "whole").lives[rank].sent - before
    assert count > 10
    for message in [*range(1, count + 1), *range(-count, 0)]:
        cluster = Story(1, deaths=((rank, message),)).play(tmp_path / str(message))
        assert cluster.generation == 1


@pytest.mark.slow
@pytest.mark.parametrize("shard", [0, 1, 2])
def test_a_shard_dies_before_or_after_any_request_of_a_move_and_comes_back_into_it(
    tmp_path: Path, shard: int
) -> None:
    """Sources, targets, and the new shard."""
    written = [each.written for each in QUIET.begun(tmp_path / "before").shards] + [0]
    count = join(tmp_path / "whole").shards[shard].written - written[shard]
    assert count > 15
    for request in [*range(1, count + 1), *range(-count, 0)]:
        cluster = Story(1, shard_deaths=((shard, request),)).play(tmp_path / str(request))
        assert (cluster.generation, cluster.shards[shard].crashes) == (0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_a_thousand_stories(tmp_path: Path, first: int) -> None:
    for seed in range(first, first + 50):
        story = Story.by_chance(10_000 + seed)
        print(story)
        story.play(tmp_path / str(seed))
