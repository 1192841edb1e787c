"""The clients a server knows, and what becomes of each message they send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from satrap.errors import StoreError
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import WINDOW, Answer, Session, Verdict, failure, fenced
from satrap.rpc.wire.frames import (
    ANSWER,
    FAILURE,
    HEADER_BYTES,
    MAX_BYTES,
    MAX_PARTS,
    Buffer,
    Code,
    FrameError,
    Header,
    Kind,
    decode,
)

_KINDS = frozenset(Kind)
_LOST = 1.5
"""Seconds of silence after which a client may go on from another connection; it asks once a second."""
_FIRST = 1 << 20
"""Bytes of answers that are kept for a client which has acknowledged none yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a server accepts; beyond it, requests are refused or wait in the sender.

    Args:
        message_bytes: payload of one message, 1 GiB.
        queued_bytes: received and not yet begun, 1 GiB; then nothing is read until there is room. The same
            for requests that wait for a step, of which each client has a share: see `share`.
        queued_messages: received and not yet begun, 4096.
        answer_bytes: answers that clients have not acknowledged, 512 MiB, of which each has a share: at first
            1 MiB, and as much more as it has acknowledged. A client beyond its share waits until it
            acknowledges some.
        clients: that are known at a time, 1024.
        hellos: of them, those whose hello has not been accepted yet, 64.
        connection_clients: of one connection, 16.
        idle: seconds after which a silent client may be forgotten to make room, and what it has begun to read
            is let go, 3600; one that has asked for nothing since its hello, after `settle` seconds, 10.
        settle: see `idle`.
        keep: seconds after which answers are let go if their client acknowledges none, 120.
        wait: seconds a request of `sync` waits for a rank from which nothing is heard, 25.
    """

    message_bytes: int = MAX_BYTES
    queued_bytes: int = 1 << 30
    queued_messages: int = 4096
    answer_bytes: int = 512 << 20
    clients: int = 1024
    hellos: int = 64
    connection_clients: int = 16
    idle: float = 3600.0
    settle: float = 10.0
    keep: float = 120.0
    wait: float = 25.0


def share(limit: int, held: Sequence[int], own: int) -> bool:
    """Return whether a client may hold more of something that all clients share.

    One that holds nothing may, as long as all hold less than four times the limit. The others have equal
    shares, with one left for the next client to come, or an eighth of the limit as long as all together hold
    less than twice the limit.

    Args:
        limit: bytes.
        held: what each client holds, those that hold nothing left out.
        own: what this one holds.
    """
    total = sum(held)
    if own == 0:
        return total < 4 * limit
    return total < 2 * limit and own < max(limit / (len(held) + 1), limit / 8)


@dataclass(slots=True)
class Counters:
    """What a server has seen: messages, those that were malformed or repetitions, payload bytes both ways."""

    messages: int = 0
    malformed: int = 0
    repeated: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0


class Sessions:
    """Checks each message, and decides what is executed, repeated or refused. Does no input or output.

    One thread calls `receive`; all other methods may be called by any thread.

    Args:
        limits: see `Limits`.
        counters: kept up to date.
        submit: called with each request that is to be executed, in order.
        epoch: returns the epoch of the shard map, None before it is known.
        recovering: returns a number that grows while the server recovers, None afterwards; until then nothing
            is accepted.
        ahead: called with the payload of each PREFETCH; must return at once, whatever it holds.
    """

    def __init__(
        self,
        limits: Limits,
        counters: Counters,
        submit: Callable[[Job], None],
        *,
        epoch: Callable[[], int | None] = lambda: None,
        recovering: Callable[[], int | None] = lambda: None,
        ahead: Callable[[Sequence[Buffer]], None] = lambda _: None,
    ) -> None:
        self.limits, self.counters, self._submit = limits, counters, submit
        self._epoch, self._recovering, self._ahead = epoch, recovering, ahead
        self._sessions: dict[int, Session] = {}
        self._lock = threading.Lock()

    @property
    def known(self) -> dict[int, Session]:
        """Session by client, in the order of their hellos; a copy."""
        with self._lock:
            return dict(self._sessions)

    def receive(
        self, identity: Hashable, head: bytes | None, parts: Sequence[Buffer], now: float
    ) -> Answer | None:
        """Take a message; return what is to be answered at once.

        Args:
            identity: the connection it came from, where the answer goes.
            head: its first part, None if that has not the length of a header.
            parts: its payload.
            now: seconds of the server's clock.
        """
        self.counters.messages += 1
        try:
            if head is None or len(head) != HEADER_BYTES or len(parts) > MAX_PARTS:
                raise FrameError("this is no satrap message")
            header = decode(head, parts, max_bytes=self.limits.message_bytes)
            if header.kind not in _KINDS:
                raise FrameError(f"a request of unknown kind {header.kind}", header=header)
            return self._accept(identity, header, head, parts, now)
        except FrameError as error:
            self.counters.malformed += error.code in (Code.MALFORMED, Code.VERSION)
            answer = failure(error.header or Header(0), error.code, error)
            return answer if error.code != Code.RECOVERING else _with_step(answer, self._recovering() or 0)

    def _accept(
        self, identity: Hashable, header: Header, head: bytes, parts: Sequence[Buffer], now: float
    ) -> Answer | None:
        if self._recovering() is not None:
            raise FrameError("the server is recovering", Code.RECOVERING, header)
        if header.kind not in (Kind.HELLO, Kind.PING, Kind.BYE):
            self._check_epoch(header)
        session = self._session(identity, header, now)
        if session.identity is None or (header.kind == Kind.PING and now - session.seen > _LOST):
            session.move(identity)  # its connection has gone
        own = session.identity == identity
        if own:
            session.seen = now
        if header.kind == Kind.PING:
            if own:
                session.acknowledge(header.acknowledged)
            return Answer.of(header.answer(acknowledged=session.next, step=session.done))
        if session.fenced:
            raise FrameError(fenced().what, Code.FENCED, header)
        if header.kind == Kind.PREFETCH:
            self.counters.received_bytes += _size(parts)
            self._ahead(parts)
            return None
        return self._admit(identity, session, Job(session, header, parts, _size(parts), now, head))

    def _admit(self, identity: Hashable, session: Session, job: Job) -> Answer | None:
        header = job.header
        if session.identity != identity:  # it may be somebody else: what it says of answers does not count
            header = replace(header, acknowledged=0)
        if session.full(header):
            raise FrameError(
                "too many requests wait, or too many answers to be acknowledged", Code.BUSY, header
            )
        if session.parked and not self._may_wait(session):
            raise FrameError("the requests that wait for their turn are too large", Code.BUSY, header)
        match session.admit(header):
            case Verdict.NEW:
                session.move(identity)
                self.counters.received_bytes += job.size
                self._submit(job)
            case Verdict.GAP:  # a nudge: the client asks where we are, and sends again from there
                return Answer.of(Header(Kind.PING | ANSWER))
            case Verdict.RUNNING:
                session.move(identity)
                self.counters.repeated += 1
            case Verdict.ANSWERED:
                self.counters.repeated += 1
                return session.answer(header.sequence)
            case Verdict.FORGOTTEN:
                self.counters.repeated += 1
            case Verdict.DROPPED:
                raise FrameError(
                    f"the answer was let go: it was not acknowledged for {self.limits.keep:g} s",
                    Code.DEADLINE,
                    header,
                )
        return None

    def finished(self, job: Job, answer: Answer) -> None:
        """Take note of an answer before it is sent."""
        session, kind = job.session, job.header.kind
        session.keep(answer)
        refused = kind == Kind.HELLO and answer.header.kind == FAILURE
        if kind == Kind.BYE or (refused and job.header.sequence == 0):  # a later hello introduces nobody
            with self._lock:
                self._sessions.pop(session.client, None)
        elif kind == Kind.HELLO:
            session.greeted = True
            if session.gated:
                self._fence(session)

    def recovered(self, header: Header) -> Session:
        """Return the session of a request that is executed once more while the server recovers.

        Raises:
            FrameError: no hello of this client came before it.
        """
        session = self.known.get(header.client)
        if session is None:
            if header.kind != Kind.HELLO:
                raise FrameError("a request of a client without a hello", header=header)
            session = Session(header.client, None)
            self.adopt(session)
        first = max(session.next, header.acknowledged, header.sequence - WINDOW)
        for sequence in range(first, header.sequence):
            session.keep(failure(replace(header, sequence=sequence), Code.STORE, _refused_before()))
        session.next = header.sequence
        session.admit(header)
        return session

    def adopt(self, session: Session) -> None:
        """Know a session from before the server died."""
        with self._lock:
            self._sessions[session.client] = session

    def resume_at(self, now: float) -> None:
        """Take note that until now, while the server recovered, no client could be heard."""
        for session in self.known.values():
            session.resume_at(now)

    def gone(self, identity: Hashable) -> None:
        """Take note that a connection has ended: its clients may go on from another one at once."""
        for session in self.known.values():
            if session.identity == identity:
                session.identity = None

    def heard(self, rank: int) -> float:
        """Return when the worker of a rank was last heard, -inf if never."""
        seen = [s.seen for s in self.known.values() if s.gated and s.rank == rank and not s.fenced]
        return max(seen, default=float("-inf"))

    def has_room(self, session: Session) -> bool:
        """Return whether one more answer to a client may be kept; see `share`."""
        own, held = session.bytes, [s.bytes for s in self.known.values() if s.bytes]
        earned = own == 0 or own < _FIRST + session.acknowledged_bytes
        return earned and share(self.limits.answer_bytes, held, own)

    def _may_wait(self, session: Session) -> bool:
        held = [s.parked_bytes for s in self.known.values() if s.parked_bytes]
        return share(self.limits.queued_bytes, held, session.parked_bytes)

    def absent(self, client: int, now: float) -> bool:
        """Return whether a client has left, was replaced, or has been silent for very long."""
        session = self.known.get(client)
        return session is None or session.fenced or now - session.seen > self.limits.idle

    def sweep(self, now: float) -> None:
        """Let go the answers of clients that acknowledge none, most likely because they are gone."""
        for session in self.known.values():
            session.drop(now - self.limits.keep)

    def _session(self, identity: Hashable, header: Header, now: float) -> Session:
        known = self._sessions.get(header.client)
        if known is not None:
            return known
        if header.kind != Kind.HELLO or header.sequence != 0:
            raise FrameError(
                "the server does not know this client: it was restarted or has forgotten it",
                Code.UNKNOWN_CLIENT,
                header,
            )
        session = Session(header.client, identity)
        session.seen = now
        with self._lock:
            self._make_room(header, identity, now)
            self._sessions[header.client] = session
        return session

    def _check_epoch(self, header: Header) -> None:
        epoch = self._epoch()
        if epoch is not None and header.epoch != epoch:
            raise FrameError(
                f"the request was made under epoch {header.epoch} of the shard map, the shard is at "
                f"epoch {epoch}",
                Code.EPOCH,
                header,
            )

    def _make_room(self, header: Header, identity: Hashable, now: float) -> None:
        limits, known = self.limits, list(self._sessions.values())
        if sum(s.origin == identity for s in known) >= limits.connection_clients:
            what = f"this connection already has {limits.connection_clients} clients"
            raise FrameError(what, Code.BUSY, header)
        if sum(not s.greeted for s in known) >= limits.hellos:
            raise FrameError(f"{limits.hellos} hellos wait to be looked at", Code.BUSY, header)
        if len(known) < limits.clients:
            return
        # those first that have only said hello, then whoever was silent for longest
        oldest = min((s for s in known if s.greeted), key=lambda s: (s.next > 1, s.seen), default=None)
        if oldest is None or now - oldest.seen < (limits.idle if oldest.next > 1 else limits.settle):
            raise FrameError(f"the server already has {limits.clients} clients", Code.BUSY, header)
        oldest.fenced = True  # what it has waiting is refused
        del self._sessions[oldest.client]

    def _fence(self, session: Session) -> None:
        """The newest worker of a rank is the only one."""
        for other in self.known.values():
            if other is not session and other.gated and other.rank == session.rank:
                other.fenced = True


def _refused_before() -> StoreError:
    """Return the error for a request that was refused by a process which has died: it is in no journal."""
    return StoreError(
        "the request was refused", why="the server has been restarted since, and does not know the reason"
    )


def _size(parts: Sequence[Buffer]) -> int:
    return sum(memoryview(p).nbytes for p in parts)


def _with_step(answer: Answer, step: int) -> Answer:
    return Answer.of(answer.header.answer(answer.header.kind, step=step), answer.parts)
