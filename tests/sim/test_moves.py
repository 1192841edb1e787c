"""Buckets move while messages get lost, and shards and workers die: see `invariants`."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sim.cluster import SimShard
from tests.sim.moving import MovingCluster

STEPS = 8
SEEDS = 1000


@dataclass(frozen=True)
class Story:
    """What happens to a run; by default nothing bad.

    Args:
        seed: of everything.
        staleness: of hybrid mode; None: sync.
        workers: how many.
        fault, crash: see `SimCluster`.
        deaths: (rank, message): the worker dies after it has sent so many messages since the snapshot before
            the first move; -n: before the n-th.
        shard_deaths: (shard, request): the same of shards and the requests in their journals since then.
    """

    seed: int
    staleness: int | None = 2
    workers: int = 2
    fault: float = 0.0
    crash: float = 0.0
    deaths: tuple[tuple[int, int], ...] = ()
    shard_deaths: tuple[tuple[int, int], ...] = ()

    @classmethod
    def by_chance(cls, seed: int) -> Story:
        """Return one that follows from a seed: at most two workers die, of them one in the moves."""
        chance = random.Random(seed)
        workers = chance.randint(1, 3)
        deaths = [
            (rank, chance.choice((1, -1)) * chance.randint(1, 300))
            for rank in chance.sample(range(workers), chance.choice((0, 1, 1, min(2, workers))))
        ]
        return cls(
            seed,
            staleness=chance.choice((None, 0, 1, 3)),
            workers=workers,
            fault=chance.choice((0.0, 0.05, 0.15)),
            crash=chance.choice((0.0, 0.01, 0.03)),
            deaths=tuple(deaths),
        )

    def begun(self, place: Path) -> MovingCluster:
        """Return a run with a snapshot before its first move."""
        cluster = MovingCluster(
            place,
            self.seed,
            shards=2,
            workers=self.workers,
            steps=3 * STEPS,
            staleness=self.staleness,
            fault=self.fault,
            crash=self.crash,
        )
        cluster.survive(lambda: cluster.run_to(STEPS))
        cluster.save()
        return cluster

    def play(self, place: Path) -> MovingCluster:
        """Train over two shards, three, and two again; return the run once everything is checked."""
        cluster = self.begun(place)
        for rank, message in self.deaths:
            life = cluster.lives[rank]
            life.doomed = message + (life.sent if message > 0 else -life.sent)
        cluster.survive(lambda: self.join(cluster))
        cluster.survive(lambda: self._drain(cluster))
        cluster.survive(cluster.run)
        return cluster

    def join(self, cluster: MovingCluster) -> None:
        """Let a third shard join."""
        cluster.run_to(STEPS)
        joining = cluster.add_shard()
        for shard, request in self.shard_deaths:
            found: SimShard = cluster.shards[shard]
            found.doomed = request + (found.written if request > 0 else -found.written)
        cluster.move([0, 1, joining], self.seed)

    def _drain(self, cluster: MovingCluster) -> None:
        if cluster.trainers[0].done < 2 * STEPS:  # it may have begun anew
            cluster.run_to(2 * STEPS)
        cluster.move([1, cluster.kept.members[-1]], self.seed + 1)


@pytest.mark.parametrize("staleness", [2, None])
@pytest.mark.parametrize("given", [*range(4), None])
def test_two_three_and_two_shards_over_a_bad_network(
    tmp_path: Path, given: int | None, staleness: int | None
) -> None:
    seed = random.SystemRandom().randrange(10**9) if given is None else given
    print(f"seed {seed}")  # shown if it fails
    cluster = Story(seed, staleness=staleness, fault=0.1, crash=0.02).play(tmp_path)
    assert len(cluster.history.lookups) == 2 * 3 * STEPS


@pytest.mark.parametrize("given", [*range(8), None])
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
