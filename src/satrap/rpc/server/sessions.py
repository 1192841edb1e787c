"""The clients of a server, and the handling of each message they send."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from satrap.errors import StoreError
from satrap.rpc.server.handler import Job
from satrap.rpc.server.session import WINDOW, Answer, Session, Verdict, failure, fenced
from satrap.rpc.server.statistics import Counters
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
    MessageKind,
    decode,
    size_of,
)
from satrap.runtime.numba_cache import compiling

_KINDS = frozenset(MessageKind)
_ANY_EPOCH = (MessageKind.HELLO, MessageKind.PING, MessageKind.BYE, MessageKind.MAP)
_LOST = 1.5
"""Seconds of silence after which a client may reconnect; it sends a PING once a second."""
_FIRST = 1 << 20
"""Bytes of responses kept for a client that has not acknowledged any yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server; beyond them, requests are rejected or wait at the sender.

    Args:
        message_bytes: payload of one message, 1 GiB.
        queued_bytes: received and not started, 1 GiB; then nothing is read until there is room. The limit
            applies separately to requests that wait for other clients; each client has a share of it, see
            `share`.
        queued_messages: received and not started, 4096.
        answer_bytes: unacknowledged responses of all clients, 512 MiB. A client's share is 1 MiB at first,
            and grows by the bytes it acknowledges; beyond it, its requests wait until it acknowledges
            responses.
        clients: clients known at a time, 1024.
        hellos: clients whose hello has not been accepted yet, 64.
        connection_clients: clients of one connection, 16.
        idle: seconds after which a silent client may be dropped to make room, and the server drops the
            client's open exports, 3600.
        settle: the same for a client without requests after its hello, 10.
        keep: seconds after which responses are dropped if their client acknowledges none, 120.
        wait: seconds a request of `sync` waits for a silent rank, 25.
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
    """Return whether a client may hold more of something that all clients share; sizes are in bytes.

    A client that holds nothing may, as long as all together hold less than four times the limit. The others
    may while all hold less than twice the limit. Each of them has an equal share, with one share left for the
    next client, but at least an eighth of the limit.

    Args:
        limit: the total that all clients should hold.
        held: sizes of the clients that hold anything.
        own: size of this client.
    """
    total = sum(held)
    if own == 0:
        return total < 4 * limit
    return total < 2 * limit and own < max(limit / (len(held) + 1), limit / 8)


