"""The simulated processes: readers, training threads, exchange threads and shards."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from satrap.tools.plan.simulate.host import Host, Meeting, simpy
from satrap.tools.plan.simulate.setup import Setup, SimulationResult

PREFETCHED = 2
"""Batches held ready by a worker's reader."""
DRAWS = 1 << 16
Process = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True, slots=True)
class StepWork:
    """CPU seconds of one worker's step, alone on its host, and waiting times.

    Args:
        reader, main, other: CPU seconds of the reader, the training thread and all other threads.
        send, receive, push: CPU seconds of the exchange thread for a lookup, its response, and an update.
        lookup, update: CPU seconds of one shard per request of one worker; 0 with a collective exchange.
        turn: seconds per step that the training thread waits for its own process.
        hop: seconds of a message between two processes, without `Setup.latency`.
        meet: seconds of a sum over the workers, and of each all-to-all of a collective exchange.
        sent, received: bytes between one worker and all holders.
        slowdown: see `Host`.
        jitter: see `Setup`.
    """

    reader: float
    main: float
    other: float
    send: float
    receive: float
    push: float
    lookup: float = 0.0
    update: float = 0.0
    turn: float = 0.0
    hop: float = 0.0
    meet: float = 0.0
    sent: float = 0.0
    received: float = 0.0
    slowdown: float = 1.0
    jitter: float = 0.0


def simulate(setup: Setup, work: StepWork) -> SimulationResult:
    """Simulate training on existing rows; equal arguments give equal outcomes."""
    return _SimulatedCluster(setup, work).run()


class _SimulatedCluster:
    def __init__(self, setup: Setup, work: StepWork) -> None:
        self.setup, self.cost, self.env = setup, work, simpy.Environment()
        self.outcome = SimulationResult(setup, sent=work.sent, received=work.received)
        random = np.random.default_rng(setup.seed)
        jitter = work.jitter if setup.jitter is None else setup.jitter
        shape = 1.0 / jitter**2 if jitter else 0.0
        draws = max(DRAWS, setup.shards)
        self._draws = random.gamma(shape, 1.0 / shape, draws) if jitter else np.ones(draws)
        self._drawn = 0
        self._shared = Host(self.env, setup.cores, work.slowdown) if setup.together else None
        self.wire = 0.0 if setup.together else 1.0 / setup.bandwidth
        self.way = work.hop + setup.latency
        self.sum = Meeting(self.env, setup.workers, self._sum_seconds())
        self.talk = Meeting(self.env, setup.workers, self._talk_seconds())
        self.shards = (_Shards(self) if setup.together else _ShardHosts(self)) if _served(setup) else None
        self.workers = [_Worker(self, rank) for rank in range(setup.workers)]
        self.hosts = {id(worker.host): worker.host for worker in self.workers}

    def host(self) -> Host:
        """Return the host of another process."""
        return self._shared or Host(self.env, self.setup.cores, self.cost.slowdown)

    def draws(self, count: int) -> Any:
        """Return float64[count], random factors of work with mean 1."""
        if self._drawn + count > len(self._draws):
            self._drawn = 0
        self._drawn += count
        return self._draws[self._drawn - count : self._drawn]

    def _sum_seconds(self) -> float:
        """Return the seconds of a ring all-reduce: 2 (W - 1) turns, each with 1/W of the numbers."""
        others = self.setup.workers - 1
        passed = 2 * others * self.setup.dense / self.setup.workers * self.wire
        return self.cost.meet + 2 * others * self.setup.latency + passed

    def _talk_seconds(self) -> float:
        """Return the seconds of an all-to-all; ids, rows and gradients share a step's bytes."""
        carried = max(self.cost.sent, self.cost.received) / 3 * self.wire
        return self.cost.meet + self.setup.latency + carried

    def run(self) -> SimulationResult:
        outcome, first = self.outcome, self.workers[0]
        ends = [worker.end for worker in self.workers]
        self.env.run(self.env.all_of(ends))
        start = self.setup.steps // 5
        times = np.array(first.stepped)
        outcome.steps = len(times) - 1 - start
        outcome.seconds = float(times[-1] - times[start])
        outcome.taken, outcome.lookups = np.diff(times[start:]), np.array(first.looked_up[start:])
        outcome.core_seconds = sum(host.busy for host in self.hosts.values())
        if self.shards is not None:
            self.env.run()  # finish requests in flight
            outcome.shard_busy = self.shards.worked / max(self.env.now, 1e-12)
        return outcome


