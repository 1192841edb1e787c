"""Clients, shards and trainers in one thread, on a simulated clock and network, with the protocol's own code.

Everything but sockets and threads is what runs in production: `ServersExchange` and its `Peer`s, `Sessions`,
`Turns`, `Service` and the journal, on real files. The network drops, doubles, delays and reorders messages;
shards die, also between the journal and the store, and come back from their journals. All of it follows from
one seed.

The rows keep their own history: one optimizer step of SGD, lr 1, adds 1 to the number that belongs to the
worker, so that a row says how many updates of each worker it has seen.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from satrap.exchange import Lookup as Issued
from satrap.exchange import LookupRequest
from satrap.exchange.servers import ClientOptions, ServersExchange, Wire, WorkerId
from satrap.exchange.servers.shard.recovery import Recovery
from satrap.exchange.servers.shard.service import Service
from satrap.exchange.shard_map import ShardMap
from satrap.optim import SGD
from satrap.rpc.client.peer import Peer
from satrap.rpc.server.journal import Journal
from satrap.rpc.server.session import Answer
from satrap.rpc.server.sessions import Limits, Sessions
from satrap.rpc.server.turns import Turns
from satrap.rpc.wire.frames import decode, digest, encode
from satrap.schema import Table
from tests.sim.invariants import INVARIANTS

DIM = 8
"""Workers there may be."""
TABLES = [Table(name, dim=DIM, optimizer=SGD(lr=1.0), initial_scale=0.0) for name in ("a", "b")]
IDS = 40
PATIENCE = 100_000.0
"""Simulated seconds after which something is taken to hang."""


class Died(BaseException):  # as a kill: nothing may catch it
    """A shard is killed inside a request, or a worker as it sends one."""


class World:
    """The clock, and what happens when.

    Args:
        seed: of everything.
        fault: probability that a message is dropped; the same that it is doubled, or comes late.
    """

    def __init__(self, seed: int, fault: float) -> None:
        self.random, self.fault, self.now = random.Random(seed), fault, 0.0
        self.faults = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._count), event))

    def run(self, until: Callable[[], bool]) -> None:
        limit = self.now + PATIENCE
        while not until():
            assert self._events, "nothing happens any more"
            self.now, _, event = heapq.heappop(self._events)
            assert self.now < limit, "it hangs"
            event()

    def transmit(self, deliver: Callable[[], None]) -> None:
        """Deliver a message, or not, or twice, or late."""
        roll = self.random.random() / self.fault if self.fault else 9.0
        self.faults += roll < 3
        times = 0 if roll < 1 else 2 if roll < 2 else 1
        for _ in range(times):
            late = self.random.uniform(0.05, 3.0) if 2 <= roll < 3 else 0.0
            self.after(self.random.uniform(0.001, 0.004) + late, deliver)


class CrashingJournal(Journal):
    """Dies now and then right after a request was written."""

    def __init__(self, folder: Path, shard: SimShard) -> None:
        super().__init__(folder)
        self._shard = shard

    def append(self, head: bytes, parts: Any) -> None:
        shard = self._shard
        shard.written += 1
        if shard.written == -shard.doomed:  # just before
            raise Died
        super().append(head, parts)
        if shard.written == shard.doomed or shard.world.random.random() < shard.crash:
            raise Died


class SimShard:
    """A shard server: what is in memory dies with it, its journal does not.

    Args:
        world: where it is.
        folder: of the journal.
        crash: probability of dying, per request.

    Attributes:
        written: requests written to its journal so far.
        doomed: it dies after writing this one; of -n, before writing number n.
    """

    def __init__(self, world: World, folder: Path, crash: float) -> None:
        self.world, self.folder, self.crash = world, folder, crash
        self.crashes, self.recovered = 0, 0
        self.written, self.doomed = 0, 0
        self.links: dict[bytes, Callable[[list[bytes]], None]] = {}
        self.ended = False
        self.start()

    def start(self) -> None:
        if self.ended:
            return
        self.up = True
        self.journal = CrashingJournal(self.folder, self)
        self.service = Service()
        self.sessions = Sessions(Limits(), lambda job: self.turns.take(job), epoch=lambda: self.service.epoch)
        self.turns = Turns(self.service, self._finished, self.sessions, self.journal)
        recovery = Recovery(self.journal, self.service)
        self.recovered += recovery.updates
        recovery.recover(self.sessions)
        self._tick(self.service)

    def _tick(self, alive: Service) -> None:
        if self.up and alive is self.service:
            self.turns.expire(self.world.now)
            self.world.after(0.2, lambda: self._tick(alive))

    def die(self) -> None:
        """Lose everything but the files; a write may have been cut short."""
        if not self.up:
            return
        self.up = False
        self.crashes += 1
        torn = self.journal.segments[-1]
        self.journal.close()
        self.service.close()
        if self.world.random.random() < 0.5:
            whole = torn.path.read_bytes()
            head = whole[52 : 52 + self.world.random.randrange(1, 26)]  # of a record that was not finished
            with open(torn.path, "ab") as file:
                file.write(head)
        self.world.after(self.world.random.uniform(0.5, 5.0), self.start)

    def end(self) -> None:
        """Be stopped for good, as a shard that has left or that will not join after all."""
        if self.up:
            self.up = False
            self.journal.close()
            self.service.close()
        self.ended = True

    def receive(self, identity: bytes, message: list[bytes]) -> None:
        if not self.up:
            return
        try:
            answer = self.sessions.receive(identity, message[0], message[1:], self.world.now)
        except Died:
            self.die()
            return
        if answer is not None:
            self._answer(identity, answer)

    def _finished(self, job: Any, answer: Answer) -> None:
        self.sessions.finished(job, answer)
        self._answer(job.session.identity, answer)

    def _answer(self, identity: bytes, answer: Answer) -> None:
        parts = [bytes(memoryview(p)) for p in answer.parts]
        message = [encode(answer.header, answer.payload), *parts]
        link = self.links[identity]
        self.world.transmit(lambda: link(message))


@dataclass
class Life:
    """The life of a worker.

    Args:
        sent: messages it has sent so far.
        doomed: it dies after sending this one; of -n, before sending number n.
    """

    sent: int = 0
    doomed: int = 0


class SimNetwork:
    """The network of one client, in place of `Loop`; `life` is that of its worker."""

    def __init__(
        self, world: World, shards: Sequence[SimShard], life: Life, *, key: object, on_end: Any
    ) -> None:
        self.world, self.shards, self.life, self._on_end = world, shards, life, on_end
        self.sent_bytes, self.received_bytes, self._stopped = 0, 0, False
        self.peers: list[Peer] = []
        self._tick()

    def _link(self, peer: Peer, shard: SimShard) -> None:
        self.peers = [*self.peers, peer]
        self._at = {**getattr(self, "_at", {}), peer: shard}
        shard.links[self._identity(peer)] = lambda message: self._receive(peer, message)

    def _identity(self, peer: Peer) -> bytes:
        return b"%d" % peer.client

    def join(self, peer: Peer, address: str) -> None:
        self._link(peer, self.shards[int(address.rpartition(":")[2]) - 1000])

    def leave(self, peer: Peer) -> None:
        self.peers = [other for other in self.peers if other is not peer]

    def clock(self) -> float:
        return self.world.now

    def post(self, task: Callable[[], None]) -> None:
        task()
        self._pump()

    def wait(self, future: Future[Any]) -> Any:
        self.world.run(future.done)
        return future.result()

    def stop(self) -> None:
        self._stopped = True

    def _tick(self) -> None:
        if not self._stopped:
            self._pump()
            self.world.after(0.25, self._tick)

    def _pump(self) -> None:
        busy = any(peer.waiting for peer in self.peers)
        for peer in self.peers:
            self._send(peer, peer.outgoing(self.world.now, busy=busy))
            if error := peer.overdue(self.world.now):
                self._stopped = True
                self._on_end(error)

    def _send(self, peer: Peer, messages: Any) -> None:
        for message in messages:
            copy = [bytes(memoryview(part)) for part in message]
            self.life.sent += 1
            if self.life.sent == -self.life.doomed:
                raise Died
            self.world.transmit(lambda m=copy: self._at[peer].receive(self._identity(peer), m))
            if self.life.sent == self.life.doomed:
                raise Died

    def _receive(self, peer: Peer, message: list[bytes]) -> None:
        if self._stopped or peer not in self.peers:
            return
        header = decode(message[0], message[1:])
        assert encode(header, digest(message[1:])) == message[0]
        self._send(peer, peer.receive(header, message[1:], self.world.now))


@dataclass
class Lookup:
    """What a worker saw, for the validator: rows of its own ids, and which of its updates were issued.

    `since`: its generation began with the rows of that step.
    """

    worker: int
    step: int
    ids: list[np.ndarray]
    rows: list[np.ndarray]
    since: int = 0


@dataclass
class History:
    """Everything the workers did and saw.

    Args:
        batches: by (worker, step): the ids of each table.
    """

    batches: dict[tuple[int, int], list[np.ndarray]] = field(default_factory=dict)
    lookups: list[Lookup] = field(default_factory=list)

    def seen(self, worker: int, before: int) -> list[Counter[int]]:
        """The model: id -> updates of a worker in steps below `before`, per table."""
        counts: list[Counter[int]] = [Counter() for _ in TABLES]
        for step in range(before):
            for count, ids in zip(counts, self.batches.get((worker, step), []), strict=False):
                count.update(ids.tolist())
        return counts

    def rewind(self, step: int) -> None:
        """Forget a step and all after it: they are trained again."""
        self.batches = {key: ids for key, ids in self.batches.items() if key[1] < step}
        self.lookups = [lookup for lookup in self.lookups if lookup.step < step]

    def check(self, workers: int, staleness: int, *, sync: bool) -> None:
        """Every lookup saw exactly the updates it should have."""
        cache: dict[tuple[int, int], list[Counter[int]]] = {}
        for lookup in self.lookups:
            for other in range(workers):
                own = other == lookup.worker
                if not own and not sync:
                    continue  # as they arrive
                key = (other, max(lookup.since, lookup.step - (0 if sync else staleness)))
                if key not in cache:
                    cache[key] = self.seen(*key)
                for model, ids, rows in zip(cache[key], lookup.ids, lookup.rows, strict=True):
                    expected = [model[i] for i in ids.tolist()]
                    assert rows[:, other].tolist() == expected, (lookup.worker, lookup.step, other)


class Worker:
    """A trainer: lookups run `staleness` steps ahead of updates."""

    def __init__(self, cluster: SimCluster, rank: int, exchange: ServersExchange) -> None:
        self.cluster, self.rank, self.exchange = cluster, rank, exchange
        self.random = np.random.default_rng([cluster.seed, rank, cluster.generation])
        self.since = self.issued = self.done = cluster.snapshot
        self._waiting: dict[int, Issued[Any]] = {}
        self._comes_back = False

    @property
    def finished(self) -> bool:
        return self.done == self.cluster.steps

    def wake(self) -> None:
        """Go on, unless it will by itself."""
        if not self._comes_back:
            self.turn()

    def turn(self) -> None:
        """Do what the schedule says next; come back soon."""
        cluster, self._comes_back = self.cluster, False
        if self.done == cluster.halt or self not in cluster.trainers:
            return
        while self.issued < min(cluster.steps, self.done + cluster.staleness + 1):
            ids = [self._some() for _ in TABLES]
            cluster.history.batches[self.rank, self.issued] = ids
            splits = np.cumsum([0, *map(len, ids)]).astype(np.int64)
            requests = [LookupRequest(0, np.concatenate(ids), splits)]
            self._waiting[self.issued] = self.exchange.lookup(requests, create=True)
            self.issued += 1
        issued = self._waiting[self.done]
        if issued.rows.done():
            [rows] = issued.result()
            ids = cluster.history.batches[self.rank, self.done]
            parts = np.split(rows, issued.requests[0].splits[1:-1])
            cluster.history.lookups.append(Lookup(self.rank, self.done, ids, parts, self.since))
            gradient = np.zeros_like(rows)
            gradient[:, self.rank] = -cluster.workers
            del self._waiting[self.done]
            self.done += 1
            self.exchange.apply(issued, [gradient], lr_scale=1.0)
        if not self.finished:
            self._comes_back = True
            cluster.world.after(cluster.world.random.uniform(0.001, 0.02), self.turn)

    def _some(self) -> np.ndarray:
        return self.random.choice(IDS, int(self.random.integers(0, 12)), replace=False).astype(np.uint64)


class SimCluster:
    """A whole run.

    Args:
        place: for the journals.
        seed: of everything.
        shards, workers, steps: how many; steps are of each worker.
        staleness: of hybrid mode; None: sync.
        fault: see `World`.
        crash: probability that a shard dies, per request.

    Attributes:
        halt: the step before which all workers wait, -1: none.
        generation: of the workers.
        snapshot: the step of the rows with which this generation of workers began.
        kept: the shard map with which the next generation would begin.
        lives: of the workers, by rank.
        newest: generation and epoch when everything was last checked.
    """

    def __init__(
        self,
        place: Path,
        seed: int,
        *,
        shards: int,
        workers: int,
        steps: int,
        staleness: int | None,
        fault: float,
        crash: float,
    ) -> None:
        self.seed, self.workers, self.steps = seed, workers, steps
        self.sync, self.staleness = staleness is None, staleness or 0
        self.history, self.world = History(), World(seed, fault)
        self.halt, self.generation, self.snapshot = -1, 0, 0
        self.place, self.crash, self.kept = place, crash, ShardMap(shards)
        self.lives = [Life() for _ in range(workers)]
        self.newest, self.tables = (0, 0), TABLES
        self.shards = [SimShard(self.world, place / f"shard-{s}", crash) for s in range(shards)]
        self.exchanges = [self._connect(rank) for rank in range(workers)]
        self.trainers = [Worker(self, rank, e) for rank, e in enumerate(self.exchanges)]

    def _connect(self, rank: int) -> ServersExchange:
        return ServersExchange(
            [f"127.0.0.1:{1000 + s}" for s in self.kept.members],
            TABLES,
            wire=Wire("float32", "float32"),
            mode="sync" if self.sync else "hybrid",
            worker=WorkerId(rank, self.workers, self.generation),
            map=self.kept,
            options=ClientOptions(
                deadline=60.0, network=partial(SimNetwork, self.world, self.shards, self.lives[rank])
            ),
        )

    def run(self) -> None:
        """Train to the end and check everything."""
        self.halt = -1
        for trainer in self.trainers:
            trainer.wake()
        self.world.run(lambda: all(t.finished for t in self.trainers))
        for exchange in self.exchanges:
            exchange.flush()
        self.check()
        for exchange in self.exchanges:
            exchange.close()

    def touched(self, *, issued: bool) -> set[tuple[str, int]]:
        """Return (table, id) of the lookups that were answered, or of all that were issued."""
        found = set()
        for rank, trainer in enumerate(self.trainers):
            for step in range(trainer.issued if issued else trainer.done):
                for table, ids in zip(TABLES, self.history.batches.get((rank, step), []), strict=False):
                    found |= {(table.name, id) for id in ids.tolist()}
        return found

    def check(self) -> None:
        """Compare everything with the model; nothing may be under way."""
        self.world.run(lambda: all(shard.up or shard.ended for shard in self.shards))
        for invariant in INVARIANTS:
            invariant(self)