class Sessions:
    """Checks each message, and decides whether to execute, repeat or reject it. Does no input or output.

    One thread calls `receive`; all other methods may be called by any thread.

    Args:
        limits: see `Limits`.
        submit: called with each request to execute, in order.
        epoch: returns the epoch of the shard map, None before it is known.
        recovering: returns a number that grows while the server recovers; None: it accepts requests.
        ahead: called with the payload of each PREFETCH, even an invalid one; must return at once.
    """

    def __init__(
        self,
        limits: Limits,
        submit: Callable[[Job], None],
        *,
        epoch: Callable[[], int | None] = lambda: None,
        recovering: Callable[[], int | None] = lambda: None,
        ahead: Callable[[Sequence[Buffer]], None] = lambda _: None,
    ) -> None:
        self.limits, self.counters, self._submit = limits, Counters(), submit
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
        """Handle a message; return the response if it has one at once.

        Args:
            identity: the connection it came from.
            head: its first part, None if its length is wrong for a header.
            parts: its payload.
            now: seconds of the server's clock.
        """
        self.counters.messages += 1
        try:
            if head is None or len(head) != HEADER_BYTES or len(parts) > MAX_PARTS:
                raise FrameError("the message is not a satrap message")
            header = decode(head, parts, max_bytes=self.limits.message_bytes)
            if header.kind not in _KINDS:
                raise FrameError(f"a request has an unknown kind {header.kind}", header=header)
            return self._accept(identity, header, head, parts, now)
        except FrameError as error:
            self.counters.malformed += error.code in (Code.MALFORMED, Code.VERSION)
            step = (self._recovering() or compiling()) if error.code == Code.RECOVERING else None
            return failure(error.header or Header(0), error.code, error, step=step or 0)

    def _accept(
        self, identity: Hashable, header: Header, head: bytes, parts: Sequence[Buffer], now: float
    ) -> Answer | None:
        if self._recovering() is not None or (header.kind == MessageKind.PING and compiling() is not None):
            raise FrameError("the server is recovering or compiling", Code.RECOVERING, header)
        epoch = None if header.kind in _ANY_EPOCH else self._epoch()
        if epoch not in (None, header.epoch) and not self._repeated(header):
            what = f"the request was made under epoch {header.epoch} of the shard map, but the shard is at "
            raise FrameError(f"{what}epoch {epoch}", Code.EPOCH, header)
        session = self._session(identity, header, now)
        if session.identity is None or (header.kind == MessageKind.PING and now - session.seen > _LOST):
            session.move(identity)  # its connection is gone
        current = session.identity == identity
        if current:
            session.seen = now
        if header.kind == MessageKind.PING:
            if current:
                session.acknowledge(header.acknowledged)
            return Answer.of(header.answer(acknowledged=session.next, step=session.done))
        if session.fenced:
            raise FrameError(fenced().what, Code.FENCED, header)
        if header.kind == MessageKind.PREFETCH:
            self.counters.received_bytes += size_of(parts)
            self._ahead(parts)
            return None
        return self._admit(identity, session, Job(session, header, parts, size_of(parts), now, head))

    def _repeated(self, header: Header) -> bool:
        """Return whether a request was accepted before, under the map of that time."""
        session = self._sessions.get(header.client)
        hint = header.kind == MessageKind.PREFETCH  # hints have no number
        return session is not None and not hint and header.sequence < session.next

    def _admit(self, identity: Hashable, session: Session, job: Job) -> Answer | None:
        header = job.header
        if session.identity != identity:  # perhaps another process, which must not acknowledge anything
            header = replace(header, acknowledged=0)
        if session.full(header):
            raise FrameError(
                "too many requests wait, or too many responses are not acknowledged", Code.BUSY, header
            )
        if session.parked:
            held = [s.parked_bytes for s in self.known.values() if s.parked_bytes]
            if not share(self.limits.queued_bytes, held, session.parked_bytes):
                raise FrameError("the client's waiting requests are too large", Code.BUSY, header)
        verdict = session.admit(header)
        self.counters.repeated += verdict in (Verdict.RUNNING, Verdict.ANSWERED, Verdict.FORGOTTEN)
        match verdict:
            case Verdict.NEW:
                session.move(identity)
                self.counters.received_bytes += job.size
                self._submit(job)
            case Verdict.GAP:  # a nudge: the client will send a PING, and resend from the missing request on
                return Answer.of(Header(MessageKind.PING | ANSWER))
            case Verdict.RUNNING:
                session.move(identity)
            case Verdict.ANSWERED:
                return session.answer(header.sequence)
            case Verdict.DROPPED:
                raise FrameError(
                    f"the response was dropped: the client did not acknowledge it for {self.limits.keep:g} s",
                    Code.DEADLINE,
                    header,
                )
        return None

    def finished(self, job: Job, answer: Answer) -> None:
        """Keep a response before it is sent."""
        session, kind = job.session, job.header.kind
        session.keep(answer)
        refused = kind == MessageKind.HELLO and answer.header.kind == FAILURE
        if kind == MessageKind.BYE or (refused and job.header.sequence == 0):  # a later one stays known
            with self._lock:
                self._sessions.pop(session.client, None)
        elif kind == MessageKind.HELLO:
            session.greeted = True
            for other in self.known.values():
                if other is not session and session.gated and other.gated and other.rank == session.rank:
                    other.fenced = True

    def recovered(self, header: Header) -> Session:
        """Return the session of a request to repeat; raise a `FrameError` if its client sent no hello."""
        session = self.known.get(header.client)
        if session is None:
            if header.kind != MessageKind.HELLO:
                raise FrameError("a request comes from a client without a hello", header=header)
            session = Session(header.client, None)
            self.adopt(session)
        refused = StoreError(  # by the process that has died: the request is in no journal
            "the request was rejected",
            why="the server has been restarted since, and does not know the reason",
        )
        first = max(session.next, header.acknowledged, header.sequence - WINDOW)
        for sequence in range(first, header.sequence):
            session.keep(failure(replace(header, sequence=sequence), Code.STORE, refused))
        session.next = header.sequence
        session.admit(header)
        return session

    def adopt(self, session: Session) -> None:
        """Add a session from before the server died."""
        with self._lock:
            self._sessions[session.client] = session

    def resume_at(self, now: float) -> None:
        """Count the silence of all clients from now: the server received nothing while it recovered."""
        for session in self.known.values():
            session.resume_at(now)

    def gone(self, identity: Hashable) -> None:
        """Let the clients of a connection that has ended reconnect at once."""
        for session in self.known.values():
            if session.identity == identity:
                session.identity = None

    def heard(self, rank: int) -> float:
        """Return the time of the last message of the newest client of a rank, -inf if there is none."""
        seen = [s.seen for s in self.known.values() if s.gated and s.rank == rank and not s.fenced]
        return max(seen, default=float("-inf"))

    def has_room(self, session: Session) -> bool:
        """Return whether one more response to a client may be kept; see `share`."""
        size, held = session.bytes, [s.bytes for s in self.known.values() if s.bytes]
        earned = size == 0 or size < _FIRST + session.acknowledged_bytes
        return earned and share(self.limits.answer_bytes, held, size)

    def absent(self, client: int, now: float) -> bool:
        """Return whether a client has left, was replaced, or has been silent for `Limits.idle`."""
        session = self.known.get(client)
        return session is None or session.fenced or now - session.seen > self.limits.idle

    def sweep(self, now: float) -> None:
        """Drop the responses of clients that acknowledge none, most likely because they are gone."""
        for session in self.known.values():
            session.drop(now - self.limits.keep)

    def _session(self, identity: Hashable, header: Header, now: float) -> Session:
        session_of_client = self._sessions.get(header.client)
        if session_of_client is not None:
            return session_of_client
        if header.kind != MessageKind.HELLO or header.sequence != 0:
            raise FrameError(
                "the server does not know this client: it was restarted or has dropped it",
                Code.UNKNOWN_CLIENT,
                header,
            )
        session = Session(header.client, identity)
        session.seen = now
        with self._lock:
            self._make_room(header, identity, now)
            self._sessions[header.client] = session
        return session

    def _make_room(self, header: Header, identity: Hashable, now: float) -> None:
        limits, sessions = self.limits, list(self._sessions.values())
        if sum(s.origin == identity for s in sessions) >= limits.connection_clients:
            what = f"this connection already has {limits.connection_clients} clients"
            raise FrameError(what, Code.BUSY, header)
        if sum(not s.greeted for s in sessions) >= limits.hellos:
            raise FrameError(f"{limits.hellos} hellos are pending already", Code.BUSY, header)
        if len(sessions) < limits.clients:
            return
        # clients with only a hello go first, then the client that was silent for longest
        oldest = min((s for s in sessions if s.greeted), key=lambda s: (s.next > 1, s.seen), default=None)
        if oldest is None or now - oldest.seen < (limits.idle if oldest.next > 1 else limits.settle):
            raise FrameError(f"the server already has {limits.clients} clients", Code.BUSY, header)
        oldest.fenced = True  # so that its waiting requests are rejected
        del self._sessions[oldest.client]
