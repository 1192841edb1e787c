"""What happens to a simulated run whose buckets move."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from tests.sim.cluster import SimShard
from tests.sim.moving import MovingCluster

STEPS = 8


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
