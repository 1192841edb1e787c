"""Client and server sides of the sequence, over a network that loses, doubles, delays and reorders."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.rpc.client.peer import ACKNOWLEDGE, HINTS, WINDOW, Peer
from satrap.rpc.server.session import WINDOW as SERVER_WINDOW
from satrap.rpc.server.session import Answer, Session, Verdict, failure
from satrap.rpc.wire.frames import ANSWER, Code, Header, MessageKind, decode, digest, encode
from tests.support.examples import examples

Messages = list[list[bytes]]


class Server:
    """What `ShardServer` does with a session, one request per `work`."""

    def __init__(self) -> None:
        self.session = Session(7, b"")
        self.executed: list[int] = []
        self.running: deque[Header] = deque()

    def receive(self, message: list[bytes]) -> Messages:
        header = decode(message[0], message[1:])
        if header.kind == MessageKind.PING:
            return [self.message(header.answer(acknowledged=self.session.next, step=self.session.done))]
        match self.session.admit(header):
            case Verdict.NEW:
                self.running.append(header)
            case Verdict.GAP:
                return [self.message(Header(MessageKind.PING | ANSWER))]
            case Verdict.ANSWERED:
                answer = self.session.answer(header.sequence)
                return [[encode(answer.header, answer.payload), *answer.parts]]
        return []

    def work(self) -> Messages:
        if not self.running:
            return []
        header = self.running.popleft()
        self.executed.append(header.sequence)
        answer = Answer.of(header.answer(), [str(header.sequence).encode()])
        self.session.keep(answer)
        return [[encode(answer.header, answer.payload), *answer.parts]]

    @staticmethod
    def message(header: Header) -> list[bytes]:
        return [encode(header, digest([]))]


def peer(deadline: float = 1e9) -> Peer:
    return Peer("shard 0 at host:1", client=7, epoch=1, deadline=deadline, heartbeat=1.0)


def network(rng: random.Random, messages: Messages, fault: float) -> Messages:
    """Return what arrives now, most often everything in order."""
    arrived = [m for m in messages for _ in range(rng.choice([0, 2]) if rng.random() < fault else 1)]
    if rng.random() < fault:
        rng.shuffle(arrived)
    return arrived


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(0, 2**32), st.integers(1, 3 * WINDOW), st.sampled_from([0.0, 0.1, 0.5]))
def test_each_request_is_executed_once_in_order_and_answered(seed: int, count: int, fault: float) -> None:
    rng, client, server, now = random.Random(seed), peer(), Server(), 0.0
    answers: list[tuple[int, bytes, SatrapError | None]] = []
    asked = 0
    to_server: Messages = []
    to_client: Messages = []
    for _ in range(4000):
        for _ in range(rng.randrange(4)):
            if asked < count:
                n = asked
                client.request(
                    MessageKind.LOOKUP, [], lambda p, e, n=n: answers.append((n, bytes(p[0]), e)), now=now
                )
                asked += 1
        to_server += [[bytes(p) for p in m] for m in client.outgoing(now)]
        for message in network(rng, to_server, fault):
            to_client += server.receive(message)
        to_server = []
        for _ in range(rng.randrange(4)):
            to_client += server.work()
        for message in network(rng, to_client, fault):
            header = decode(message[0], message[1:])
            to_server += [[bytes(p) for p in m] for m in client.receive(header, message[1:], now)]
        to_client = []
        now += 0.3
        if asked == count and not client.waiting:
            break
    assert server.executed == list(range(count))
    assert answers == [(n, str(n).encode(), None) for n, _, _ in answers]
    assert sorted(n for n, _, _ in answers) == list(range(count))
    if fault == 0.0:
        assert client.resent == 0


def test_answers_are_kept_until_they_are_acknowledged_and_no_longer() -> None:
    session = Session(7, b"")
    for n in range(5):
        assert session.admit(Header(MessageKind.LOOKUP, sequence=n)) is Verdict.NEW
        assert session.admit(Header(MessageKind.LOOKUP, sequence=n)) is Verdict.RUNNING
        session.keep(Answer.of(Header(MessageKind.LOOKUP | ANSWER, sequence=n), [b"12345"]))
    assert session.bytes == 25
    assert session.admit(Header(MessageKind.LOOKUP, sequence=1)) is Verdict.ANSWERED
    assert session.admit(Header(MessageKind.LOOKUP, sequence=7, acknowledged=4)) is Verdict.GAP
    assert session.bytes == 5
    assert session.admit(Header(MessageKind.LOOKUP, sequence=1)) is Verdict.FORGOTTEN


def test_a_client_that_never_acknowledges_is_full() -> None:
    session = Session(7, b"")
    session.admit(Header(MessageKind.LOOKUP, sequence=0))
    session.keep(Answer.of(Header(MessageKind.LOOKUP | ANSWER, sequence=0), [b"12345"]))
    assert not session.full(Header(MessageKind.LOOKUP, sequence=1))
    for n in range(1, SERVER_WINDOW):
        session.admit(Header(MessageKind.LOOKUP, sequence=n))  # whether it is answered or waits
    assert session.full(Header(MessageKind.LOOKUP, sequence=SERVER_WINDOW))
    assert session.full(Header(MessageKind.LOOKUP, sequence=SERVER_WINDOW, acknowledged=10**6)) is False
    session.admit(Header(MessageKind.LOOKUP, sequence=SERVER_WINDOW, acknowledged=10**6))
    assert session.full(
        Header(MessageKind.LOOKUP, sequence=SERVER_WINDOW + 1)
    )  # only one was answered at all


def refuse(client: Peer, code: Code, sequence: int = 0) -> list[list[bytes]]:
    header = Header(MessageKind.LOOKUP, client=7, sequence=sequence)
    answer = failure(header, code, StoreError("no", where="there", fix="try"))
    return client.receive(answer.header, answer.parts, 0.0)


def test_a_busy_server_is_asked_again_later_and_later_and_named_in_the_end() -> None:
    client = peer(deadline=30.0)
    for _ in range(3):
        client.request(MessageKind.LOOKUP, [b"large"], lambda p, e: None, now=0.0)
    assert len(list(client.outgoing(0.0))) == 3
    pauses, now = [], 0.0
    for _ in range(6):
        header = Header(MessageKind.LOOKUP, client=7, sequence=0)
        busy = failure(header, Code.BUSY, ExchangeError("no room"))
        assert client.receive(busy.header, busy.parts, now) == []
        nudge = Header(MessageKind.PING | ANSWER)
        assert client.receive(nudge, [], now) == []  # else the other two were sent again at once
        client.request(MessageKind.LOOKUP, [b"large"], lambda p, e: None, now=now)
        begun = now
        while not (messages := list(client.outgoing(now))):
            now += 0.05
        pauses.append(now - begun)
        assert decode(messages[0][0], messages[0][1:]).kind == MessageKind.PING
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0], abs=0.06)
    error = client.overdue(31.0)
    assert error is not None
    assert error.what.endswith("has not responded for 30 s: no room")


def test_large_answers_are_acknowledged_at_once_and_nothing_is_sent_again() -> None:
    client, server = peer(), Server()
    for _ in range(4):
        client.request(MessageKind.LOOKUP, [], lambda p, e: None, now=0.0)
    for message in client.outgoing(0.0):
        server.receive([bytes(p) for p in message])
    for n in range(4):
        for message in server.work():
            header = decode(message[0], message[1:])
            large = [bytes(ACKNOWLEDGE // 2)]
            assert client.receive(header, large, 0.01) == []
        sent = list(client.outgoing(0.01))
        assert len(sent) == (n == 1)
        if sent:
            ping = decode(sent[0][0], [])
            assert (ping.kind, ping.acknowledged) == (MessageKind.PING, 2)
            server.work()  # done, and its answer on the way: the PONG comes before it
            pong = ping.answer(acknowledged=4, step=3)
            assert client.receive(pong, [], 0.02) == []
            break


def test_a_hello_that_finds_no_place_is_tried_again() -> None:
    client = peer()
    client.request(MessageKind.HELLO, [b"{}"], lambda p, e: None, now=0.0)
    [hello] = client.outgoing(0.0)
    busy = failure(decode(hello[0], hello[1:]), Code.BUSY, ExchangeError("too many hellos"))
    assert client.receive(busy.header, busy.parts, 0.0) == []
    assert list(client.outgoing(0.05)) == []
    [ping] = client.outgoing(0.2)
    header = decode(ping[0], [])
    unknown = failure(header, Code.UNKNOWN_CLIENT, ExchangeError("who?"))
    [again] = client.receive(unknown.header, unknown.parts, 0.2)
    assert decode(again[0], again[1:]).kind == MessageKind.HELLO


@pytest.mark.parametrize(
    ("code", "kind"),
    [(Code.STORE, StoreError), (Code.CONFIG, ConfigError), (Code.DEADLINE, ExchangeError)],
)
def test_a_refused_request_fails_alone_and_names_the_shard(code: Code, kind: type[SatrapError]) -> None:
    client, errors = peer(), []
    client.request(MessageKind.LOOKUP, [], lambda _, e: errors.append(e), now=0.0)
    refuse(client, code)
    [error] = errors
    assert type(error) is kind
    assert (error.what, error.where, error.fix) == ("no", "shard 0 at host:1, there", "try")
    assert client.waiting == 0


def greeted() -> Peer:
    """A peer whose hello was answered, with one request sent."""
    client = peer()
    client.request(MessageKind.HELLO, [], lambda *_: None, now=0.0)
    client.request(MessageKind.LOOKUP, [], lambda *_: None, now=0.0)
    assert len(list(client.outgoing(0.0))) == 2
    client.receive(Header(MessageKind.HELLO | ANSWER, client=7, sequence=0), [], 0.0)
    return client


@pytest.mark.parametrize("code", [Code.VERSION, Code.EPOCH, Code.FENCED])
def test_some_refusals_end_the_exchange(code: Code) -> None:
    with pytest.raises(ExchangeError, match="no\n  where: shard 0 at host:1"):
        refuse(greeted(), code, 1)


def test_only_the_answer_to_a_new_ping_proves_that_the_shard_has_forgotten_the_client() -> None:
    client = greeted()
    [[ping]] = refuse(client, Code.UNKNOWN_CLIENT, 1)  # late news of a lost hello, perhaps: ask
    header = decode(bytes(ping), [])
    answer = failure(header, Code.UNKNOWN_CLIENT, StoreError("unknown"))
    assert client.receive(replace(answer.header, sequence=header.sequence - 1), answer.parts, 0.0) == []
    with pytest.raises(ExchangeError, match="unknown"):
        client.receive(answer.header, answer.parts, 0.0)


def test_to_be_forgotten_is_the_answer_to_a_goodbye() -> None:
    client, answered = greeted(), []
    client.receive(Header(MessageKind.LOOKUP | ANSWER, client=7, sequence=1), [], 0.0)
    client.request(MessageKind.BYE, [], lambda *a: answered.append(a), now=0.0)
    header = decode(bytes(client.ping(0.0)[0]), [])
    answer = failure(header, Code.UNKNOWN_CLIENT, StoreError("unknown"))
    assert client.receive(answer.header, answer.parts, 0.0) == []
    assert answered == [((), None)]


def test_a_goodbye_waits_for_all_answers_before_it() -> None:
    """A shard forgets with the client the answers it kept: one that was lost could not be asked for again."""
    client = greeted()
    client.request(MessageKind.BYE, [], lambda *_: None, now=0.0)
    assert list(client.outgoing(0.0)) == []
    client.receive(Header(MessageKind.LOOKUP | ANSWER, client=7, sequence=1), [], 0.0)
    [[bye]] = client.outgoing(0.0)
    assert decode(bytes(bye), []).kind == MessageKind.BYE


def test_a_request_after_a_goodbye_fails_at_once() -> None:
    """The server forgets the client and would never answer."""
    client, answered = greeted(), []
    client.request(MessageKind.BYE, [], lambda *_: None, now=0.0)
    client.request(MessageKind.STATISTICS, [], lambda *answer: answered.append(answer), now=0.0)
    [(parts, error)] = answered
    assert parts == ()
    assert str(error).startswith(
        "shard 0 at host:1 accepts no more requests: this client has sent its goodbye"
    )
    assert client.waiting == 2  # the lookup before, and the goodbye


def test_a_lost_hello_is_sent_again() -> None:
    client = peer()
    client.request(MessageKind.HELLO, [b"x"], lambda *_: None, now=0.0)
    list(client.outgoing(0.0))
    [message] = refuse(client, Code.UNKNOWN_CLIENT)
    assert decode(bytes(message[0]), message[1:]).kind == MessageKind.HELLO


def test_a_shard_that_refused_the_hello_does_not_know_the_client_and_that_is_no_news() -> None:
    """The reason of the refusal may still be read; news of a PING sent meanwhile must not take its place."""
    client, answered = peer(), []
    client.request(MessageKind.HELLO, [b"x"], lambda *a: answered.append(a), now=0.0)
    list(client.outgoing(0.0))
    refusal = failure(Header(MessageKind.HELLO, client=7), Code.CONFIG, ConfigError("other tables"))
    assert client.receive(refusal.header, refusal.parts, 0.0) == []
    assert "other tables" in str(answered[0][1])
    ping = decode(bytes(client.ping(0.0)[0]), [])  # the connection's monitor may have asked for it
    unknown = failure(ping, Code.UNKNOWN_CLIENT, StoreError("unknown"))
    assert client.receive(unknown.header, unknown.parts, 0.0) == []


def test_damage_is_sent_again_a_few_times_then_reported() -> None:
    client = peer()
    client.request(MessageKind.LOOKUP, [], lambda *_: None, now=0.0)
    list(client.outgoing(0.0))
    for _ in range(4):
        client._ping_open = False
        assert len(refuse(client, Code.MALFORMED)) == 1
    with pytest.raises(ExchangeError):
        refuse(client, Code.MALFORMED)


def test_silence_is_asked_about_and_then_reported() -> None:
    client = peer(deadline=5.0)
    assert client.next_deadline() == float("inf")
    client.request(MessageKind.UPDATE, [b"x"], lambda *_: None, now=100.0)
    assert len(list(client.outgoing(100.0))) == 1
    assert client.next_deadline() == 101.0
    assert list(client.outgoing(100.9)) == []
    [[ping]] = client.outgoing(101.1)
    assert decode(bytes(ping), []).kind == MessageKind.PING
    assert client.overdue(104.9) is None
    error = client.overdue(105.0)
    assert "shard 0 at host:1 has not responded for 5 s" in str(error)
    assert "stage: update; 1 requests wait" in str(error)


def recovering(client: Peer, done: int, now: float) -> list[list[bytes]]:
    answer = failure(
        Header(MessageKind.PING, client=7), Code.RECOVERING, ExchangeError("the shard is recovering")
    )
    return client.receive(answer.header.answer(answer.header.kind, step=done), answer.parts, now)


def test_a_shard_that_recovers_is_waited_for_as_long_as_it_gets_on() -> None:
    client = peer(deadline=5.0)
    client.request(MessageKind.UPDATE, [b"x"], lambda *_: None, now=100.0)
    list(client.outgoing(100.0))
    for now, done in ((103.0, 0), (107.0, 10), (111.0, 20)):
        assert recovering(client, done, now) == []
        assert client.overdue(now + 4.9) is None
    assert recovering(client, 20, 114.0) == []  # nothing has happened since
    assert client.overdue(116.1) is not None


def test_a_client_that_waits_for_another_shard_says_that_it_lives_until_it_has_left() -> None:
    client = greeted()
    client.receive(Header(MessageKind.LOOKUP | ANSWER, client=7, sequence=1), [], 0.0)
    assert list(client.outgoing(10.0)) == []
    [[ping]] = client.outgoing(10.0, busy=True)
    assert decode(bytes(ping), []).kind == MessageKind.PING
    assert list(client.outgoing(10.5, busy=True)) == []
    client.request(MessageKind.BYE, [], lambda *_: None, now=11.0)
    assert len(list(client.outgoing(11.0))) == 1
    client.receive(Header(MessageKind.BYE | ANSWER, client=7, sequence=2), [], 11.0)
    assert list(client.outgoing(20.0, busy=True)) == []
    assert refuse(client, Code.UNKNOWN_CLIENT, 2) == []


def test_hints_follow_the_requests_are_bounded_and_have_no_number() -> None:
    client, server = peer(), Server()
    client.hint(MessageKind.PREFETCH, [b"early"])
    client.request(MessageKind.HELLO, [], lambda *_: None, now=0.0)
    [hello] = client.outgoing(0.0)  # nothing else before the shard has answered
    for message in [*server.receive(hello), *server.work()]:
        client.receive(decode(message[0], message[1:]), message[1:], 0.0)
    for i in range(2 * HINTS):
        client.hint(MessageKind.PREFETCH, [str(i).encode()])
    client.request(MessageKind.LOOKUP, [], lambda *_: None, now=0.0)
    sent = [(decode(m[0], m[1:]), m[1:]) for m in client.outgoing(0.0)]
    assert [h.kind for h, _ in sent] == [MessageKind.LOOKUP] + [MessageKind.PREFETCH] * HINTS
    assert [parts for _, parts in sent[1:]] == [[str(i).encode()] for i in range(HINTS, 2 * HINTS)]
    assert client.waiting == 1
    refused = failure(sent[1][0], Code.MALFORMED, ExchangeError("damaged"))
    for _ in range(10):  # of the hint, and no reason to give the lookup up
        client.receive(refused.header, refused.parts, 0.0)
    assert client.waiting == 1
    assert not list(client.outgoing(0.0))
    client.request(MessageKind.BYE, [], lambda *_: None, now=0.0)
    for sequence, kind in ((1, MessageKind.LOOKUP), (2, MessageKind.BYE)):
        list(client.outgoing(0.0))
        client.receive(Header(kind | ANSWER, client=7, sequence=sequence), [], 0.0)
    client.hint(MessageKind.PREFETCH, [])
    assert not list(client.outgoing(0.0))


def test_a_question_under_another_epoch_is_asked_again_under_the_newest() -> None:
    """What it asks does not depend on the shard map; a lookup does, and is refused for good."""
    client = greeted()
    client.receive(Header(MessageKind.LOOKUP | ANSWER, client=7, sequence=1), [], 0.0)
    client.request(MessageKind.STATISTICS, [], lambda *_: None, now=0.0)
    [first] = client.outgoing(0.0)
    assert decode(bytes(first[0]), []).epoch == 1
    assert refuse(client, Code.EPOCH, 2) == []
    client.epoch = 2
    [ping] = client.outgoing(0.5)
    header = decode(bytes(ping[0]), [])
    [again] = client.receive(replace(header.answer(acknowledged=2, step=2), client=7), [], 0.5)
    found = decode(bytes(again[0]), [])
    assert (found.kind, found.sequence, found.epoch) == (MessageKind.STATISTICS, 2, 2)


def test_late_news_about_an_old_epoch_are_no_error() -> None:
    assert refuse(greeted(), Code.EPOCH, 9) == []