def _served(setup: Setup) -> bool:
    return setup.exchange == "servers"


class _Worker:
    """A worker's three threads; each does one thing at a time."""

    def __init__(self, cluster: _SimulatedCluster, rank: int) -> None:
        self.of, self.env, self.rank = cluster, cluster.env, rank
        self.host = cluster.host()
        self.batches = simpy.Store(self.env, PREFETCHED)
        self.asked: simpy.Store = simpy.Store(self.env)
        self.stepped: list[float] = []
        self.looked_up: list[float] = []
        self.applied = 0  # number of its updates
        self.free = [0.0, 0.0]  # times from which its network can send and receive again
        slow = cluster.setup.straggler if rank == 0 else 1.0
        self.main = cluster.cost.main * slow
        self.env.process(self._read())
        self.env.process(self._exchange())
        self.end = self.env.process(self._train())

    def _work(self, seconds: float) -> simpy.Event:
        return self.host.work(seconds * float(self.of.draws(1)[0]))

    def _read(self) -> Process:
        for step in range(self.of.setup.steps):
            yield self._work(self.of.cost.reader)
            yield self.batches.put(step)

    def _train(self) -> Process:
        """Follow the schedule of `satrap.train.schedule.lookahead`."""
        ahead: deque[simpy.Event] = deque()
        for step in range(self.of.setup.steps):
            yield self.batches.get()
            ahead.append(self._issue(step))
            while len(ahead) > self.of.setup.ahead:
                yield from self._step(ahead.popleft())
        while ahead:
            yield from self._step(ahead.popleft())

    def _issue(self, step: int) -> simpy.Event:
        rows, issued = self.env.event(), self.env.now
        rows.callbacks.append(lambda _: self.looked_up.append(self.env.now - issued))
        self.asked.put(lambda: self._look_up(step, rows))
        return rows

    def _step(self, rows: simpy.Event) -> Process:
        setup, cost = self.of.setup, self.of.cost
        seen = yield rows
        yield self._work(self.main)
        if cost.turn:
            yield self.env.timeout(cost.turn)
        update = len(self.stepped)
        if setup.exchange == "collective":
            self.asked.put(lambda: self._update(update, seen))
        if setup.workers > 1 and setup.mode != "async":
            yield self._work(cost.other)
            yield self.of.sum.come()
        if setup.exchange != "collective":
            self.asked.put(lambda: self._update(update, seen))
        self.of.outcome.issued += 1
        self.stepped.append(self.env.now)

    def _exchange(self) -> Process:
        while True:
            job: Callable[[], Process] = yield self.asked.get()
            yield from job()

    def _look_up(self, step: int, rows: simpy.Event) -> Process:
        yield self._work(self.of.cost.send)
        if self.of.shards is not None:
            self.env.process(self._fetch(step, rows))
            return
        if self.of.setup.exchange == "collective":
            yield self.of.talk.come()
            yield self.of.talk.come()
        yield self._work(self.of.cost.receive)
        rows.succeed((self.of.outcome.applied, self.applied))

    def _fetch(self, step: int, rows: simpy.Event) -> Process:
        """Wait for the response to a lookup, while the exchange thread does other work."""
        assert self.of.shards is not None
        yield self.env.timeout(self._carried(0, self.of.cost.sent / 2))
        yield from self.of.shards.lookup(step)
        seen = self.of.outcome.applied, self.applied
        yield self.env.timeout(self.of.way + self._carried(1, self.of.cost.received))
        self.asked.put(lambda: self._receive(rows, seen))

    def _receive(self, rows: simpy.Event, seen: tuple[int, int]) -> Process:
        yield self._work(self.of.cost.receive)
        rows.succeed(seen)

    def _update(self, step: int, seen: tuple[int, int]) -> Process:
        yield self._work(self.of.cost.push)
        if self.of.setup.exchange == "collective":
            yield self.of.talk.come()
        if self.of.shards is None:
            self._done(seen)
        else:
            self.env.process(self._push(step, seen))

    def _push(self, step: int, seen: tuple[int, int]) -> Process:
        assert self.of.shards is not None
        yield self.env.timeout(self._carried(0, self.of.cost.sent / 2))
        yield from self.of.shards.update(step)
        self._done(seen)

    def _carried(self, way: int, size: float) -> float:
        """Return the seconds until the worker's network has carried some bytes after earlier bytes."""
        self.free[way] = max(self.free[way], self.env.now) + size * self.of.wire
        return self.free[way] - self.env.now

    def _done(self, seen: tuple[int, int]) -> None:
        outcome = self.of.outcome
        own_missed, every = self.applied - seen[1], outcome.applied - seen[0]
        if self.of.setup.mode == "sync":  # prefetched rows are patched
            own_missed, every = 0, 0
        outcome.own[own_missed] += 1
        outcome.others[every - own_missed] += 1
        self.applied += 1
        outcome.applied += 1


