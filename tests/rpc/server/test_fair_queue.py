"""Connections take turns; what was taken does not count as queued; after the end nothing is taken."""

from __future__ import annotations

import threading

from satrap.rpc.server.fair_queue import FairQueue
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import Session
from satrap.rpc.wire.frames import Header, MessageKind


def put(queue: FairQueue, client: int, connection: str, size: int = 1) -> None:
    queue.put(Job(Session(client, connection), Header(MessageKind.FLUSH, client=client), [], size, 0.0))


def taken(queue: FairQueue, seconds: float = 0.0) -> int | None:
    job = queue.get(seconds)
    return None if job is None else job.header.client


def test_connections_take_turns() -> None:
    queue = FairQueue()
    for _ in range(5):
        put(queue, 1, "a")
        put(queue, 2, "a")
    put(queue, 3, "b", size=7)
    put(queue, 3, "b")
    put(queue, 4, "c")
    assert (queue.jobs, queue.bytes) == (13, 19)
    assert [taken(queue) for _ in range(13)] == [1, 3, 4, 2, 3, 1, 2, 1, 2, 1, 2, 1, 2]
    assert (queue.jobs, queue.bytes) == (0, 0)
    assert taken(queue) is None


def test_a_request_that_comes_is_taken_at_once() -> None:
    queue = FairQueue()
    threading.Timer(0.05, put, (queue, 1, "a")).start()
    assert taken(queue, 60.0) == 1


def test_a_closed_queue_gives_nothing_and_makes_nobody_wait() -> None:
    queue = FairQueue()
    threading.Timer(0.05, queue.close).start()
    assert taken(queue, 60.0) is None
    put(queue, 1, "a")
    assert taken(queue, 60.0) is None
