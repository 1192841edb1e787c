"""Limits per client, counted before any work is done; what one client does hurts no other."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import StoreError
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import WINDOW, Answer, failure
from satrap.rpc.server.sessions import Limits, Sessions, share
from satrap.rpc.wire.frames import ANSWER, FAILURE, Buffer, Code, Header, MessageKind, digest, encode
from satrap.rpc.wire.text import unpack_text


class Desk:
    """Sessions whose requests are executed when the test says so."""

    def __init__(self, **limits: float) -> None:
        self.jobs: list[Job] = []
        self.sessions = Sessions(Limits(**limits), self.jobs.append)  # type: ignore[arg-type]

    def send(
        self,
        client: int,
        sequence: int,
        *,
        to: str = "",
        kind: MessageKind = MessageKind.LOOKUP,
        now: float = 0.0,
        **more: int,
    ) -> Answer | None:
        parts: Sequence[Buffer] = []
        header = Header(kind, 1, client, sequence, **more)
        return self.sessions.receive(to or f"of {client}", encode(header, digest(parts)), parts, now)

    def hello(self, client: int, *, to: str = "", now: float = 0.0, accept: bool = True) -> Answer | None:
        refusal = self.send(client, 0, to=to, kind=MessageKind.HELLO, now=now)
        if refusal is None and accept:
            self.answer()
        return refusal

    def answer(self, size: int = 0) -> None:
        """Answer the oldest request."""
        job = self.jobs.pop(0)
        self.sessions.finished(job, Answer.of(job.header.answer(), [bytes(size)]))


def code(answer: Answer | None) -> int:
    assert answer is not None
    assert answer.header.kind == FAILURE
    return int(unpack_text(answer.parts[0])["code"])


BYTES = st.integers(1, 1 << 20)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), BYTES), max_size=200), st.integers(1 << 20, 1 << 24))
def test_shares_are_bounded_together_and_nobody_is_shut_out(asked: list[tuple[int, int]], limit: int) -> None:
    held = dict.fromkeys(range(10), 0)
    for client, size in asked:
        if share(limit, [h for h in held.values() if h], held[client]):
            held[client] += size
    assert sum(held.values()) <= 4 * limit + (1 << 20)
    for own in held.values():
        assert own <= limit / 2 + (1 << 20)
    if sum(h > 0 for h in held.values()) <= 3:  # however much three take
        assert share(limit, [h for h in held.values() if h], 0)


def test_a_client_has_a_window_whether_its_requests_wait_or_its_answers() -> None:
    desk = Desk()
    desk.hello(1)
    for n in range(1, WINDOW):
        assert desk.send(1, n) is None
    assert code(desk.send(1, WINDOW)) == Code.BUSY
    assert len(desk.jobs) == WINDOW - 1
    desk.answer()
    assert code(desk.send(1, WINDOW)) == Code.BUSY
    assert desk.send(1, WINDOW, acknowledged=2) is None


def test_what_waits_for_a_step_is_bounded_for_each_client() -> None:
    desk = Desk(queued_bytes=1000)
    for client in (1, 2):
        desk.hello(client)
    greedy = desk.sessions.known[1]
    greedy.parked, greedy.parked_bytes = 2, 900
    assert code(desk.send(1, 1)) == Code.BUSY
    assert desk.send(2, 1) is None  # who has nothing waiting gets through
    greedy.parked_bytes = 100
    assert desk.send(1, 1) is None


def test_a_client_that_acknowledges_nothing_has_no_room_for_answers_and_others_have() -> None:
    desk = Desk(answer_bytes=1000, keep=60.0)
    for client in (1, 2, 3):
        desk.hello(client)
        assert desk.send(client, 1) is None
        desk.answer(400 if client < 3 else 0)
    known = desk.sessions.known
    assert [desk.sessions.has_room(known[c]) for c in (1, 2, 3)] == [False, False, True]
    desk.send(1, 1, kind=MessageKind.PING, acknowledged=2)
    assert desk.sessions.has_room(known[1])
    desk.sessions.sweep(50.0)
    assert known[2].bytes == 400
    desk.sessions.sweep(61.0)
    assert known[2].bytes == 0
    assert code(desk.send(2, 1)) == Code.DEADLINE  # and not silence


def test_a_client_earns_room_for_answers_by_acknowledging_them() -> None:
    desk = Desk()
    desk.hello(1)
    session = desk.sessions.known[1]
    for n in range(1, 4):
        desk.send(1, n)
        desk.answer(600_000)
        assert desk.sessions.has_room(session) is (n == 1)
    desk.send(1, 9, kind=MessageKind.PING, acknowledged=3)
    for n in range(4, 7):
        desk.send(1, n, acknowledged=3)
        desk.answer(600_000)
        assert desk.sessions.has_room(session) is (n < 6)


def test_another_connection_with_the_id_of_a_client_gets_nothing_of_it() -> None:
    desk = Desk()
    desk.hello(1, to="own")
    desk.send(1, 1, to="own", now=1.0)
    session = desk.sessions.known[1]
    desk.answer(9)
    desk.send(1, 2, to="own", now=1.0)
    desk.send(1, 7, to="thief", kind=MessageKind.PING, now=1.5, acknowledged=2)
    desk.send(1, 0, to="thief", now=1.5, acknowledged=2)
    desk.send(1, 99, to="thief", now=1.5, acknowledged=2)
    assert (session.identity, session.bytes, session.seen) == ("own", 9, 1.0)
    assert desk.send(1, 1, to="own", now=1.6) is not None  # its answer is there


def test_a_client_goes_on_from_another_connection() -> None:
    desk = Desk()
    desk.hello(1, to="first")
    desk.send(1, 1, to="first", now=1.0)
    session = desk.sessions.known[1]
    desk.send(1, 1, to="second", now=1.1)  # it sends again what is being executed
    assert session.identity == "second"
    desk.send(1, 5, to="third", kind=MessageKind.PING, now=1.2)
    assert session.identity == "second"
    desk.send(1, 6, to="third", kind=MessageKind.PING, now=9.0)  # the second has been silent
    assert session.identity == "third"


def test_a_connection_has_few_clients_and_leaves_room_for_others() -> None:
    desk = Desk(clients=40, connection_clients=8)
    refused = [desk.hello(client, to="flood") for client in range(1, 2000)]
    assert [code(r) for r in refused if r is not None] == [Code.BUSY] * (1999 - 8)
    assert desk.hello(5000) is None


def test_hellos_that_nobody_has_looked_at_are_few() -> None:
    desk = Desk(hellos=4)
    refused = [desk.hello(client, accept=False) for client in range(1, 10)]
    assert sum(r is None for r in refused) == 4
    desk.answer()
    assert desk.hello(99) is None


def test_who_has_only_said_hello_makes_room_first() -> None:
    desk = Desk(clients=4, settle=10.0, idle=3600.0)
    for client in range(1, 5):
        desk.hello(client, now=client)
    desk.send(1, 1, now=4.0)
    assert code(desk.hello(9, now=9.0)) == Code.BUSY
    assert desk.hello(9, now=20.0) is None
    assert sorted(desk.sessions.known) == [1, 3, 4, 9]
    for client in (10, 11):
        assert desk.hello(client, now=29.0) is None
    assert sorted(desk.sessions.known) == [1, 9, 10, 11]


def test_a_refused_hello_leaves_nothing() -> None:
    desk = Desk()
    desk.hello(1, accept=False)
    job = desk.jobs.pop()
    desk.sessions.finished(job, failure(job.header, Code.CONFIG, StoreError("no")))
    assert not desk.sessions.known
    assert code(desk.send(1, 1)) == Code.UNKNOWN_CLIENT


def test_sessions_come_and_go_in_several_threads() -> None:
    """Lanes finish hellos in threads of their own while messages are received."""
    desk = Desk(clients=64, settle=0.0)
    ended = threading.Event()

    def finish() -> None:
        while not ended.is_set():
            with suppress(IndexError):
                job = desk.jobs.pop()
                wrong = failure(job.header, Code.CONFIG, StoreError("no"))
                right = Answer.of(Header(MessageKind.HELLO | ANSWER, 1, job.header.client))
                desk.sessions.finished(job, wrong if job.header.client % 3 else right)
            desk.sessions.heard(0)
            desk.sessions.sweep(0.0)

    with ThreadPoolExecutor(3) as pool:
        finishing = [pool.submit(finish) for _ in range(3)]
        try:
            for client in range(1, 4000):
                desk.send(client, 0, kind=MessageKind.HELLO, now=client * 0.1)
        finally:
            ended.set()
        for each in finishing:
            each.result()
