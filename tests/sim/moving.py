"""A simulated run whose buckets move in portions, and whose workers may die."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from satrap.exchange.resharding.balance import towards
from satrap.store import BUCKETS, RowChunk
from tests.sim.cluster import DIM, TABLES, Died, SimCluster, Worker

T = TypeVar("T")
PORTIONS = 2
"""Portions of a move, about."""


class MovingCluster(SimCluster):
    """A run as `Mover` and the launcher make it: joining, carrying and adopting, generation after generation.

    If a worker dies, all end. The next generation begins with the rows of the last snapshot, under the map of
    the last move that had ended; shards that were joining then are stopped.
    """

    def add_shard(self) -> int:
        """Start one more shard; return its number."""
        number = len(self.shards)
        self.shards.append(type(self.shards[0])(self.world, self.place / f"shard-{number}", self.crash))
        return number

    def run_to(self, step: int) -> None:
        """Train until all workers are before a step, and nothing is under way any more; check everything."""
        self.halt = step
        for trainer in self.trainers:
            trainer.wake()
        self.world.run(lambda: all(t.done == step for t in self.trainers))
        self.flush()
        self.check()

    def flush(self) -> None:
        for exchange in self.exchanges:
            exchange.flush()

    def move(self, members: Sequence[int], seed: int) -> None:
        """Deal the buckets anew by chance among some shards, in portions, and train for a step in between."""
        exchange, random = self.exchanges[0], np.random.default_rng(seed)
        goal = random.choice(np.array(members, np.uint16), BUCKETS // 64).repeat(64)
        at = {s: f"127.0.0.1:{1000 + s}" for s in members if s not in exchange.map.members}
        most = int((exchange.map.owners != goal).sum()) // PORTIONS + 1
        while True:
            now = exchange.map
            owners = towards(now.owners, goal, np.ones(BUCKETS, np.int64), most)
            last = bool((owners == goal).all())
            self.portion(owners, members if last else sorted({*now.members, *members}), at)
            self.check()
            if last:
                break
            self.run_to(self.trainers[0].done + 1)
        self.kept = exchange.map
        for number, shard in enumerate(self.shards):
            if number not in members:
                shard.end()

    def portion(self, owners: np.ndarray, members: Sequence[int], at: dict[int, str]) -> None:
        """Carry what leads to these owners, as the workers of a run do at a barrier."""
        old = self.exchanges[0].map
        new = old.after(owners, members)
        joining = {shard: address for shard, address in at.items() if shard not in old.members}
        for exchange in self.exchanges:
            exchange.moves.join(new, joining)
        self.exchanges[0].moves.carry(new)
        for exchange in self.exchanges:
            exchange.moves.adopt(new)

    def save(self) -> None:
        """Take a snapshot of the rows: nothing is under way."""
        self.snapshot = self.trainers[0].done

    def survive(self, work: Callable[[], T]) -> T:
        """Do something; if a worker dies in it, begin the next generation, and do it again."""
        while True:
            try:
                return work()
            except Died:
                self.begin_anew()

    def begin_anew(self) -> None:
        """Begin the next generation of workers from the snapshot."""
        for exchange in self.exchanges:
            exchange._shards._loop.stop()
        for life in self.lives:
            life.doomed = 0
        for number, shard in enumerate(self.shards):
            if number not in self.kept.members:
                shard.end()
        self.trainers = []  # nobody trains any more
        self.history.check(self.workers, self.staleness, sync=self.sync)  # what they had seen was right
        self.history.rewind(self.snapshot)
        self.generation += 1
        self.exchanges = [self._connect(rank) for rank in range(self.workers)]
        models = [self.history.seen(worker, self.snapshot) for worker in range(self.workers)]
        for t, table in enumerate(TABLES):
            ids = sorted(id for name, id in self.answered() if name == table.name)
            rows = np.zeros((len(ids), DIM), np.float32)
            for worker, model in enumerate(models):
                rows[:, worker] = [model[t][id] for id in ids]
            none = np.empty((len(ids), 0), np.float32)
            self.exchanges[0].rows.load(
                table.name, RowChunk(table.name, np.array(ids, np.uint64), rows, none)
            )
        self.trainers = [Worker(self, rank, exchange) for rank, exchange in enumerate(self.exchanges)]

    def answered(self) -> set[tuple[str, int]]:
        """Return (table, id) of the rows of the snapshot."""
        batches = self.history.batches.items()
        return {
            (table.name, id)
            for (_, step), tables in batches
            if step < self.snapshot
            for table, ids in zip(TABLES, tables, strict=True)
            for id in ids.tolist()
        }
