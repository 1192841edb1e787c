"""What a server remembers of one client: answers until they are acknowledged, or given up."""

from __future__ import annotations

from satrap.rpc.server.session import Answer, Session, Verdict
from satrap.rpc.wire.frames import ANSWER, Header, MessageKind


def answered(session: Session, count: int) -> None:
    for n in range(session.next, session.next + count):
        assert session.admit(Header(MessageKind.LOOKUP, sequence=n)) is Verdict.NEW
        session.keep(Answer.of(Header(MessageKind.LOOKUP | ANSWER, sequence=n), [b"12345"]))


def test_answers_are_let_go_after_a_while_without_an_acknowledgement() -> None:
    session = Session(7, "here")
    session.seen = 100.0
    answered(session, 3)
    session.drop(before=99.0)
    assert session.bytes == 15
    session.seen = 150.0
    session.acknowledge(1)  # it reads
    session.drop(before=120.0)
    assert session.bytes == 10
    session.drop(before=151.0)
    assert session.bytes == 0
    assert session.answer(1) is None
    verdicts = [session.admit(Header(MessageKind.LOOKUP, sequence=n)) for n in range(4)]
    assert verdicts == [Verdict.FORGOTTEN, Verdict.DROPPED, Verdict.DROPPED, Verdict.NEW]
    session.acknowledge(3)
    assert session.admit(Header(MessageKind.LOOKUP, sequence=2)) is Verdict.FORGOTTEN


def test_what_has_not_been_answered_cannot_be_acknowledged() -> None:
    session = Session(7, "here")
    answered(session, 2)
    session.admit(Header(MessageKind.LOOKUP, sequence=2))
    session.acknowledge(2**63)
    session.keep(Answer.of(Header(MessageKind.LOOKUP | ANSWER, sequence=2), [b"12345"]))
    assert session.admit(Header(MessageKind.LOOKUP, sequence=2)) is Verdict.ANSWERED


def test_what_is_remembered_comes_back() -> None:
    session = Session(7, "here")
    session.greeted, session.rank = True, 3
    answered(session, 3)
    session.acknowledge(1)
    again = Session(7, None)
    again.resume(*session.remember())
    assert (again.greeted, again.rank, again.next, again.bytes) == (True, 3, 3, 10)
    assert again.admit(Header(MessageKind.LOOKUP, sequence=2)) is Verdict.ANSWERED
    again.move("there")
    assert (again.identity, again.origin) == ("there", "there")
    again.move("elsewhere")  # its requests stay in one queue
    assert (again.identity, again.origin) == ("elsewhere", "there")
