"""A server's state of one client: its next request, and responses that may have to be repeated."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import astuple, dataclass
from enum import Enum
from typing import Any

from satrap.errors import ConfigError, ExchangeError, SatrapError, StoreError
from satrap.rpc.wire.frames import FAILURE, Buffer, Code, Digest, FrameError, Header, digest
from satrap.rpc.wire.text import pack_text

WINDOW = 256
"""Most requests of a client that wait, run, or have an unacknowledged response."""

_REMEMBERED = ("client", "done", "greeted", "gated", "rank", "fenced")


class Verdict(Enum):
    """The handling of a numbered request that has just arrived."""

    NEW = "execute it"
    ANSWERED = "repeat its answer"
    RUNNING = "it is being executed; its answer will come"
    GAP = "an earlier request is missing: nudge the client"
    FORGOTTEN = "its answer has been acknowledged"
    DROPPED = "its answer was dropped, unacknowledged"


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, kept until the client acknowledges it."""

    header: Header
    parts: Sequence[Buffer]
    payload: Digest

    @classmethod
    def of(cls, header: Header, parts: Sequence[Buffer] = ()) -> Answer:
        """Return a response with these parts."""
        return cls(header, parts, digest(parts))


class Session:
    """Exactly once and in order: request n is executed after n - 1, in whatever order they arrive.

    Does no input or output. One thread may admit requests while another keeps their responses.

    Args:
        client: random number that the client chose.
        identity: the connection it uses now; None: unknown so far.

    Attributes:
        next: sequence number of the next request.
        done: every sequence number below it has a response.
        bytes: size of the responses kept.
        acknowledged_bytes: size of all responses acknowledged so far.
        parked, parked_bytes: requests that wait for other clients.
        origin: connection of its hello.
        greeted: its hello has been accepted.
        seen: time of its last message, in seconds of the server's clock.
        fenced: another client has replaced it.
        gated: its requests may wait for other ranks, and other ranks' requests for it.
        rank: rank of the worker; only the newest gated client of a rank is served.
        data: the handler's state of this client.
    """

    def __init__(self, client: int, identity: Hashable) -> None:
        self.client, self.identity, self.origin = client, identity, identity
        self.next, self.done, self.bytes, self.seen = 0, 0, 0, 0.0
        self.parked, self.parked_bytes, self.greeted = 0, 0, False
        self.acknowledged_bytes = 0
        self.fenced, self.gated, self.rank = False, False, 0
        self.data: object = None
        self._answers: dict[int, Answer] = {}
        self._acknowledged, self._dropped, self._kept_at = 0, 0, 0.0
        self._lock = threading.RLock()

    def move(self, identity: Hashable) -> None:
        """Send responses to another connection from now on."""
        self.identity = identity
        if self.origin is None:
            self.origin = identity

    def acknowledge(self, below: int) -> None:
        """Drop the responses to requests below a sequence number."""
        with self._lock:
            self._acknowledged = max(self._acknowledged, min(below, self.done))
            before = self.bytes
            self._forget(self._acknowledged)
            self.acknowledged_bytes += before - self.bytes

    def _note(self, header: Header) -> None:
        """Apply a request's acknowledgement."""
        if self.done == self.next < header.acknowledged <= header.sequence:
            # rejected before a restart: no journal holds these requests, but the client has had their
            # responses
            self.next = self.done = header.acknowledged
        self.acknowledge(header.acknowledged)

    def admit(self, header: Header) -> Verdict:
        """Register a request, and return what to do with it."""
        with self._lock:
            self._note(header)
            if header.sequence == self.next:
                self.next += 1
                return Verdict.NEW
            if header.sequence > self.next:
                return Verdict.GAP
            if header.sequence in self._answers:
                return Verdict.ANSWERED
            if header.sequence >= self.done:
                return Verdict.RUNNING
            dropped = self._acknowledged <= header.sequence < self._dropped
            return Verdict.DROPPED if dropped else Verdict.FORGOTTEN

    def full(self, header: Header) -> bool:
        """Return whether this is a new request that exceeds the window."""
        with self._lock:
            self._note(header)
            # A rejection overtakes waiting requests.
            unanswered = max(self.next - self._acknowledged, self.parked)
            return header.sequence == self.next and unanswered >= WINDOW

    def keep(self, answer: Answer) -> None:
        """Keep the response to an executed request."""
        with self._lock:
            if not self._answers:
                self._kept_at = self.seen
            self._answers[answer.header.sequence] = answer
            self.bytes += answer.payload.size
            self.done = max(self.done, answer.header.sequence + 1)

    def answer(self, sequence: int) -> Answer | None:
        """Return the response to a request; None if it is not kept any more."""
        return self._answers.get(sequence)

    def resume_at(self, now: float) -> None:
        """Count the client's silence and the age of its responses from `now`."""
        with self._lock:
            self.seen = self._kept_at = now

    def drop(self, before: float) -> None:
        """Drop all responses if the client has acknowledged none since `before`."""
        with self._lock:
            if self._answers and self._kept_at < before:
                self._dropped = self.done
                self._forget(self.done)

    def remember(self) -> tuple[dict[str, Any], list[Answer]]:
        """Return the state after the requests executed so far, as plain data, and the responses kept."""
        with self._lock:
            answers = list(self._answers.values())
            plain = {name: getattr(self, name) for name in _REMEMBERED}
            plain["answers"] = [[astuple(a.header), len(a.parts)] for a in answers]
            return plain, answers

    def resume(self, plain: Mapping[str, Any], answers: Sequence[Answer]) -> None:
        """Restore the state that `remember` returned."""
        for name in _REMEMBERED:
            setattr(self, name, plain[name])
        for answer in answers:
            self.keep(answer)
        self.next = self.done = plain["done"]

    def _forget(self, acknowledged: int) -> None:
        for sequence in [s for s in self._answers if s < acknowledged]:
            self.bytes -= self._answers.pop(sequence).payload.size
            self._kept_at = self.seen


def fenced() -> ExchangeError:
    """Return the error for a client whose rank a newer client has taken."""
    return ExchangeError("another worker has taken this one's rank")


def error_code(error: SatrapError) -> Code:
    """Return the code that reports an error to a client."""
    if isinstance(error, FrameError | StoreError):
        return Code.STORE
    return Code.CONFIG if isinstance(error, ConfigError) else Code.SEQUENCE


def failure(header: Header, code: Code, error: SatrapError, *, step: int = 0) -> Answer:
    """Return the response that carries an error."""
    text = {"code": int(code), "kind": header.kind} | {
        key: getattr(error, key) for key in ("what", "where", "why", "fix")
    }
    return Answer.of(header.answer(FAILURE, step=step), [pack_text(text)])
