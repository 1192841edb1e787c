"""The clients a shard server knows, and what becomes of each message they send."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from satrap.exchange.servers.frames import (
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
from satrap.exchange.servers.session import Answer, Session, Verdict
from satrap.exchange.servers.turns import Job, failure, fenced

_KINDS = frozenset(Kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a shard server accepts; beyond it, requests are refused or wait in the sender.

    Args:
        message_bytes: payload of one message, 256 MiB.
        queued_bytes: received and not yet executed, 1 GiB; then nothing is read until there is room.
        queued_messages: the same, counted, 4096.
        answer_bytes: answers one client has not acknowledged, 1 GiB.
        clients: that are known at a time, 1024; idle ones make room.
        idle: seconds after which a silent client may be forgotten, 3600.
        wait: seconds a request of `sync` waits for a rank from which nothing is heard, 25.
    """

    message_bytes: int = MAX_BYTES
    queued_bytes: int = 1 << 30
    queued_messages: int = 4096
    answer_bytes: int = 1 << 30
    clients: int = 1024
    idle: float = 3600.0
    wait: float = 25.0


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

    Args:
        limits: see `Limits`.
        counters: kept up to date.
        submit: called with each request that is to be executed, in order.
        epoch: returns the epoch of the shard map, None before it is known.
        recovering: returns how many records were replayed so far while the shard recovers, None afterwards;
            until then nothing is accepted.
        ahead: called with the payload of each PREFETCH; must return at once, whatever it holds.

    Attributes:
        known: session by client.
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
        self.known: dict[int, Session] = {}

    def receive(
        self, identity: bytes, head: bytes | None, parts: Sequence[Buffer], now: float
    ) -> Answer | None:
        """Take a message; return what is to be answered at once.

        Args:
            identity: where the answer goes.
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
        self, identity: bytes, header: Header, head: bytes, parts: Sequence[Buffer], now: float
    ) -> Answer | None:
        if self._recovering() is not None:
            raise FrameError("the shard is recovering", Code.RECOVERING, header)
        if header.kind not in (Kind.HELLO, Kind.PING, Kind.BYE):
            self._check_epoch(header)
        session = self._session(identity, header, now)
        session.identity, session.seen = identity, now
        if header.kind == Kind.PING:
            return Answer.of(header.answer(acknowledged=session.next, step=session.done))
        if session.fenced:
            raise FrameError(fenced().what, Code.FENCED, header)
        if header.kind == Kind.PREFETCH:
            self.counters.received_bytes += _size(parts)
            self._ahead(parts)
            return None
        return self._number(session, Job(session, header, parts, _size(parts), now, head))

    def _number(self, session: Session, job: Job) -> Answer | None:
        header = job.header
        if session.full(header, self.limits.answer_bytes):
            raise FrameError("too many answers wait to be acknowledged", Code.BUSY, header)
        match session.admit(header):
            case Verdict.NEW:
                self.counters.received_bytes += job.size
                self._submit(job)
            case Verdict.GAP:  # a nudge: the client asks where we are, and sends again from there
                return Answer.of(Header(Kind.PING | ANSWER))
            case Verdict.ANSWERED:
                self.counters.repeated += 1
                return session.answer(header.sequence)
            case Verdict.RUNNING | Verdict.FORGOTTEN:
                self.counters.repeated += 1
        return None

    def finished(self, job: Job, answer: Answer) -> None:
        """Take note of an answer before it is sent; may be called in another thread than `receive`."""
        session, kind = job.session, job.header.kind
        session.keep(answer)
        if kind == Kind.BYE or (kind == Kind.HELLO and answer.header.kind == FAILURE):
            self.known.pop(session.client, None)
        elif kind == Kind.HELLO and session.gated:
            self._fence(session)

    def recovered(self, header: Header) -> Session:
        """Return the session of a request that is executed once more while the shard recovers.

        Raises:
            FrameError: no hello of this client came before it.
        """
        session = self.known.get(header.client)
        if session is None:
            if header.kind != Kind.HELLO:
                raise FrameError("a request of a client without a hello", header=header)
            session = self.known[header.client] = Session(header.client, b"")
        session.next = header.sequence  # one that ended at a deadline was executed nowhere
        session.admit(header)
        return session

    def heard(self, rank: int) -> float:
        """Return when the worker of a rank was last heard, -inf if never."""
        seen = [s.seen for s in list(self.known.values()) if s.gated and s.rank == rank and not s.fenced]
        return max(seen, default=float("-inf"))

    def _session(self, identity: bytes, header: Header, now: float) -> Session:
        known = self.known.get(header.client)
        if known is not None:
            return known
        if header.kind != Kind.HELLO or header.sequence != 0:
            raise FrameError(
                "the shard does not know this client: it was restarted or has forgotten it",
                Code.UNKNOWN_CLIENT,
                header,
            )
        self._make_room(header, now)
        session = self.known[header.client] = Session(header.client, identity)
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

    def _make_room(self, header: Header, now: float) -> None:
        if len(self.known) < self.limits.clients:
            return
        oldest = min(self.known.values(), key=lambda s: s.seen)
        if now - oldest.seen < self.limits.idle:
            raise FrameError(f"the shard already has {self.limits.clients} clients", Code.BUSY, header)
        self.known.pop(oldest.client, None)

    def _fence(self, session: Session) -> None:
        """The newest worker of a rank is the only one."""
        for other in list(self.known.values()):
            if other is not session and other.gated and other.rank == session.rank:
                other.fenced = True


def _size(parts: Sequence[Buffer]) -> int:
    return sum(memoryview(p).nbytes for p in parts)


def _with_step(answer: Answer, step: int) -> Answer:
    return Answer.of(answer.header.answer(answer.header.kind, step=step), answer.parts)
