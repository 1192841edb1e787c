"""What a handler need not say: then nobody waits, and nothing is kept."""

from __future__ import annotations

from satrap.rpc.server.handler import Board, Job
from satrap.rpc.server.session import Answer, Session
from satrap.rpc.server.sessions import Limits, Sessions
from satrap.rpc.server.statistics import ServerStatistics
from satrap.rpc.server.turns import Turns
from satrap.rpc.wire.frames import FAILURE, Header, MessageKind
from satrap.rpc.wire.text import pack_text
from tests.rpc.server.adder import Adder


def test_without_a_board_of_its_own_requests_run_in_the_order_they_came() -> None:
    answers: list[Answer] = []
    handler = Adder()
    sessions = Sessions(Limits(wait=0.0), lambda _: None)
    turns = Turns(handler, lambda _, answer: answers.append(answer), sessions)
    session = Session(1, "here")
    session.gated = True  # as a worker of `sync`
    for sequence, step in enumerate((9, 0, 4)):
        header = Header(MessageKind.UPDATE, client=1, sequence=sequence, step=step)
        turns.take(Job(session, header, [pack_text({"number": 1})], 0, 0.0))
    turns.take(Job(session, Header(MessageKind.EXPORT, client=1, sequence=3, step=9), [], 0, 0.0))
    turns.expire(1e9)
    assert [a.header.kind & 0x7F for a in answers] == [MessageKind.UPDATE] * 3 + [FAILURE & 0x7F]
    assert [a.header.sequence for a in answers] == [0, 1, 2, 3]


def test_a_late_request_names_who_is_silent() -> None:
    board, session = Board(), Session(1, "here")
    header = Header(MessageKind.LOOKUP, step=3)
    assert board.refusal(session, header) is None
    assert not board.must_wait(session, header)
    assert not board.missing()
    assert board.too_late(session, header, "2, 3", 25.0).what == "nothing came from rank 2, 3"


def test_what_a_handler_may_leave_out() -> None:
    handler, session = Adder(), Session(1, "here")
    handler.expect(MessageKind.LOOKUP, [b"x"])
    handler.forget(lambda _: True)
    assert handler.epoch is None
    assert handler.seen(session) == (0, 0)
    assert handler.changes() is None
    assert handler.observe() == ServerStatistics()