class _Shards:
    """Shard servers on the workers' host; each serves one request at a time."""

    def __init__(self, cluster: _SimulatedCluster) -> None:
        setup, cost = cluster.setup, cluster.cost
        self.of, self.env = cluster, cluster.env
        self._host, self.worked = cluster.host(), np.zeros(setup.shards)
        self._turns = [simpy.Resource(self.env) for _ in range(setup.shards)]
        share = np.ones(setup.shards)
        share[0] = setup.hot
        share *= setup.shards / share.sum()
        self.seconds = {"lookup": cost.lookup * share, "update": cost.update * share}
        self._pushed: defaultdict[int, int] = defaultdict(int)
        self._complete: defaultdict[int, simpy.Event] = defaultdict(self.env.event)
        self.env.process(self._lose())

    def lookup(self, step: int) -> Process:
        """Serve a lookup at all shards; in sync mode, after all workers' earlier updates."""
        sums = self.of.setup.mode == "sync" and self.of.setup.workers > 1
        before = step - 1 - self.of.setup.ahead
        if sums and before >= 0:
            yield self._complete[before]
        yield from self._serve("lookup")

    def update(self, step: int) -> Process:
        """Serve an update at all shards."""
        yield from self._serve("update")
        self._pushed[step] += 1
        if self._pushed[step] == self.of.setup.workers:
            self._complete[step].succeed()

    def _serve(self, kind: str) -> Process:
        yield self.env.timeout(self.of.way)
        seconds = self.seconds[kind] * self.of.draws(self.of.setup.shards)
        yield self.env.all_of([self.env.process(self._one(i, s)) for i, s in enumerate(seconds.tolist())])

    def _one(self, shard: int, seconds: float) -> Process:
        with self._turns[shard].request() as turn:
            yield turn
            start = self.env.now
            yield self._host.work(seconds)
            self.worked[shard] += self.env.now - start

    def _lose(self) -> Process:
        """Make the first shard unavailable for some time, after half of the steps."""
        while self.of.setup.lost:
            yield self.env.timeout(self.of.cost.main)
            if 2 * self.of.outcome.issued >= self.of.setup.steps * self.of.setup.workers:
                yield from self._away(self.of.setup.lost)
                return

    def _away(self, seconds: float) -> Process:
        with self._turns[0].request() as turn:
            yield turn
            yield self.env.timeout(seconds)


class _ShardHosts(_Shards):
    """Shard servers on separate hosts.

    Their queues are computed instead of simulated. Requests arrive in the order issued, and each shard serves
    one at a time, so a service ends its duration after the later of the request's arrival and the end of the
    previous service (Lindley's recursion), in one operation for all shards. A shard's network may limit it.
    """

    def __init__(self, cluster: _SimulatedCluster) -> None:
        super().__init__(cluster)
        setup, cost = cluster.setup, cluster.cost
        bytes_per_second = setup.bandwidth - setup.background
        share = self.seconds["lookup"] / max(cost.lookup, 1e-300) / setup.shards
        for kind, size in (("lookup", cost.received), ("update", cost.sent / 2)):
            self.seconds[kind] = np.maximum(self.seconds[kind], size * share / bytes_per_second)
        self._free = np.zeros(setup.shards)

    def _serve(self, kind: str) -> Process:
        coming = self.env.now + self.of.way
        seconds = self.seconds[kind] * self.of.draws(self.of.setup.shards)
        np.maximum(self._free, coming, out=self._free)
        self._free += seconds
        self.worked += seconds
        yield self.env.timeout(float(self._free.max()) - self.env.now)

    def _away(self, seconds: float) -> Process:
        self._free[0] = max(self._free[0], self.env.now) + seconds
        yield self.env.timeout(0)
