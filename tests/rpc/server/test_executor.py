"""Connections take turns; what has begun does not count as queued; a stop does not wait for the queue."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from satrap.exchange.servers.shard.service import Service
from satrap.rpc.server.executor import Executor
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import Session
from satrap.rpc.server.turns import Turns
from satrap.rpc.wire.frames import Header, MessageKind
from tests.cluster.runs import eventually


class Desk:
    """An executor that begins when the test says so."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.open, self.ended, self.ticks = threading.Event(), threading.Event(), 0
        turns = Turns(Service(), lambda job, _: self.done.append(job.header.client), wait=1.0)
        self.executor = Executor(turns, self._first, self.ended.set, self._tick)
        self.executor.start()

    def _first(self) -> None:
        self.open.wait(20)

    def _tick(self, _: float) -> None:
        self.ticks += 1

    def submit(self, client: int, connection: str, size: int = 1) -> None:
        job = Job(Session(client, connection), Header(MessageKind.FLUSH, client=client), [], size, 0.0)
        self.executor.submit(job)


@pytest.fixture
def desk() -> Iterator[Desk]:
    made = Desk()
    yield made
    made.open.set()
    made.executor.stop()


def test_connections_take_turns(desk: Desk) -> None:
    for _ in range(5):
        desk.submit(1, "a")
        desk.submit(2, "a")
    desk.submit(3, "b", size=7)
    desk.submit(3, "b")
    desk.submit(4, "c")
    assert (desk.executor.queued, desk.executor.queued_bytes) == (13, 19)
    desk.open.set()
    assert eventually(lambda: len(desk.done) == 13, 10)
    assert desk.done == [1, 3, 4, 2, 3, 1, 2, 1, 2, 1, 2, 1, 2]
    assert (desk.executor.queued, desk.executor.queued_bytes) == (0, 0)


def test_a_stop_drops_what_has_not_begun(desk: Desk) -> None:
    for _ in range(5000):
        desk.submit(1, "a")
    stopping = threading.Thread(target=desk.executor.stop)
    stopping.start()
    assert eventually(lambda: desk.executor._stopping, 10)
    desk.open.set()
    stopping.join(10)
    assert desk.ended.is_set()
    assert not desk.executor.alive
    assert not desk.done


def test_it_looks_at_what_waits_also_under_load(desk: Desk) -> None:
    desk.open.set()

    def loaded() -> bool:
        desk.submit(1, "a")
        return desk.ticks >= 3

    assert eventually(loaded, 20)
